# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 41: replies that arrive in any order give the same bits; a hundred random orders."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from helpers.faulty_transports import ReorderingTransport
from helpers.least_squares_federation import clients, federation, ledger_bytes

from monai_fairfl.protocol.messages import Reply


@pytest.mark.slow
def test_a_hundred_orders_of_arrival_give_the_same_bits(tmp_path: Path) -> None:
    federation(tmp_path / "plain", rounds=2).run()
    orders: set[tuple[str, ...]] = set()
    chance = random.Random(0)

    def shuffle(replies: list[Reply]) -> None:
        chance.shuffle(replies)
        orders.add(tuple(reply.client for reply in replies))

    for number in range(100):
        shuffling = ReorderingTransport(clients(), shuffle)
        federation(tmp_path / str(number), transport=shuffling, rounds=2).run()
        assert ledger_bytes(tmp_path / str(number)) == ledger_bytes(tmp_path / "plain")
    assert len(orders) == 6
