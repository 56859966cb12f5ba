# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""Inner products of the updates, from one Gram matrix per exchange.

With the updates as rows of U, shape (N, P), the matrix :math:`G = U U^T` holds every cosine, norm
and distance between weighted sums of updates:

.. math:: \langle \sum_i a_i u_i, \sum_j b_j u_j \rangle = a^T G b

It is computed once, in blocks of columns, per layer. Guards, strategies, valuation and the ledger
read it. For large federations :class:`SumGeometry` takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.model_spec import ModelSpec, bias_of, weight_of
from monai_fairfl.protocol.update_matrix import UpdateMatrix

ROUNDING = 1e-6
"""Of inner products of float32 vectors, relative."""

ZERO_NORM = 1e-12
"""A shorter vector has no direction: its cosines are 0."""


class Geometry:
    """Gram matrices of one exchange's updates: of the whole model, per layer and per output class.

    Each is float64, shape (N, N).

    Args:
        matrix: the updates, one row each.
        spec: names the layers and the output layer.
        labelled: which update was trained on which class of the output layer, shape (N, classes);
            ``None``: all on all.

    >>> import torch
    >>> matrix = UpdateMatrix({"w": torch.zeros(2)}, ["w"], rows=2)
    >>> first = matrix.put(0, {"w": torch.tensor([3.0, 0.0])})
    >>> second = matrix.put(1, {"w": torch.tensor([1.0, 1.0])})
    >>> geometry = Geometry(matrix, ModelSpec(("w",), layers={"w": "fc"}))
    >>> geometry.gram.tolist(), round(geometry.cosine([1, 0], [0, 1]), 4)
    ([[9.0, 3.0], [3.0, 2.0]], 0.7071)
    """

    def __init__(self, matrix: UpdateMatrix, spec: ModelSpec, labelled: np.ndarray | None = None):
        self.matrix = matrix
        self.spec = spec
        self.labelled = labelled
        self.known_classes: dict[str, np.ndarray] = {}
        """Output layer -> Gram matrices of its classes, of every layer that was asked for."""

    @cached_property
    def layers(self) -> Mapping[str, np.ndarray]:
        """Layer (owning module) -> Gram matrix of that layer's parameters."""
        return self._by_layer(partial(_gram, self.matrix))

    def _by_layer(self, of_parameter: Callable[[str], Any]) -> dict[str, Any]:
        """Layer -> the sum over its parameters of what each of them has."""
        found: dict[str, Any] = {}
        for name in self.matrix.columns:
            layer = self.spec.layers.get(name, name)
            found[layer] = found.get(layer, 0) + of_parameter(name)
        return found

    @property
    def sizes_of_layers(self) -> dict[str, int]:
        """Layer -> number of its parameters."""
        return self._by_layer(lambda name: math.prod(self.matrix.shapes[name]))

    @cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix of the whole model: the sum over layers."""
        return np.sum(list(self.layers.values()), axis=0)

    def classes(self, output_layer: str | None = None) -> np.ndarray:
        """Gram matrices of the output layer's class rows, bias appended; shape (classes, N, N).

        Args:
            output_layer: the module's name, see :meth:`ModelSpec.output_layer`.
        """
        module, axis = self._output_layer(output_layer)
        if module not in self.known_classes:
            self.known_classes[module] = self._class_grams(module, axis)
        return self.known_classes[module]

    def _class_grams(self, module: str, axis: int) -> np.ndarray:
        """Gram matrices of the class rows of one layer, whose classes are on ``axis``."""
        rows = [_flat(self.matrix.by_class(weight_of(module), axis))]
        if bias_of(module) in self.matrix.columns:
            rows.append(_flat(self.matrix.by_class(bias_of(module), 0)))
        vectors = torch.cat(rows, dim=2)
        return torch.einsum("icd,jcd->cij", vectors, vectors).numpy()

    def _output_layer(self, named: str | None) -> tuple[str, int]:
        """The module that makes the logits, and the class axis of its weight."""
        found = self.spec.output_layer(named)
        module = "" if found is None else found[0]
        if found is None or weight_of(module) not in self.matrix.columns:
            some_layers = sorted(set(self.spec.layers.values()))[-5:]
            raise ValueError(
                f"no output layer {module!r} with a trainable weight: name the module that makes "
                f"the logits (output_layer), one of {some_layers} for example"
            )
        return found

    @property
    def squared_norms(self) -> np.ndarray:
        """Squared length of each update; shape (N,)."""
        return np.diag(self.gram)

    @property
    def norms(self) -> np.ndarray:
        """Length of each update; shape (N,)."""
        return np.sqrt(self.squared_norms)

    @property
    def norms_of_layers(self) -> dict[str, np.ndarray]:
        """Layer -> length of each update in this layer; shape (N,)."""
        return {layer: np.sqrt(np.diag(gram)) for layer, gram in self.layers.items()}

    def cosines_with_sum(
        self, factors: Sequence[float] | np.ndarray, without_own: bool = False
    ) -> np.ndarray:
        r"""The cosine of each update with one weighted sum of the updates, see :meth:`cosine`.

        .. math:: \cos(u_i, \sum_j a_j u_j)

        Args:
            factors: a, shape (N,).
            without_own: whether the sum for update i leaves out update i itself.

        Returns:
            Shape (N,).
        """
        factors = np.asarray(factors, float)
        found = np.zeros(len(factors))
        for row, itself in enumerate(np.eye(len(factors))):
            others = factors
            if without_own:
                others = factors * (1 - itself)
            found[row] = self.cosine(itself, others)
        return found

    def recorded(self, step: Sequence[float] | np.ndarray) -> dict[str, Any]:
        """What the ledger has of the inner products, plain JSON.

        Args:
            step: factors of the updates in the round's step, shape (N,).
        """
        output = self.spec.output
        if output is not None and weight_of(output[0]) in self.matrix.columns:
            # Also where the strategy did not read them.
            self.classes()
        return {"whole": self.gram.tolist(), "classes": _plain(self.known_classes)}

    def cosine(self, a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
        r"""The cosine of two weighted sums of updates; 0 when either is shorter than 1e-12.

        .. math:: \cos(\sum_i a_i u_i, \sum_j b_j u_j)

        The output row of a class that nobody in one of the sums labels is left out of both, because
        that sum was not trained on it.

        Args:
            a: factors of the first sum, shape (N,).
            b: factors of the second sum, shape (N,).
        """
        a = np.asarray(a, float)
        b = np.asarray(b, float)
        gram = self.gram
        if self.labelled is not None:
            gram = gram - self._not_labelled_in_both(a, b)
        return cosine(gram, a, b)

    def squared_distances(self) -> np.ndarray:
        """The squared distances of all pairs of updates, shape (N, N).

        As for cosines, the output row of a class that one of both does not label is left out. What
        is no larger than rounding is 0.
        """
        squared = squared_distances(self.gram)
        if self.labelled is not None:
            for number, gram in enumerate(self.classes()):
                of_class = self.labelled[:, number]
                in_both = of_class[:, None] & of_class[None]
                squared = squared - np.where(in_both, 0.0, squared_distances(gram))
        return _without_rounding(squared, self.gram)

    def squared_distances_from_mean(self, weights: np.ndarray) -> np.ndarray:
        """The squared distance of each update from their weighted mean, shape (N,).

        An output row of the mean is that of the updates that label its class, as in
        :meth:`Replies.average`; of an update that does not label it, the row is left out.

        Args:
            weights: of the updates, shape (N,); they sum to one.
        """
        if self.labelled is None:
            squared = _from_mean(self.gram, weights)
        else:
            classes = self.classes()
            squared = _from_mean(self.gram - classes.sum(axis=0), weights)
            for of_class, gram in zip(self.labelled.T, classes, strict=True):
                share = weights * of_class
                if share.any():
                    squared += np.where(of_class, _from_mean(gram, share / share.sum()), 0.0)
        return np.maximum(squared, 0.0)

    def _not_labelled_in_both(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Inner products in the output rows of classes that one of two sums was not trained on."""
        assert self.labelled is not None
        labelled_in_a = self.labelled[a != 0].any(axis=0)
        labelled_in_b = self.labelled[b != 0].any(axis=0)
        unlabelled = ~(labelled_in_a & labelled_in_b)
        return self.classes()[unlabelled].sum(axis=0)


