# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that is used again once nobody holds them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import numpy as np
import torch


class ReusedMemory:
    """Gives out tensors in the memory of earlier ones that nobody uses any more.

    Fresh memory costs more than a sum: the system clears every page of it. A round's global model
    lies in the memory of an earlier round's. That memory is free only when no tensor, and no view
    of one, lies in it: a former model that somebody still holds is unchanged.

    Args:
        most: bytes of unused memory that are stored; what exceeds them goes back to the system.

    >>> memory = ReusedMemory(most=100)
    >>> first = memory.empty((2, 3), torch.float32)
    >>> address = first.data_ptr()
    >>> second = memory.empty((2, 3), torch.float32)
    >>> second.data_ptr() == address
    False
    >>> part = first[0]
    >>> del first
    >>> memory.free
    0
    >>> del part
    >>> memory.free
    24
    >>> memory.empty((2, 3), torch.float32).data_ptr() == address
    True
    """

    def __init__(self, most: int = 0):
        self.most = most
        self._scratch = torch.empty(0, dtype=torch.uint8)
        # Number of bytes -> unused blocks of that size.
        self._blocks: dict[int, list[np.ndarray]] = {}
        self.free = 0
        """Bytes of unused memory."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor whose values are arbitrary.

        Args:
            shape: of the tensor.
            dtype: of the tensor.
        """
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(tuple(shape), dtype=dtype)
        blocks = self._blocks.get(size)
        if blocks:
            block = blocks.pop()
            self.free -= size
        else:
            # PyTorch aligns its memory to cache lines, NumPy does not.
            block = torch.empty(size, dtype=torch.uint8).numpy()

        # The storage of the tensor and of all its views holds this one view of the block.
        lease = block[:]
        weakref.finalize(lease, self._give_back, block).atexit = False
        return torch.from_numpy(lease).view(dtype).view(tuple(shape))

    def scratch(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A vector of arbitrary values, in the same memory at every call: valid until the next.

        Args:
            count: of the values.
            dtype: of the values.
        """
        size = count * dtype.itemsize
        if len(self._scratch) < size:
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._scratch[:size].view(dtype)

    def _give_back(self, block: np.ndarray) -> None:
        """Store a block that no tensor uses any more, or drop it."""
        if self.free + block.nbytes > self.most:
            return
        self._blocks.setdefault(block.nbytes, []).append(block)
        self.free += block.nbytes
