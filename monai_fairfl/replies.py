# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The replies of one exchange: their rows, inner products and averages."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeGuard

import numpy as np
import torch

from monai_fairfl.messages import (
    Estimate,
    ModelSpec,
    Reply,
    Request,
    Weights,
    bias_of,
    weight_of,
)

Aggregation = Mapping[str, float] | Mapping[str, Mapping[str, float]]
"""client -> weight, or layer -> client -> weight."""

BUFFER_POLICIES = ("aggregation", "samples", "local")
"""How the server averages buffers, see :meth:`monai_fairfl.replies.Replies.average`."""


def is_by_layer(weights: Aggregation) -> TypeGuard[Mapping[str, Mapping[str, float]]]:
    """Whether weights are of each layer by itself.

    >>> is_by_layer({"A": 1.0}), is_by_layer({"conv": {"A": 1.0}})
    (False, True)
    """
    return any(isinstance(value, Mapping) for value in weights.values())


def mean_over_layers(weights: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Layer -> client -> weight, as client -> plain mean over the layers.

    >>> mean_over_layers({"conv": {"A": 0.25, "B": 0.75}, "fc": {"A": 0.75, "B": 0.25}})
    {'A': 0.5, 'B': 0.5}
    """
    clients = {client for of_layer in weights.values() for client in of_layer}
    means = {}
    for client in sorted(clients):
        total = sum(of_layer.get(client, 0.0) for of_layer in weights.values())
        means[client] = total / len(weights)
    return means


def weights_of_model(weights: Aggregation) -> dict[str, float]:
    """client -> weight in the whole model: the mean over the layers where weights are by layer.

    >>> weights_of_model({"conv": {"A": 0.5, "B": 0.5}, "fc": {"B": 1.0}})
    {'A': 0.25, 'B': 0.75}
    """
    if is_by_layer(weights):
        return mean_over_layers(weights)
    return dict(weights)  # type: ignore[arg-type]


def in_each_layer(
    weights: Aggregation, change: Callable[[Mapping[str, float]], dict[str, float]]
) -> Aggregation:
    """Change weights, those of each layer by themselves where they are by layer.

    >>> in_each_layer({"conv": {"A": 1.0, "B": 3.0}}, normalise)
    {'conv': {'A': 0.25, 'B': 0.75}}
    """
    if is_by_layer(weights):
        return {layer: change(of_layer) for layer, of_layer in weights.items()}
    return change(weights)  # type: ignore[arg-type]


def normalise(values: Mapping[str, float], floor: float = 0.0) -> dict[str, float]:
    r"""Divide scores by their sum, so that they sum to one.

    .. math:: \rho_i = \max(v_i, f) / \sum_j \max(v_j, f)

    Args:
        values: client -> finite score.
        floor: f, at least 0: a lower score counts as f. With 0, a negative score counts as 0.

    Returns:
        client -> weight, between 0 and 1; the same weight for all if every score counts as 0.

    Raises:
        ValueError: if a score is not finite; the text names the client.

    >>> normalise({"A": 1.0, "B": 3.0, "C": -1.0})
    {'A': 0.25, 'B': 0.75, 'C': 0.0}
    """
    clipped = {client: max(float(value), floor) for client, value in values.items()}
    for client, value in clipped.items():
        if not math.isfinite(value):
            raise ValueError(f"client {client!r}: score {values[client]!r} must be a finite number")
    total = sum(clipped.values())
    if total <= 0:
        return uniform(clipped)
    if math.isinf(total):
        # Each score is finite, and their sum is too large for a float.
        largest = max(clipped.values())
        return normalise({client: value / largest for client, value in clipped.items()})
    return {client: value / total for client, value in clipped.items()}


def capped(weights: Mapping[str, float], most: float) -> dict[str, float]:
    r"""Weights of which none is above a limit; what is cut off goes to the others in proportion.

    .. math:: \rho'_i = \min(\lambda \rho_i, L), \qquad \sum_i \rho'_i = \sum_i \rho_i

    with the one :math:`\lambda` that keeps the sum. Where all others have no weight, they share
    what is cut off equally.

    Args:
        weights: client -> weight, from 0.
        most: from 1 on, the limit in multiples of the equal share 1/N; below 1, the limit as a
            share of the whole, and at least 1/N.

    >>> capped({"A": 5.0, "B": 2.0, "C": 1.0}, 1.5)
    {'A': 4.0, 'B': 2.6666666666666665, 'C': 1.3333333333333333}
    >>> capped({"A": 1.0, "B": 0.0, "C": 0.0}, 0.5)
    {'A': 0.5, 'B': 0.25, 'C': 0.25}
    """
    total = sum(weights.values())
    equal = 1 / max(len(weights), 1)
    share = most * equal if most >= 1 else max(most, equal)
    limit = share * total
    found = dict(weights)
    at_limit: set[str] = set()
    while True:
        above = {client for client in found if client not in at_limit and found[client] > limit}
        if not above:
            return found
        at_limit |= above
        free = [client for client in weights if client not in at_limit]
        rest = total - limit * len(at_limit)
        sum_of_free = sum(weights[client] for client in free)
        for client in at_limit:
            found[client] = limit
        for client in free:
            if sum_of_free > 0:
                # The quotient first: the product of a tiny weight may be 0.
                found[client] = weights[client] / sum_of_free * rest
            else:
                found[client] = rest / len(free)


def unit_of_powers(values: Mapping[str, float], power: float) -> float:
    """The unit in which the powers of ``values`` can be added up: 1, if floats can hold them.

    Else it is the largest value: a loss of 100 to the power 200 is too large for a float, and one
    of 0.01 is too small. Shares of the powers do not depend on the unit.

    >>> unit_of_powers({"A": 2.0, "B": 3.0}, 2), unit_of_powers({"A": 2.0, "B": 100.0}, 200)
    (1.0, 100.0)
    """
    try:
        total = sum(value**power for value in values.values())
    except OverflowError:
        total = math.inf
    largest = max(values.values())
    if 0 < total < math.inf or largest <= 0:
        return 1.0
    return largest


def uniform(clients: Iterable[str]) -> dict[str, float]:
    """The same weight for every client, 1 / N.

    >>> uniform(["A", "B"])
    {'A': 0.5, 'B': 0.5}
    """
    names = list(clients)
    return {client: 1 / len(names) for client in names}


def sample_shares(replies: Iterable[Reply]) -> dict[str, float]:
    r"""FedAvg's weights :math:`p_i = n_i / \sum_j n_j`, n the images of one local epoch.

    >>> from monai_fairfl.messages import Reply
    >>> sample_shares([Reply("A", {}, num_samples=30), Reply("B", {}, num_samples=10)])
    {'A': 0.75, 'B': 0.25}
    """
    return normalise({reply.client: reply.num_samples for reply in replies})


def prior_weights(previous: Mapping[str, float], clients: Iterable[str]) -> dict[str, float]:
    """Each client's previous weight, or 1 / (known clients + 1) for one that was never seen.

    These need not sum to one: FedCE's cosines do not depend on their scale.

    >>> prior_weights({"A": 0.6, "B": 0.4}, ["A", "C"])
    {'A': 0.6, 'C': 0.3333333333333333}
    """
    newcomer = 1 / (len(previous) + 1)
    return {client: previous.get(client, newcomer) for client in clients}


def renormalised_previous(
    previous: Mapping[str, float], clients: Iterable[str]
) -> dict[str, float]:
    """The previous weights of the present ``clients``, which sum to one.

    A client that was never seen gets the mean of the previous weights. The weights of the same
    clients are returned as they are: if those do not sum to one, the caller normalises them.

    >>> renormalised_previous({"A": 0.5, "B": 0.3, "C": 0.2}, ["A", "B", "C"])
    {'A': 0.5, 'B': 0.3, 'C': 0.2}
    >>> renormalised_previous({"A": 0.25, "B": 0.75}, ["B", "C"])
    {'B': 0.6, 'C': 0.4}
    """
    newcomer = _mean(previous) if previous else 1.0
    weights = {client: previous.get(client, newcomer) for client in clients}

    # Where nobody is absent and nobody is new, nothing is divided: the same bits.
    if set(weights) == set(previous):
        return weights
    return normalise(weights)


def merge_with_absent(
    previous: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """The new ``weights`` of the present clients and the previous ones of the absent, of sum one.

    The present clients divide among them the share that they had before, so that a client loses
    nothing by its absence.

    >>> merge_with_absent({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 0.5, "B": 0.5})
    {'A': 0.4, 'B': 0.4, 'C': 0.2}
    """
    absent = {client: weight for client, weight in previous.items() if client not in weights}
    if not absent:
        return dict(weights)

    # The share of all present clients, where one that was never seen counts as the mean.
    newcomer = _mean(previous)
    present_share = sum(previous.get(client, newcomer) for client in weights)

    merged = dict(absent)
    for client, weight in weights.items():
        merged[client] = present_share * weight

    # Sorted, so that the bits of the sum do not depend on who was absent.
    return normalise(dict(sorted(merged.items())))


def weighted_mean(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    r"""The mean :math:`\sum_i w_i t_i / \sum_i w_i`, summed in float64, in the tensors' own type.

    A weight of 0 leaves its tensor out, so that a value that is not finite does no harm there.

    >>> tensors = [torch.tensor([value]) for value in (1.0, 3.0, math.inf)]
    >>> weighted_mean(tensors, torch.tensor([1.0, 1.0, 0.0])).tolist()
    [2.0]
    """
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for weight, tensor in zip(weights, tensors, strict=True):
        if weight:
            total = total + weight * tensor.double()
    mean = total / weights.sum()
    return mean.to(tensors[0].dtype)


def _mean(weights: Mapping[str, float]) -> float:
    return sum(weights.values()) / len(weights)


BLOCK = 65536
"""Columns per float32 product: one over millions of columns is wrong by 1e-3, blocks by 3e-7."""


class UpdateMatrix:
    """The updates of one exchange as rows of a matrix, shape (N, P).

    Each row has views that look like a ``state_dict``. The last bits of a matrix product depend on
    how rows lie in memory, so all updates are copied into one matrix, however they arrived.

    Args:
        reference: tensors with the shapes of the parameters.
        parameters: names in column order.
        rows: N, number of updates expected.

    >>> import torch
    >>> matrix = UpdateMatrix({"w": torch.zeros(2, 2)}, ["w"], rows=1)
    >>> matrix.put(0, {"w": torch.eye(2)})["w"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(self, reference: Weights, parameters: Sequence[str], rows: int):
        self.shapes = {name: tuple(reference[name].shape) for name in parameters}
        self.columns: dict[str, slice] = {}
        self.width = 0
        """P, the number of columns."""
        for name in parameters:
            begin = self.width
            self.width = begin + reference[name].numel()
            self.columns[name] = slice(begin, self.width)
        double = any(reference[name].dtype == torch.float64 for name in parameters)
        self.rows = torch.empty(rows, self.width, dtype=torch.float64 if double else torch.float32)

    @property
    def rows(self) -> torch.Tensor:
        """All updates as one tensor, shape (N, P)."""
        if self._chosen != range(len(self._all)):
            self.rows = self._all[self._chosen]
        return self._all

    @rows.setter
    def rows(self, rows: torch.Tensor) -> None:
        self._all = rows
        # Those of the rows that belong to this matrix, see `select`.
        self._chosen: Sequence[int] = range(len(rows))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the updates' values here."""
        return self._all.dtype

    def __len__(self) -> int:
        return len(self._chosen)

    def put(self, row: int, update: Weights) -> dict[str, torch.Tensor]:
        """Copy ``update`` into ``row`` and return views of it; the original is free then."""
        rows = self.rows
        for name, columns in self.columns.items():
            rows[row, columns] = update[name].detach().reshape(-1)
        return self.views(row)

    def views(self, row: int) -> dict[str, torch.Tensor]:
        """Parameter name -> view of its part of ``row``."""
        values = self._all[self._chosen[row]]
        return {name: values[self.columns[name]].view(self.shapes[name]) for name in self.shapes}

    def blocks(self, name: str, most: int = BLOCK) -> Iterator[tuple[slice, torch.Tensor]]:
        """The columns of one parameter, some at a time.

        Args:
            name: of the parameter.
            most: columns of a block.

        Yields:
            The place within the parameter, and all rows' columns there, of shape (N, columns).
        """
        updates = self.updates_of(name)
        for begin in range(0, updates.shape[1], most):
            place = slice(begin, min(begin + most, updates.shape[1]))
            yield place, updates[:, place]

    def updates_of(self, name: str) -> torch.Tensor:
        """The columns of one parameter, shape (N, its number of values)."""
        return self.rows[:, self.columns[name]]

    def weighted_sums(self, name: str, factors: torch.Tensor) -> torch.Tensor:
        """Several weighted sums of the rows' columns of one parameter, shape (S, its values).

        Args:
            name: of the parameter.
            factors: of the rows in each sum, shape (S, N), in the matrix's type.
        """
        columns = self.columns[name]
        sums = torch.empty(len(factors), columns.stop - columns.start, dtype=self.dtype)
        for place, block in self.blocks(name):
            torch.mm(factors, block, out=sums[:, place])
        return sums

    def by_class(self, name: str, axis: int) -> torch.Tensor:
        """A parameter of the output layer, shape (N, classes, ...).

        Args:
            name: of the parameter.
            axis: of the parameter, that of the classes.
        """
        updates = self.updates_of(name).unflatten(1, self.shapes[name])
        return updates.movedim(1 + axis, 1)

    def select(self, rows: Sequence[int]) -> UpdateMatrix:
        """A matrix of the given rows, copied when they are used; itself when these are all."""
        if list(rows) == list(range(len(self))):
            return self
        chosen = copy.copy(self)
        chosen._chosen = [self._chosen[row] for row in rows]
        return chosen

    def replaced(self, updates: Mapping[int, Weights]) -> UpdateMatrix:
        """A matrix with other updates in some rows; this one stays as it is.

        Args:
            updates: row -> update.
        """
        changed = copy.copy(self)
        changed.rows = self.rows.clone()
        for row, update in updates.items():
            changed.put(row, update)
        return changed


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
        alike: which updates count as copies of which, shape (N, N); ``None``: each only as its own.

    >>> import torch
    >>> matrix = UpdateMatrix({"w": torch.zeros(2)}, ["w"], rows=2)
    >>> first = matrix.put(0, {"w": torch.tensor([3.0, 0.0])})
    >>> second = matrix.put(1, {"w": torch.tensor([1.0, 1.0])})
    >>> geometry = Geometry(matrix, ModelSpec(("w",), layers={"w": "fc"}))
    >>> geometry.gram.tolist(), round(geometry.cosine([1, 0], [0, 1]), 4)
    ([[9.0, 3.0], [3.0, 2.0]], 0.7071)
    """

    def __init__(
        self,
        matrix: UpdateMatrix,
        spec: ModelSpec,
        labelled: np.ndarray | None = None,
        alike: np.ndarray | None = None,
    ):
        self.matrix = matrix
        self.spec = spec
        self.labelled = labelled
        self.alike = np.eye(len(matrix), dtype=bool) if alike is None else alike
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

    def once(self, factors: Sequence[float] | np.ndarray) -> np.ndarray:
        """The factors of a sum of updates in which k copies have one weight: each divided by k."""
        divided: np.ndarray = np.asarray(factors, float) / self.alike.sum(axis=0)
        return divided

    def cosines_with_sum(
        self, factors: Sequence[float] | np.ndarray, without_own: bool = False
    ) -> np.ndarray:
        r"""The cosine of each update with one weighted sum of the updates, see :meth:`cosine`.

        .. math:: \cos(u_i, \sum_j a_j u_j)

        Copies count in the sum with one weight in all.

        Args:
            factors: a, shape (N,).
            without_own: whether the sum for update i leaves out update i itself, and its copies.

        Returns:
            Shape (N,).
        """
        factors = self.once(factors)
        found = np.zeros(len(factors))
        for row, itself in enumerate(np.eye(len(factors))):
            others = factors
            if without_own:
                others = factors * ~self.alike[row]
            found[row] = self.cosine(itself, others)
        return found

    def recorded(self) -> dict[str, Any]:
        """What the ledger has of the inner products, plain JSON."""
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


LEAST_SHARE = 1e-300  # in place of 0 where nobody who labels a class has any weight

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""A rule that looks at each coordinate by itself: values of shape (N, ...) -> shape (...)."""


class Averaging:
    """Averages of the updates of one exchange.

    Args:
        clients: of the updates, in the order of the matrix's rows.
        starts: the model that each of them was sent.
        matrix: the updates, one row each.
        labelled: which update was trained on which class of the output layer, shape (N, classes);
            ``None``: all on all. A class is averaged over those who label it.
        spec: names the layers and the output layer.
    """

    def __init__(
        self,
        clients: Sequence[str],
        starts: Sequence[Weights],
        matrix: UpdateMatrix,
        labelled: np.ndarray | None,
        spec: ModelSpec,
    ):
        self.clients = clients
        self.starts = starts
        self.matrix = matrix
        self.labelled = labelled
        self.spec = spec

    def average(
        self, weights: Aggregation, start: Weights | None, scale: Mapping[str, float] | None
    ) -> dict[str, torch.Tensor]:
        """The averaged parameters, see :meth:`Replies.average`."""
        if start is None:
            start = self._common_model()
        rho_of = rho_of_tensors(self.matrix.columns, weights, self.clients, self.spec)
        scales = self._scales(scale)
        averaged: dict[str, torch.Tensor] = {}
        for name, rho in rho_of.items():
            origin = self._mean_start(name, rho) if start is None else start[name]
            moved = self._step(name, rho, scales)
            # In place: the step lies in memory of its own.
            moved += origin
            averaged[name] = moved.to(origin.dtype)
        return averaged

    def averages(
        self, weights: Sequence[Mapping[str, float]], start: Weights
    ) -> list[dict[str, torch.Tensor]]:
        """The parameters of several averages, see :meth:`Replies.averages`."""
        rho = torch.stack([_vector(of_average, self.clients) for of_average in weights])
        rho = rho.to(self.matrix.dtype)
        found: list[dict[str, torch.Tensor]] = [{} for _ in weights]
        for name, shape in self.matrix.shapes.items():
            origin = start[name]
            moved = self.matrix.weighted_sums(name, rho)
            moved += origin.reshape(-1)
            for average, vector in zip(found, moved, strict=True):
                average[name] = vector.view(shape).to(origin.dtype)
        return found

    def reduced(
        self, reduce: Reduce, start: Weights | None, scale: Mapping[str, float] | None
    ) -> dict[str, torch.Tensor]:
        """The parameters of a rule for each coordinate, see :meth:`Replies.reduced`."""
        scales = self._scales(scale)
        found: dict[str, torch.Tensor] = {}
        for name, shape in self.matrix.shapes.items():
            updates = self.matrix.updates_of(name)
            values = (scales[:, None] * updates).to(updates.dtype)
            origin = self._common_start(name) if start is None else start[name]
            if origin is None:
                # The rule sees the clients' models.
                starts = torch.stack([model[name].flatten() for model in self.starts])
                origin = torch.zeros(shape, dtype=starts.dtype)
                values = starts.to(values.dtype) + values
            step = self._reduced_by_class(name, values.view(len(self.clients), *shape), reduce)
            found[name] = (origin.to(step.dtype) + step).to(origin.dtype)
        return found

    # ---- what the clients started from

    def _common_model(self) -> Weights | None:
        """The model that all clients were sent; ``None`` where they were sent different ones."""
        first = self.starts[0]
        return first if all(model is first for model in self.starts) else None

    def _common_start(self, name: str) -> torch.Tensor | None:
        """The tensor that all clients started from; ``None`` where they differ."""
        first = self.starts[0][name]
        for model in self.starts:
            tensor = model[name]
            # One tensor of several models is several after a resume.
            if tensor is not first and not torch.equal(tensor, first):
                return None
        return first

    def _mean_start(self, name: str, rho: torch.Tensor) -> torch.Tensor:
        """What the clients started from; averaged where they were sent different tensors."""
        common = self._common_start(name)
        if common is not None:
            return common
        return weighted_mean([model[name] for model in self.starts], rho)

    # ---- the step of one tensor

    def _scales(self, scale: Mapping[str, float] | None) -> torch.Tensor:
        """The factors of the updates, shape (N,)."""
        if scale is None:
            return torch.ones(len(self.clients), dtype=torch.float64)
        return torch.tensor([scale[client] for client in self.clients], dtype=torch.float64)

    def _step(self, name: str, rho: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the updates of one tensor, in its shape; in memory of its own."""
        class_axis = self._class_axis(name)
        if class_axis is not None:
            return self._step_by_class(name, class_axis, rho, scales)

        matrix = self.matrix
        factors = (rho * scales).to(matrix.dtype)
        columns = matrix.columns[name]
        step = torch.empty(columns.stop - columns.start, dtype=matrix.dtype)
        for place, block in matrix.blocks(name):
            torch.mv(block.T, factors, out=step[place])
        return step.view(matrix.shapes[name])

    def _step_by_class(
        self, name: str, class_axis: int, rho: torch.Tensor, scales: torch.Tensor
    ) -> torch.Tensor:
        """As :meth:`_step` for the output layer: a class is averaged over its labellers."""
        # The weights of the clients that label a class have the same sum as those of all clients.
        share = rho[:, None] * torch.as_tensor(self.labelled)
        compensation = rho.sum() / share.sum(0).clamp(min=LEAST_SHARE)
        share = share * compensation * scales[:, None]

        updates = self.matrix.by_class(name, class_axis)
        step = torch.einsum("nc,nc...->c...", share.to(updates.dtype), updates)
        return step.movedim(0, class_axis)

    def _reduced_by_class(self, name: str, values: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        """The rule applied to one tensor, for each class to those who label it.

        Args:
            name: of the tensor.
            values: of all clients, shape (N, ...).
            reduce: the rule.
        """
        class_axis = self._class_axis(name)
        if class_axis is None:
            return reduce(values)
        assert self.labelled is not None
        by_class = values.movedim(1 + class_axis, 1)
        reduced = []
        for number in range(by_class.shape[1]):
            labellers = torch.as_tensor(self.labelled[:, number])
            if not labellers.any():
                labellers = torch.ones_like(labellers)
            reduced.append(reduce(by_class[labellers, number]))
        return torch.stack(reduced).movedim(0, class_axis)

    def _class_axis(self, name: str) -> int | None:
        """The axis of a tensor's classes, if some clients do not label all of them; else none."""
        return None if self.labelled is None else self.spec.class_axis(name)


def averaged_buffers(
    replies: Sequence[Reply], spec: ModelSpec, weights: Aggregation, policy: str
) -> dict[str, torch.Tensor]:
    """The buffers that at least one client sent, averaged over those that sent them.

    Args:
        replies: of one exchange.
        spec: names the buffers and their layers.
        weights: client -> weight, or layer -> client -> weight.
        policy: one of :data:`BUFFER_POLICIES`.
    """
    averaged: dict[str, torch.Tensor] = {}
    if policy == "local":
        return averaged
    if policy != "aggregation":
        weights = sample_shares(replies)
    clients = [reply.client for reply in replies]
    rho_of = rho_of_tensors(spec.buffers, weights, clients, spec)

    # Buffers that the same replies sent, with the same weights -> their names.
    alike: dict[tuple[tuple[int, ...], tuple[float, ...], torch.dtype], list[str]] = {}
    for name in spec.buffers:
        rows = []
        values = []
        for row, reply in enumerate(replies):
            if reply.buffers is not None and name in reply.buffers:
                rows.append(row)
                values.append(reply.buffers[name])
        if not values:
            continue
        if values[0].is_floating_point():
            rho = rho_of[name][rows]
            key = (tuple(rows), tuple(rho.tolist()), values[0].dtype)
            alike.setdefault(key, []).append(name)
        else:
            # A counter: a fraction of it means nothing, so the largest is taken.
            averaged[name] = torch.stack(values).amax(0)
    for (rows_of_all, factors, _), names in alike.items():
        sent = [replies[row].buffers or {} for row in rows_of_all]
        averaged.update(_mean_buffers(names, sent, factors))
    return averaged


def reduced_buffers(
    replies: Sequence[Reply], spec: ModelSpec, reduce: Reduce, policy: str
) -> dict[str, torch.Tensor]:
    """The buffers of a rule for each coordinate, see :meth:`Replies.reduced`.

    Args:
        replies: of one exchange.
        spec: names the buffers.
        reduce: the rule.
        policy: one of :data:`BUFFER_POLICIES`.
    """
    clients = {reply.client for reply in replies}
    reduced = averaged_buffers(replies, spec, uniform(clients), policy)
    for name, averaged in reduced.items():
        if averaged.is_floating_point():
            sent = [(reply.buffers or {}).get(name) for reply in replies]
            reduced[name] = reduce(torch.stack([tensor for tensor in sent if tensor is not None]))
    return reduced


def _mean_buffers(
    names: Sequence[str], sent: Sequence[Weights], factors: Sequence[float]
) -> dict[str, torch.Tensor]:
    """The weighted means of some buffers, as one vector: a model may have hundreds of them.

    Args:
        names: of the buffers, of one type.
        sent: the buffers of each client that sent these.
        factors: weights of these clients.
    """
    vectors = []
    for buffers in sent:
        vectors.append(torch.cat([buffers[name].reshape(-1) for name in names]))
    rho = torch.tensor(factors, dtype=torch.float64)
    if not rho.any():
        # Only clients of weight 0 sent them: their plain mean.
        rho = torch.ones_like(rho)
    mean = weighted_mean(vectors, rho)

    found = {}
    first = sent[0]
    sizes = [first[name].numel() for name in names]
    for name, part in zip(names, mean.split(sizes), strict=True):
        # Of its own memory: the parts of a vector would hold all of it.
        found[name] = part.clone().view(first[name].shape)
    return found


def rho_of_tensors(
    names: Iterable[str], weights: Aggregation, clients: Sequence[str], spec: ModelSpec
) -> dict[str, torch.Tensor]:
    """Tensor -> the weights of the clients in its layer, shape (N,).

    Clients have the same weight in a layer that was not scored.

    Args:
        names: of the tensors.
        weights: client -> weight, or layer -> client -> weight.
        clients: in the order of the vectors; one that has no weight counts as 0.
        spec: names the layers.

    >>> spec = ModelSpec(("w", "b"), layers={"w": "fc", "b": "other"})
    >>> rho_of = rho_of_tensors(("w", "b"), {"fc": {"A": 1.0}}, ["A", "B"], spec)
    >>> {name: rho.tolist() for name, rho in rho_of.items()}
    {'w': [1.0, 0.0], 'b': [0.5, 0.5]}
    """
    if not is_by_layer(weights):
        # Of a model that has hundreds of tensors, most methods weigh all alike.
        same = _vector(weights, clients)  # type: ignore[arg-type]
        return dict.fromkeys(names, same)
    equal = uniform(set(clients))
    rho_of = {}
    for name in names:
        layer = spec.layers.get(name, name)
        rho_of[name] = _vector(weights.get(layer, equal), clients)
    return rho_of


def _vector(weights: Mapping[str, float], clients: Sequence[str]) -> torch.Tensor:
    """client -> weight as a vector in the order of the clients, shape (N,)."""
    rho = [float(weights.get(client, 0.0)) for client in clients]
    return torch.tensor(rho, dtype=torch.float64)


class Replies(list[Reply]):
    """The replies of one exchange, as a list that is sorted by client and id.

    Each was checked when it arrived, by :func:`~monai_fairfl.messages.accepted`, so that code which
    reads ``reply.measurements`` of a reply in this list need not check them.

    Args:
        replies: the replies, in any order.
        requests: the requests that they answer. The weights of a request are the model from which
            its client started.
        spec: the model's tensors.
        missing: client -> why it is absent ("timeout", "refused: ...", "ignored: ...",
            "error: ...", "quarantined: ...").
        matrix: the updates as rows, in the order of the sorted replies; ``None``: it is made here.
        dropped: id of a reply -> name of a measurement -> why it was dropped from it.
        shortened: clients whose updates a guard multiplied by a factor, see :meth:`scaled`.
        groups: clients whose updates are nearly the same, see :meth:`sharing`.

    >>> asked = [Request(name, "measure", {}, ("score",), id=id) for id, name in enumerate("AB")]
    >>> sent = [request.reply(measurements={"score": 0.5}) for request in reversed(asked)]
    >>> Replies(sent, asked, ModelSpec(())).clients
    ['A', 'B']
    """

    def __init__(
        self,
        replies: Iterable[Reply],
        requests: Iterable[Request],
        spec: ModelSpec,
        *,
        missing: Mapping[str, str] | None = None,
        matrix: UpdateMatrix | None = None,
        dropped: Mapping[int, Mapping[str, str]] | None = None,
        shortened: Iterable[str] = (),
        groups: Sequence[Sequence[str]] = (),
    ):
        super().__init__(sorted(replies, key=lambda reply: (reply.client, reply.id)))
        self.shortened = frozenset(shortened)
        self.requests = {request.id: request for request in requests}
        self.dropped = dict(dropped or {})
        self.spec = spec
        self.missing = dict(missing or {})
        self._matrix = matrix
        present = set(self.clients)
        groups = [tuple(client for client in group if client in present) for group in groups]
        self.groups = [group for group in groups if len(group) > 1]

    @property
    def clients(self) -> list[str]:
        """Names of the present clients, sorted."""
        return sorted({reply.client for reply in self})

    def why_dropped(self, name: str) -> dict[str, str]:
        """Map each client whose measurement ``name`` was dropped to the reason."""
        reasons: dict[str, str] = {}
        for id, of_reply in sorted(self.dropped.items()):
            if name in of_reply:
                reasons[self.requests[id].client] = of_reply[name]
        return dict(sorted(reasons.items()))

    def start(self, reply: Reply) -> Weights:
        """The model that the client of ``reply`` received: name of a tensor -> tensor."""
        return self.requests[reply.id].weights

    def local(self, reply: Reply) -> dict[str, torch.Tensor]:
        """The model that the client trained: the received one plus its update, and its buffers."""
        model = dict(self.start(reply))
        for name, change in (reply.update or {}).items():
            # An update in the matrix may have a longer type than the model.
            start = model[name]
            model[name] = (start + change).to(start.dtype)
        model.update(reply.buffers or {})
        return model

    @cached_property
    def matrix(self) -> UpdateMatrix:
        """The updates as rows, in the order of the replies."""
        if self._matrix is None:
            self._matrix = UpdateMatrix(self.start(self[0]), self.spec.parameters, len(self))
            for row, reply in enumerate(self):
                assert reply.update is not None
                self._matrix.put(row, reply.update)
        return self._matrix

    @cached_property
    def geometry(self) -> Geometry:
        """Inner products of the updates."""
        return Geometry(self.matrix, self.spec, self.labelled, self.alike)

    def copies_of(self, client: str) -> frozenset[str]:
        """The clients whose updates are nearly the same as this client's, itself included."""
        for group in self.groups:
            if client in group:
                return frozenset(group)
        return frozenset({client})

    @property
    def alike(self) -> np.ndarray:
        """Which updates are copies of which, shape (N, N); each is its own."""
        alike = np.eye(len(self), dtype=bool)
        for row, reply in enumerate(self):
            copies = self.copies_of(reply.client) - {reply.client}
            alike[row] |= [other.client in copies for other in self]
        return alike

    @cached_property
    def labelled(self) -> np.ndarray | None:
        """Which reply was trained on which class of the output layer, shape (N, classes).

        ``None``: all were trained on all classes. A reply that names no class counts as trained on
        all of them.
        """
        classes = max((len(reply.labelled) for reply in self), default=0)
        all_classes = (True,) * classes
        labelled = np.array([reply.labelled or all_classes for reply in self], dtype=bool)
        return None if labelled.all() else labelled

    def without(self, excluded: Mapping[int, str]) -> Replies:
        """Leave out some replies, whose clients then count as missing.

        Args:
            excluded: id of a reply -> the reason.
        """
        if not excluded:
            return self
        rows = []
        missing = dict(self.missing)
        for row, reply in enumerate(self):
            if reply.id in excluded:
                missing[reply.client] = excluded[reply.id]
            else:
                rows.append(row)
        remaining = [self[row] for row in rows]
        matrix = None if self._matrix is None else self._matrix.select(rows)
        return self.rebuilt(remaining, missing, matrix)

    def rebuilt(
        self,
        replies: Iterable[Reply],
        missing: Mapping[str, str],
        matrix: UpdateMatrix | None,
        requests: Iterable[Request] | None = None,
    ) -> Replies:
        """Some of the replies of the same exchange; what was dropped of any stays on record.

        Args:
            replies: some of these.
            missing: client -> why it is absent.
            matrix: the updates of ``replies`` that trained, in their order.
            requests: in place of these, with the same ids; ``None``: these.
        """
        return Replies(
            replies,
            self.requests.values() if requests is None else requests,
            self.spec,
            missing=missing,
            matrix=matrix,
            dropped=self.dropped,
            shortened=self.shortened,
            groups=self.groups,
        )

    def scaled(self, factors: Mapping[int, float]) -> Replies:
        """Multiply some updates by a factor. Their clients are then :attr:`shortened`.

        Args:
            factors: id of a reply -> factor of its update.
        """
        if not factors:
            return self
        scaled: dict[int, Weights] = {}
        shortened = set(self.shortened)
        for row, reply in enumerate(self):
            if reply.id in factors:
                factor = factors[reply.id]
                views = self.matrix.views(row)
                scaled[row] = {name: view * factor for name, view in views.items()}
                shortened.add(reply.client)
        changed = self._with(self, scaled)
        changed.shortened = frozenset(shortened)
        return changed

    def sharing(self, groups: Sequence[Sequence[str]]) -> Replies:
        """These replies, where the clients of each group share one weight and one contribution.

        The group counts as one client, for which its first member speaks, see :meth:`shared`.

        Args:
            groups: of at least two clients each.
        """
        if not groups:
            return self
        sharing = self.rebuilt(self, self.missing, self._matrix)
        sharing.groups = [*self.groups, *map(tuple, groups)]
        return sharing

    def shared(self, values: Mapping[str, float | Estimate]) -> dict[str, Any]:
        """``values`` of clients, those of a group divided by its number; shares stay shares.

        Within a group the samples decide who has how much of it.

        >>> sent = [Reply(name, {}, 1, id=id) for id, name in enumerate("ABC")]
        >>> replies = Replies(sent, [], ModelSpec(())).sharing([("A", "C")])
        >>> shared = replies.shared({"A": 0.2, "B": 0.4, "C": 0.4})
        >>> {name: round(value, 4) for name, value in shared.items()}
        {'A': 0.2143, 'B': 0.5714, 'C': 0.2143}
        """
        if not self.groups:
            return dict(values)
        samples = {reply.client: reply.num_samples for reply in self}
        found = dict(values)
        for group in self.groups:
            members = [client for client in group if client in values]
            together = sum(float(values[client]) for client in members) / len(group)
            samples_of_group = sum(samples[client] for client in members)
            for client in members:
                own = together * samples[client] / samples_of_group
                found[client] = _moved(values[client], own, 1 / len(group))
        before = sum(float(value) for value in values.values())
        after = sum(float(value) for value in found.values())
        are_shares = math.isclose(before, 1.0) and min(map(float, values.values())) >= 0
        if not are_shares or after <= 0:
            return found
        return {
            client: _moved(value, float(value) / after, 1 / after)
            for client, value in found.items()
        }

    def _with(self, replies: Sequence[Reply], updates: Mapping[int, Weights]) -> Replies:
        """Other replies in the same order, whose inner products are computed again.

        Args:
            replies: in the order of these.
            updates: row -> its new update.
        """
        matrix = self.matrix.replaced(updates)
        changed = list(replies)
        for row in updates:
            changed[row] = replace(changed[row], update=matrix.views(row))
        return self.rebuilt(changed, self.missing, matrix)

    def average(
        self,
        weights: Aggregation | None = None,
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: Mapping[str, float] | None = None,
    ) -> dict[str, torch.Tensor]:
        r"""The averaged model: parameters by the weights, buffers by their policy.

        .. math:: w = w_0 + \sum_i \rho_i s_i \Delta_i

        Where some clients do not label a class, its row of the output layer is averaged over those
        who do.

        Args:
            weights: :math:`\rho`, client -> weight or layer -> client -> weight; uniform when
                ``None``.
            buffers: one of :data:`BUFFER_POLICIES`: ``"aggregation"``, by the weights of their
                layer; ``"samples"``, by the shares of images; ``"local"``, not at all.
            start: :math:`w_0`, the model that the steps are added to; ``None``: what the clients
                started from, averaged with the same weights where these differ.
            scale: s, client -> factor of its update (a unit length, a step size); 1 when ``None``.
        """
        if weights is None:
            weights = uniform(self.clients)
        averaged = self._averaging.average(weights, start, scale)
        averaged.update(self.average_buffers(weights, buffers))
        return averaged

    def averages(
        self, weights: Sequence[Mapping[str, float]], start: Weights
    ) -> list[dict[str, torch.Tensor]]:
        """The parameters of several averages, from one reading of the updates.

        Args:
            weights: for each average, client -> weight; a client that is left out counts as 0. All
                updates must be finite, and all clients label all classes.
            start: as for :meth:`average`.
        """
        return self._averaging.averages(weights, start)

    def reduced(
        self,
        reduce: Callable[[torch.Tensor], torch.Tensor],
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: Mapping[str, float] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The model of a rule that looks at each coordinate by itself, such as the median.

        Where the clients began from different tensors and ``start`` is ``None``, the rule sees
        their models, else their updates. A class of the output layer is that of the clients who
        label it. Counters take the maximum.

        Args:
            reduce: values of shape (N, ...) -> shape (...).
            buffers: as for :meth:`average`; ``"samples"`` is as ``"aggregation"``.
            start: the model that the steps are added to; ``None``: what the clients started from.
            scale: client -> factor of its update; 1 when ``None``.
        """
        found = self._averaging.reduced(reduce, start, scale)
        found.update(reduced_buffers(self._with_buffers_of_first, self.spec, reduce, buffers))
        return found

    def average_buffers(self, weights: Aggregation, policy: str) -> dict[str, torch.Tensor]:
        """The buffers that at least one client sent, averaged over those that sent them.

        Args:
            weights: as for :meth:`average`.
            policy: one of :data:`BUFFER_POLICIES`.
        """
        return averaged_buffers(self._with_buffers_of_first, self.spec, weights, policy)

    @property
    def _with_buffers_of_first(self) -> Sequence[Reply]:
        """These replies, where copies have the buffers of their group's first client.

        The others' may not belong to the update that they repeat.
        """
        if not self.groups:
            return self
        buffers = {reply.client: reply.buffers for reply in self}
        for group in self.groups:
            buffers.update(dict.fromkeys(group, buffers[group[0]]))
        return [replace(reply, buffers=buffers[reply.client]) for reply in self]

    @property
    def _averaging(self) -> Averaging:
        """The averages of the updates."""
        clients = [reply.client for reply in self]
        starts = [self.start(reply) for reply in self]
        return Averaging(clients, starts, self.matrix, self.labelled, self.spec)


def _moved(value: float | Estimate, to: float, factor: float) -> float | Estimate:
    """Another value, whose standard error is that of the first one times ``factor``."""
    if not isinstance(value, Estimate):
        return to
    stderr = None if value.stderr is None else value.stderr * factor
    return Estimate(to, stderr, value.n)
