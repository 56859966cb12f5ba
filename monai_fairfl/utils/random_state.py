# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Random numbers: seeds that derive from (run seed, client, round), and work that leaves the global
state alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_of(seed: int, client: str, number: int) -> int:
    """The seed of ``client``'s work in round ``number``: 31 bits of SHA-256 of (run seed, client,
    round).

    >>> seed_of(0, "A", 0) == seed_of(0, "A", 0) != seed_of(0, "A", 1)
    True
    """
    return (
        int.from_bytes(hashlib.sha256(f"{seed}/{client}/{number}".encode()).digest()[:4], "big")
        >> 1
    )


@contextlib.contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """All global generators under ``seed`` inside, as they were after: a measured training equals
    an unmeasured one.
    """
    python, numpy = random.getstate(), np.random.get_state()
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