class SumGeometry(Geometry):
    """Lengths of the updates, and inner products with weighted sums of them, such as the step.

    It takes the place of the Gram matrix where there are many clients: it reads all updates once
    for the lengths and once for each sum, where the Gram matrix takes N products of each update.
    A method that needs all pairs is refused.

    Args:
        matrix: the updates, one row each.
        spec: names the layers and the output layer.
        labelled: as for :class:`Geometry`.

    >>> matrix = UpdateMatrix({"w": torch.zeros(2)}, ["w"], rows=2)
    >>> first = matrix.put(0, {"w": torch.tensor([3.0, 0.0])})
    >>> second = matrix.put(1, {"w": torch.tensor([1.0, 1.0])})
    >>> geometry = SumGeometry(matrix, ModelSpec(("w",)))
    >>> geometry.squared_norms.tolist(), geometry.products_with_sum([0.5, 1.0]).tolist()
    ([9.0, 2.0], [7.5, 3.5])
    >>> geometry.cosines_with_sum([0.5, 1.0], without_own=True).round(4).tolist()
    [0.7071, 0.7071]
    """

    def __init__(self, matrix: UpdateMatrix, spec: ModelSpec, labelled: np.ndarray | None = None):
        super().__init__(matrix, spec, labelled)
        # Factors of a sum, as bytes -> the inner products of all updates with it.
        self._products: dict[bytes, np.ndarray] = {}

    @cached_property
    def layers(self) -> Mapping[str, np.ndarray]:
        """Refused: these are of all pairs."""
        _refuse_pairs()

    @cached_property
    def gram(self) -> np.ndarray:
        """Refused: this is of all pairs."""
        _refuse_pairs()

    @cached_property
    def squared_norms(self) -> np.ndarray:
        """Squared length of each update; shape (N,)."""
        return np.sum(list(self._squared_norms_of_layers.values()), axis=0)

    @property
    def norms_of_layers(self) -> dict[str, np.ndarray]:
        """Layer -> length of each update in this layer; shape (N,)."""
        return {layer: np.sqrt(squared) for layer, squared in self._squared_norms_of_layers.items()}

    @cached_property
    def _squared_norms_of_layers(self) -> dict[str, np.ndarray]:
        return self._by_layer(self.matrix.squared_norms)

    def products_with_sum(self, factors: Sequence[float] | np.ndarray) -> np.ndarray:
        r"""The inner product of each update with a weighted sum of all; shape (N,).

        .. math:: \langle u_i, \sum_j a_j u_j \rangle

        Args:
            factors: a, shape (N,).
        """
        factors = np.asarray(factors, float)
        key = factors.tobytes()
        if key not in self._products:
            self._products[key] = self.matrix.products_with_sum(factors)
        return self._products[key]

    def cosine(self, a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
        """Refused: two sums at a time need all pairs; see :meth:`cosines_with_sum`."""
        _refuse_pairs()

    def cosines_with_sum(
        self, factors: Sequence[float] | np.ndarray, without_own: bool = False
    ) -> np.ndarray:
        r"""As :meth:`Geometry.cosines_with_sum`, from the inner products p with the whole sum s.

        .. math:: \langle u_i, s - a_i u_i \rangle = p_i - a_i \lVert u_i \rVert^2, \qquad
                  \lVert s - a_i u_i \rVert^2 = a^T p - 2 a_i p_i + a_i^2 \lVert u_i \rVert^2

        Where nearly all of a sum is one client's, these are differences of nearly equal numbers:
        the inner products are accurate to about 1e-7 of the lengths.
        """
        factors = np.asarray(factors, float)
        products = self.products_with_sum(factors)
        squared_length = float(factors @ products)
        found = np.zeros(len(factors))
        for row, itself in enumerate(np.eye(len(factors))):
            own = factors[row] if without_own else 0.0
            others = factors - own * itself
            squared_norm = self.squared_norms[row]
            product = products[row] - own * squared_norm
            squared_sum = squared_length - 2 * own * products[row] + own**2 * squared_norm
            if self.labelled is not None:
                left_out = self._not_labelled_in_both(itself, others)
                squared_norm = squared_norm - left_out[row, row]
                product -= left_out[row] @ others
                squared_sum -= others @ left_out @ others
            found[row] = _cosine_of(product, squared_norm, squared_sum)
        return found

    def recorded(self, step: Sequence[float] | np.ndarray) -> dict[str, Any]:
        """What the ledger has: the lengths, and the sums that were read, the round's step included.

        ``whole`` is ``None``; ``classes`` are of the layers that the strategy read.
        """
        self.products_with_sum(step)
        sums = []
        for factors, products in self._products.items():
            of_sum = np.frombuffer(factors, dtype=float)
            sums.append({"factors": of_sum.tolist(), "products": products.tolist()})
        return {
            "whole": None,
            "squared_norms": self.squared_norms.tolist(),
            "sums": sums,
            "classes": _plain(self.known_classes),
        }


def _refuse_pairs() -> NoReturn:
    """Refuse what looks at all pairs of updates, in a run that computes none.

    Raises:
        ConfigError: naming the fix.
    """
    raise ConfigError(
        "the method compares all pairs of updates, and gram=False computes none: set gram to True"
    )


def _plain(classes: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Output layer -> Gram matrices of its classes, as JSON has them."""
    return {layer: grams.tolist() for layer, grams in classes.items()}


def _cosine_of(product: float, squared_a: float, squared_b: float) -> float:
    """A cosine from an inner product and two squared lengths; 0 without length."""
    length_a = np.sqrt(max(squared_a, 0.0))
    length_b = np.sqrt(max(squared_b, 0.0))
    if length_a < ZERO_NORM or length_b < ZERO_NORM:
        return 0.0
    return float(np.clip(product / (length_a * length_b), -1.0, 1.0))


def cosine(gram: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    r"""The cosine of two weighted sums of vectors, from the vectors' Gram matrix G.

    .. math:: a^T G b / \sqrt{a^T G a \cdot b^T G b}

    >>> round(cosine(np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 1.0])), 4)
    0.7071
    """
    return _cosine_of(a @ gram @ b, a @ gram @ a, b @ gram @ b)


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """The squared distances of all pairs of vectors, from their Gram matrix; shape (N, N).

    What is no larger than the rounding of float32 inner products is 0.

    >>> squared_distances(np.array([[4.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    squared_norms = np.diag(gram)
    sums = squared_norms[:, None] + squared_norms[None]
    return _without_rounding(sums - 2 * gram, gram)


def _without_rounding(squared: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Squared distances, 0 where they are no larger than the rounding of a Gram matrix's values."""
    squared_norms = np.diag(gram)
    sums = squared_norms[:, None] + squared_norms[None]
    return np.where(squared > ROUNDING * sums, squared, 0.0)


def _from_mean(gram: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The squared distance of each vector from the weighted mean of all, shape (N,)."""
    found: np.ndarray = np.diag(gram) - 2 * gram @ weights + weights @ gram @ weights
    return found


def _flat(rows: torch.Tensor) -> torch.Tensor:
    """Rows of the output layer, (N, classes, ...), as float64 vectors, (N, classes, D)."""
    if rows.ndim > 2:
        return rows.double().flatten(2)
    return rows.double()[..., None]


def _gram(matrix: UpdateMatrix, name: str) -> np.ndarray:
    """The Gram matrix of one parameter in float64, shape (N, N)."""
    total = torch.zeros(len(matrix), len(matrix), dtype=torch.float64)
    for _, block in matrix.blocks(name):
        product = (block @ block.T).double()
        # Float32 may overflow; values that are not finite themselves stay so in float64.
        if not torch.isfinite(product).all():
            product = block.double() @ block.double().T
        total += product
    return total.numpy()
