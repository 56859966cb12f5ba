# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The updates of one exchange as rows of a matrix, which is read in blocks of columns."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch

from monai_fairfl.protocol.values import Weights

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
