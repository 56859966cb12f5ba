# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def on_cpu(value: Any) -> Any:
    """A deep copy with every tensor on the CPU, and NumPy's numbers as Python's.

    ``torch.load`` reads such values again with ``weights_only=True``.

    >>> on_cpu([{"w": torch.ones(1), "lr": np.float64(0.5)}])
    [{'w': tensor([1.]), 'lr': 0.5}]
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(item) for item in value)
    return value
