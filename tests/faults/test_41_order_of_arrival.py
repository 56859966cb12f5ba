# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 41: replies that arrive in any order give the same bits; a hundred random orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.least_squares_federation import clients, federation, ledger_bytes

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.transports.in_process import InProcess


class Shuffled(InProcess):
    """Replies arrive in a random order."""

    def __init__(self, seed: int):
        super().__init__(clients())
        self.random = random.Random(seed)
        self.orders: set[tuple[str, ...]] = set()

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        replies: list[Reply] = []
        super().exchange(requests, replies.append, timeout)
        self.random.shuffle(replies)
        self.orders.add(tuple(reply.client for reply in replies))
        for reply in replies:
            arrived(reply)


@pytest.mark.slow
def test_a_hundred_orders_of_arrival_give_the_same_bits(tmp_path: Path) -> None:
    federation(tmp_path / "plain", rounds=2).run()
    orders: set[tuple[str, ...]] = set()
    for seed in range(100):
        transport = Shuffled(seed)
        federation(tmp_path / str(seed), transport=transport, rounds=2).run()
        assert ledger_bytes(tmp_path / str(seed)) == ledger_bytes(tmp_path / "plain")
        orders |= transport.orders
    assert len(orders) == 6
