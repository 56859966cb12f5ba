# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Memory that two processes see, for the tensors of a model."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from monai_fairfl.messages import Weights

ALIGNED = 64
"""Every tensor begins at a multiple of so many bytes, a line of a processor's cache."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the memory, and what it is."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """Where the tensors of one mapping lie, in its order; and the bytes of the whole memory."""

    places: Sequence[Place]
    total: int


class SharedMemory:
    """Writes tensors for another process, and reads what that wrote.

    The memory has no name: it is gone with the last process that has it open, also after
    ``kill -9``. It grows with what is written. One side writes while the other does not read:
    the two take turns by their messages.

    Args:
        descriptor: of the memory, see :func:`new_descriptor`. It belongs to this object.

    >>> memory = SharedMemory(new_descriptor())
    >>> [layout] = memory.write([{"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(3)}])
    >>> memory.read(layout)
    {'w': tensor([1., 2.]), 'steps': tensor(3)}
    >>> memory.close()
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def write(self, models: Sequence[Weights]) -> list[Layout]:
        """Write the tensors of some mappings, in place of all that was written before.

        Returns:
            For each mapping where its tensors lie, for :meth:`read` in the other process.

        Raises:
            OSError: when the system has no room for them.
        """
        placed = []
        total = 0
        for model in models:
            places = []
            for name, tensor in model.items():
                size = tensor.numel() * tensor.element_size()
                places.append(Place(name, tensor.dtype, tensor.shape, total, size))
                total += -(-size // ALIGNED) * ALIGNED
            placed.append(places)

        if total > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, total)
        self._map(total)
        for model, places in zip(models, placed, strict=True):
            for place, tensor in zip(places, model.values(), strict=True):
                self._view(place).copy_(tensor.detach())
        return [Layout(places, total) for places in placed]

    def read(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Copies of the tensors that lie there; the memory can then be written again."""
        self._map(layout.total)
        return {place.name: self._view(place).clone() for place in layout.places}

    def close(self) -> None:
        """Let the memory go."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        os.close(self.descriptor)

    def _map(self, total: int) -> None:
        """See at least ``total`` bytes."""
        if total > len(self._bytes):
            # Of the whole file, which the other side may have made longer than it asks for now.
            whole = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
            self._bytes = torch.frombuffer(whole, dtype=torch.uint8)

    def _view(self, place: Place) -> torch.Tensor:
        found = self._bytes[place.offset : place.offset + place.size]
        return found.view(place.dtype).view(place.shape)


def new_descriptor() -> int:
    """A file descriptor of new memory without a name.

    Linux has such memory, which no limit of ``/dev/shm`` concerns. Elsewhere it is a file that is
    deleted already.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("monai_fairfl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
