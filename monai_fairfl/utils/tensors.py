# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors, and what a processor asks of tensors that lie on a GPU.

A processor that reads a number from a GPU waits until the GPU has done all that it was asked
before. The functions here wait once for many tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")


def on_cpu(value: Any) -> Any:
    """A deep copy with every tensor on the CPU, and NumPy's numbers as Python's.

    ``torch.load`` reads such values again with ``weights_only=True``. Tensors of a GPU come
    together, see :func:`copied_together`.

    >>> on_cpu([{"w": torch.ones(1), "lr": np.float64(0.5)}])
    [{'w': tensor([1.]), 'lr': 0.5}]
    """
    elsewhere = [tensor for tensor in _tensors_in(value) if not tensor.is_cpu]
    return _copied(value, iter(copied_together(elsewhere, CPU)))


def moved(weights: Mapping[str, torch.Tensor], device: torch.device) -> Mapping[str, torch.Tensor]:
    """``weights`` with every tensor on ``device``.

    Tensors that lie there are not copied, and the others come together.

    >>> weights = {"w": torch.ones(1)}
    >>> moved(weights, CPU) is weights
    True
    """
    elsewhere = {name: tensor for name, tensor in weights.items() if tensor.device != device}
    if not elsewhere:
        return weights
    copies = copied_together(list(elsewhere.values()), device)
    return {**weights, **dict(zip(elsewhere, copies, strict=True))}


def copied_together(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copies on ``device`` of tensors that lie on others, by one transfer from each of these.

    The tensors' bytes are put end to end where they lie, and cross through pinned memory, if either
    side is a GPU. One transfer for each tensor would cost more than the bytes.

    Args:
        tensors: of any types and shapes.
        device: of the copies.

    Returns:
        Tensors with memory of their own, of the same types, shapes and strides.

    >>> copied_together([torch.ones(2), torch.tensor(3)], CPU)
    [tensor([1., 1.]), tensor(3)]
    """
    copies: dict[int, torch.Tensor] = {}
    for source in dict.fromkeys(tensor.device for tensor in tensors):
        numbers = [n for n, tensor in enumerate(tensors) if tensor.device == source]
        # Larger types first: so each tensor begins at a multiple of its type's size.
        numbers.sort(key=lambda n: tensors[n].itemsize, reverse=True)
        parts = [bytes_of(tensors[n]) for n in numbers]
        sizes = [len(part) for part in parts]
        arrived = _transferred(parts, source, device)
        for n, part in zip(numbers, arrived.split(sizes), strict=True):
            tensor = tensors[n].detach()
            copy = torch.empty_like(tensor, device=device)
            copies[n] = copy.copy_(part.view(tensor.dtype).view(tensor.shape))
    return [copies[n] for n in range(len(tensors))]


def values_of(numbers: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors of one number each.

    >>> values_of([torch.tensor(0.5), torch.tensor(2.0)])
    [0.5, 2.0]
    """
    return [number.item() for number in on_cpu(list(numbers))]


def names_not_finite(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or an infinity.

    >>> names_not_finite({"w": torch.ones(2), "b": torch.tensor([1.0, np.inf])})
    ['b']
    """
    flags = values_of([tensor.isfinite().all() for tensor in weights.values()])
    return [name for name, is_finite in zip(weights, flags, strict=True) if not is_finite]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as a vector, in the order of its entries; no copy where they lie so.

    >>> bytes_of(torch.tensor([[1, 258]], dtype=torch.int16))
    tensor([1, 0, 2, 1], dtype=torch.uint8)
    """
    content = tensor.detach().contiguous()
    # A tensor of one value, or of none, may have any stride.
    return content.as_strided((content.numel(),), (1,)).view(torch.uint8)


def _transferred(
    parts: list[torch.Tensor], source: torch.device, device: torch.device
) -> torch.Tensor:
    """The bytes of all ``parts``, end to end, on ``device``; they lie on ``source``."""
    total = sum(len(part) for part in parts)
    crosses_bus = "cuda" in (source.type, device.type)
    packed = _buffer(total, source, is_pinned=crosses_bus and source.type == "cpu")
    torch.cat(parts, out=packed)
    arrived = _buffer(total, device, is_pinned=crosses_bus and device.type == "cpu")
    arrived.copy_(packed, non_blocking=crosses_bus)
    if source.type == "cuda":
        # The only wait. What a GPU receives is there before the GPU uses it, without one.
        torch.cuda.current_stream(source).synchronize()
    return arrived


def _buffer(size: int, device: torch.device, is_pinned: bool) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=is_pinned)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a nested value, in the order of :func:`_copied`."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _copied(value: Any, arrived: Iterator[torch.Tensor]) -> Any:
    """As :func:`on_cpu`; ``arrived`` yields the copies of the tensors that lie elsewhere."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.is_cpu else next(arrived)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _copied(item, arrived) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, arrived) for item in value)
    return value
