# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The updates of one exchange as rows of a matrix, which is read in blocks of columns."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch

from monai_fairfl.protocol.memory import ReusedMemory
from monai_fairfl.protocol.values import Weights

BLOCK = 65536
"""Columns per float32 product: one over millions of columns is wrong by 1e-3, blocks by 3e-7."""

CACHE_LINE = 64
"""Bytes; tensors begin at a multiple of it."""


class UpdateMatrix:
    """The updates of one exchange as rows of a matrix, shape (N, P).

    Each row has views that look like a ``state_dict``. A row is copied into the matrix's storage
    (:meth:`put`), or stays where its sender made it (:meth:`adopt`). Arithmetic goes through blocks
    of columns, which are small enough for a processor's cache.

    Args:
        reference: tensors with the shapes of the parameters.
        parameters: names in column order.
        rows: N, number of updates expected.
        storage: a matrix of an earlier exchange whose memory can be used again: fresh memory costs
            more than the copy.
        memory: of the averages that are made of the updates; ``None``: fresh.

    >>> import torch
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
        memory: ReusedMemory | None = None,
    ):
        self.memory = memory or ReusedMemory()
        self.shapes = {name: tuple(reference[name].shape) for name in parameters}
        self.columns: dict[str, slice] = {}
        self.width = 0
        """P, the number of columns."""
        for name in parameters:
            begin = self.width
            self.width = begin + reference[name].numel()
            self.columns[name] = slice(begin, self.width)
        double = any(reference[name].dtype == torch.float64 for name in parameters)
        self.dtype = torch.float64 if double else torch.float32
        fits = storage is not None and storage.shape == (rows, self.width)
        if not fits or storage.dtype != self.dtype:  # type: ignore[union-attr]
            storage = None
        self.storage = storage
        """Memory of the rows that were copied; ``None`` until one is."""
        # One mapping for each row: parameter -> its columns, as a vector.
        self._vectors: list[dict[str, torch.Tensor]] = [{} for _ in range(rows)]

    def __len__(self) -> int:
        return len(self._vectors)

    def put(self, row: int, update: Weights) -> dict[str, torch.Tensor]:
        """Copy ``update`` into ``row`` and return views of it; the original is free then."""
        if self.storage is None:
            self.storage = torch.empty(len(self), self.width, dtype=self.dtype)
        self._vectors[row] = self._vectors_in(self.storage[row])
        views = self.views(row)
        for name, view in views.items():
            view.copy_(update[name])
        return views

    def adopt(self, row: int, update: Weights) -> dict[str, torch.Tensor]:
        """Make ``update`` the row without a copy, and return views of it.

        Nobody may write to its tensors until the exchange is over. A tensor of another type or
        device is copied.
        """
        vectors = {}
        adopted = {}
        for name, shape in self.shapes.items():
            tensor = update[name]
            if tensor.requires_grad or tensor.dtype != self.dtype or not tensor.is_cpu:
                tensor = tensor.detach().to("cpu", self.dtype)
            adopted[name] = tensor.view(shape) if tensor.shape != shape else tensor
            vectors[name] = tensor.reshape(-1)
        self._vectors[row] = vectors
        return adopted

    def views(self, row: int) -> dict[str, torch.Tensor]:
        """Parameter name -> view of its part of ``row``."""
        found = {}
        for name, vector in self._vectors[row].items():
            found[name] = vector.view(self.shapes[name])
        return found

    @property
    def rows(self) -> torch.Tensor:
        """All updates as one tensor, shape (N, P); those that lie elsewhere are copied into it."""
        whole = self.storage
        if whole is None or not self._is_stored(whole):
            whole = torch.empty(len(self), self.width, dtype=self.dtype)
            for row, vectors in enumerate(self._vectors):
                for name, vector in vectors.items():
                    whole[row, self.columns[name]] = vector
            self.rows = whole
        return whole

    @rows.setter
    def rows(self, whole: torch.Tensor) -> None:
        self.storage = whole
        self.dtype = whole.dtype
        self._vectors = [self._vectors_in(row) for row in whole]

    def _is_stored(self, whole: torch.Tensor) -> bool:
        """Whether the rows are those of ``whole``, in their order."""
        if len(whole) != len(self):
            return False
        for row, vectors in enumerate(self._vectors):
            for name, vector in vectors.items():
                place = whole[row, self.columns[name]]
                if place.data_ptr() != vector.data_ptr():
                    return False
        return True

    def _vectors_in(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Parameter -> its columns of one row of a whole matrix."""
        return {name: row[columns] for name, columns in self.columns.items()}

    def blocks(self, name: str, most: int = BLOCK) -> Iterator[tuple[slice, torch.Tensor]]:
        """The columns of one parameter, some at a time.

        Args:
            name: of the parameter.
            most: columns of a block.

        Yields:
            The place within the parameter, and all rows' columns there, of shape (N, columns). They
            are valid until the next block.
        """
        columns = self.columns[name]
        size = columns.stop - columns.start
        buffer = self.memory.scratch(self._length_of_buffer(min(size, most)), self.dtype)
        for begin in range(0, size, most):
            place = slice(begin, min(begin + most, size))
            yield place, self._gathered(name, place, buffer)

    def updates_of(self, name: str) -> torch.Tensor:
        """The columns of one parameter, shape (N, its number of values), in memory of their own."""
        columns = self.columns[name]
        size = columns.stop - columns.start
        buffer = torch.empty(self._length_of_buffer(size), dtype=self.dtype)
        return self._gathered(name, slice(0, size), buffer)

    def _length_of_buffer(self, columns: int) -> int:
        """Values that :meth:`_gathered` needs for so many columns, at most."""
        line = CACHE_LINE // self.dtype.itemsize
        return line + len(self) * (columns + line)

    def _gathered(self, name: str, place: slice, buffer: torch.Tensor) -> torch.Tensor:
        """The columns ``place`` of one parameter, copied from every row into ``buffer``.

        The last bits of a matrix product depend on where rows begin within a cache line. Here they
        begin as in one matrix of shape (N, P), so that the bits are the same however rows are
        stored.
        """
        line = CACHE_LINE // self.dtype.itemsize
        count = place.stop - place.start
        columns = self.columns[name]
        is_whole = count == columns.stop - columns.start
        offset = (columns.start + place.start) % line
        # The smallest distance of two rows that is P modulo the cache line.
        gap = (self.width - count) % line

        # One concatenation of all rows, with what lies before and between them.
        parts = []
        if offset:
            parts.append(buffer.new_zeros(offset))
        between = buffer.new_zeros(gap)
        for vectors in self._vectors:
            # Most parameters are no longer than a block.
            parts.append(vectors[name] if is_whole else vectors[name][place])
            if gap:
                parts.append(between)
        used = offset + len(self) * (count + gap)
        torch.cat(parts, out=buffer[:used])
        return buffer.as_strided((len(self), count), (count + gap, 1), offset)

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
        """A matrix of the given rows, which are not copied; itself when these are all."""
        if list(rows) == list(range(len(self))):
            return self
        chosen = copy.copy(self)
        chosen.storage = None
        chosen._vectors = [self._vectors[row] for row in rows]
        return chosen

    def replaced(self, updates: Mapping[int, Weights]) -> UpdateMatrix:
        """A matrix with other updates in some rows; this one stays as it is.

        Args:
            updates: row -> update, see :meth:`adopt`.
        """
        changed = copy.copy(self)
        changed.storage = None
        changed._vectors = list(self._vectors)
        for row, update in updates.items():
            changed.adopt(row, update)
        return changed
