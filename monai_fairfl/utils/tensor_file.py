# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tensors as a safetensors file that is written from their own memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.tensors import bytes_of

NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Type -> its name in the format, in the order in which the library writes types."""

ALIGNMENT = 8
"""The tensors begin at a multiple of so many bytes."""

PART = 2**20
"""Bytes of a part: few enough for a processor's cache, so that one reading serves two users."""


class TensorFile:
    """The content of a safetensors file in parts, which are views of the tensors' own memory.

    The bytes are those of ``safetensors.torch.save``, which makes a second copy of everything. The
    format: 8 bytes with the header's length, the header (JSON: name -> type, shape and place),
    then the tensors.

    Args:
        weights: the tensors; they must not change until the file is written.

    >>> from safetensors.torch import save
    >>> weights = {"w": torch.ones(2, 3), "n": torch.tensor(4)}
    >>> b"".join(TensorFile(weights)) == save(weights)
    True
    >>> TensorFile(weights).size == len(save(weights))
    True
    """

    def __init__(self, weights: Weights):
        order = {dtype: place for place, dtype in enumerate(NAMES)}
        names = sorted(weights, key=lambda name: (order[weights[name].dtype], name))
        entries = {}
        end = 0
        for name in names:
            tensor = weights[name]
            begin = end
            end = begin + tensor.nbytes
            entries[name] = {
                "dtype": NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        padding = b" " * (-len(text) % ALIGNMENT)
        header = text + padding
        self._head = len(header).to_bytes(8, "little") + header
        self._tensors = [weights[name] for name in names]
        self.size = len(self._head) + end
        """Bytes of the file."""

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """The parts of the file, in order."""
        yield self._head
        for tensor in self._tensors:
            content = memory_of(tensor)
            for begin in range(0, len(content), PART):
                yield content[begin : begin + PART]


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, in the order of its entries; no copy where they lie so in memory.

    >>> bytes(memory_of(torch.tensor([1, 258], dtype=torch.int16)))
    b'\\x01\\x00\\x02\\x01'
    """
    return bytes_of(tensor.cpu()).numpy().data
