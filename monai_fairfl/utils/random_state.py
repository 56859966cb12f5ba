# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Random numbers: seeds of a run, and work that leaves the global generators as they were."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


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
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
