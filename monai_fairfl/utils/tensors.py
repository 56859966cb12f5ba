# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on another device, what their entries hold, and random numbers.

A run has seeds of its own, and work inside :func:`own_random_state` leaves the global generators as
they were.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
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


def labelled_channels(label: torch.Tensor) -> torch.Tensor:
    """(B, C) booleans: whether image b labels structure c, of labels (B, C, ...).

    >>> labelled_channels(torch.tensor([[[[0.0, 1.0]], [[-1.0, -1.0]]]])).tolist()
    [[True, False]]
    """
    return label.flatten(2).amin(2) >= 0


def seed_of(seed: int, client: str, number: int) -> int:
    """Make the seed of a client's work in a round: 31 bits of SHA-256 of the three arguments.

    Args:
        seed: of the run.
        client: name of the client.
        number: of the round, from 0.

    Returns:
        A number from 0 to 2^31 - 1, the same on every machine.

    >>> seed_of(0, "A", 0) == seed_of(0, "A", 0) != seed_of(0, "A", 1)
    True
    """
    digest = hashlib.sha256(f"{seed}/{client}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@contextlib.contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch inside a ``with`` block.

    After the block, they are in the state from before. So a measurement does not change a training.

    Args:
        seed: of the generators, at least 0.

    >>> import torch
    >>> with own_random_state(0):
    ...     first = torch.rand(1)
    >>> with own_random_state(0):
    ...     bool(torch.rand(1) == first)
    True
    """
    python = random.getstate()
    numpy = np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
