# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors on another device, and what their entries hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")


def on_cpu(value: Any) -> Any:
    """A deep copy with every tensor on the CPU, and NumPy's numbers as Python's.

    ``torch.load`` reads such values again with ``weights_only=True``.

    >>> on_cpu([{"w": torch.ones(1), "lr": np.float64(0.5)}])
    [{'w': tensor([1.]), 'lr': 0.5}]
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to(CPU, copy=True)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(item) for item in value)
    return value


def moved(weights: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """``weights`` with every tensor on ``device``; those that lie there are not copied.

    >>> moved({"w": torch.ones(1)}, CPU)
    {'w': tensor([1.])}
    """
    return {name: tensor.to(device) for name, tensor in weights.items()}


def names_not_finite(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or an infinity.

    >>> names_not_finite({"w": torch.ones(2), "b": torch.tensor([1.0, np.inf])})
    ['b']
    """
    return [name for name, tensor in weights.items() if not tensor.isfinite().all()]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as a vector, in the order of its entries; no copy where they lie so.

    >>> bytes_of(torch.tensor([[1, 258]], dtype=torch.int16))
    tensor([1, 0, 2, 1], dtype=torch.uint8)
    """
    content = tensor.detach().contiguous()
    # A tensor of one value, or of none, may have any stride.
    return content.as_strided((content.numel(),), (1,)).view(torch.uint8)
