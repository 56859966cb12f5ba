# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Inner products of the updates: one Gram matrix per exchange serves guards, strategies, valuation
and the ledger.

With the updates as rows of U (N x P), G = U U^T holds every cosine, norm and distance between
weighted sums of updates: <sum_i a_i u_i, sum_j b_j u_j> = a^T G b. It is computed once, in blocks
of columns, per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Weights

BLOCK = 65536  # columns per float32 product: one product over millions of columns is wrong by 1e-3, blocks by 3e-7
ZERO_NORM = 1e-12  # a shorter vector has no direction: its cosines are 0


class UpdateMatrix:
    """The updates of one exchange as rows of one preallocated matrix, with ``state_dict``-like
    views of each row.

    Args:
        reference: tensors with the shapes of the parameters.
        parameters: names in column order.
        rows: number of updates expected.
        storage: a matrix of an earlier exchange whose memory can be used again: fresh memory costs
            more than the copy.

    >>> matrix = UpdateMatrix({"w": torch.zeros(2, 2)}, ["w"], rows=1)
    >>> matrix.put(0, {"w": torch.eye(2)})["w"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        reference: Weights,
        parameters: Sequence[str],
        rows: int,
        storage: torch.Tensor | None = None,
    ):
        self.shapes = {name: tuple(reference[name].shape) for name in parameters}
        self.columns: dict[str, slice] = {}
        end = 0
        for name in parameters:
            self.columns[name] = slice(end, end := end + reference[name].numel())
        double = any(reference[name].dtype == torch.float64 for name in parameters)
        dtype = torch.float64 if double else torch.float32
        if storage is None or storage.shape != (rows, end) or storage.dtype != dtype:
            storage = torch.empty(rows, end, dtype=dtype)
        self.rows = storage

    def put(self, row: int, update: Weights) -> dict[str, torch.Tensor]:
        """Copy ``update`` into ``row`` and return views of it, so that the original can be dropped."""
        views = self.views(row)
        for name, view in views.items():
            view.copy_(update[name])
        return views

    def views(self, row: int) -> dict[str, torch.Tensor]:
        """Parameter name -> view of its part of ``row``."""
        return {
            name: self.rows[row, part].view(self.shapes[name])
            for name, part in self.columns.items()
        }

    def by_class(self, name: str, axis: int) -> torch.Tensor:
        """A parameter of the output layer, (N, classes, ...): ``axis`` of the parameter is the
        class.
        """
        return self.rows[:, self.columns[name]].unflatten(1, self.shapes[name]).movedim(1 + axis, 1)

    def select(self, rows: Sequence[int]) -> UpdateMatrix:
        """A matrix of the given rows; itself when these are all."""
        if list(rows) == list(range(len(self.rows))):
            return self
        chosen = object.__new__(UpdateMatrix)
        chosen.shapes, chosen.columns, chosen.rows = (
            self.shapes,
            self.columns,
            self.rows[list(rows)],
        )
        return chosen


class Geometry:
    """Gram matrices of one exchange's updates: whole model, per layer, per output class; float64,
    shape (N, N).

    Args:
        matrix: the updates, one row each.
        spec: names the layers and the output head.
        labelled: (N, classes), which update was trained on which class of the output layer;
            ``None``: all on all.

    >>> matrix = UpdateMatrix({"w": torch.zeros(2)}, ["w"], rows=2)
    >>> _ = matrix.put(0, {"w": torch.tensor([3.0, 0.0])}), matrix.put(1, {"w": torch.tensor([1.0, 1.0])})
    >>> geometry = Geometry(matrix, ModelSpec(("w",), layers={"w": "fc"}))
    >>> geometry.gram.tolist(), round(geometry.cosine([1, 0], [0, 1]), 4)
    ([[9.0, 3.0], [3.0, 2.0]], 0.7071)
    """

    def __init__(self, matrix: UpdateMatrix, spec: ModelSpec, labelled: np.ndarray | None = None):
        self.matrix, self.spec, self.labelled = matrix, spec, labelled

    @cached_property
    def layers(self) -> Mapping[str, np.ndarray]:
        """Layer (owning module) -> Gram matrix of that layer's parameters."""
        grams: dict[str, np.ndarray] = {}
        for name, columns in self.matrix.columns.items():
            layer = self.spec.layers.get(name, name)
            grams[layer] = grams.get(layer, 0.0) + _gram(self.matrix.rows[:, columns])
        return grams

    @cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix of the whole model: the sum over layers."""
        return np.sum(list(self.layers.values()), axis=0)

    def classes(self, output_layer: str | None = None) -> np.ndarray:
        """Gram matrices of the output layer's class rows, bias appended; shape (classes, N, N).

        Args:
            output_layer: the module's name; ``None``: the one that makes the logits. A module named
                here has its classes on the first axis of its weight, as convolutions and linear
                layers have.
        """
        module, axis = (
            (output_layer, 0) if output_layer is not None else (self.spec.output or ("", 0))
        )
        unknown = output_layer is None and self.spec.output is None
        if unknown or f"{module}.weight".lstrip(".") not in self.matrix.columns:
            raise ValueError(
                f"no output layer {module!r} with a trainable weight: name the module that makes the logits "
                f"(output_layer), one of {sorted(set(self.spec.layers.values()))[-5:]} for example"
            )
        keys = {f"{module}.weight".lstrip("."): axis, f"{module}.bias".lstrip("."): 0}
        rows = [
            self.matrix.by_class(key, axis)
            for key, axis in keys.items()
            if key in self.matrix.columns
        ]
        vectors = torch.cat(
            [
                part.double().flatten(2) if part.ndim > 2 else part.double()[..., None]
                for part in rows
            ],
            2,
        )
        return torch.einsum("icd,jcd->cij", vectors, vectors).numpy()

    @property
    def norms(self) -> np.ndarray:
        """Length of each update; shape (N,)."""
        return np.sqrt(np.diag(self.gram))

    def cosine(self, a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
        """cos(sum_i a_i u_i, sum_j b_j u_j); 0 when either is shorter than 1e-12.

        The output row of a class that nobody in one of the sums labels is left out of both: it says
        nothing of them.
        """
        a, b = np.asarray(a, float), np.asarray(b, float)
        gram = self.gram
        if self.labelled is not None:
            told = self.labelled[a != 0].any(axis=0) & self.labelled[b != 0].any(axis=0)
            gram = gram - self.classes()[~told].sum(axis=0)
        return cosine(gram, a, b)


def cosine(gram: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """cos of two weighted sums of vectors, from their Gram matrix: a^T G b / sqrt(a^T G a . b^T G
    b).

    >>> cosine(np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 1.0])).__round__(4)
    0.7071
    """
    length_a, length_b = np.sqrt(max(a @ gram @ a, 0.0)), np.sqrt(max(b @ gram @ b, 0.0))
    if length_a < ZERO_NORM or length_b < ZERO_NORM:
        return 0.0
    return float(np.clip(a @ gram @ b / (length_a * length_b), -1.0, 1.0))


def _gram(rows: torch.Tensor) -> np.ndarray:
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block in rows.split(BLOCK, dim=1):
        product = (block @ block.T).double()
        if not torch.isfinite(
            product
        ).all():  # overflow of float32, or values that are not finite themselves
            product = block.double() @ block.double().T
        total += product
    return total.numpy()
