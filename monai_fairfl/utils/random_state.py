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
    """The seed of a client's work in a round: 31 bits of SHA-256 of (run seed, client, round).

    >>> seed_of(0, "A", 0) == seed_of(0, "A", 0) != seed_of(0, "A", 1)
    True
    """
    digest = hashlib.sha256(f"{seed}/{client}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@contextlib.contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Seed all global generators inside; they are as they were afterwards.

    So a training that is measured equals one that is not.

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
