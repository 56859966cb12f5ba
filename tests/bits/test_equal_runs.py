# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Equal runs have equal records, whatever the order of replies or the number of workers."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import odd_federation
from helpers.faulty_transports import ReorderingTransport
from helpers.least_squares_federation import (
    clients,
    federation,
    ledger_bytes,
)

from monai_fairfl import Reply, Request
from monai_fairfl.strategies import CGSV, FedAvg, FedCE, Strategy


def test_the_same_seed_gives_the_same_bits_and_another_one_others(tmp_path: Path) -> None:
    state: Any = torch.random.get_rng_state()
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        federation(tmp_path / name, seed=seed).run()
    one = ledger_bytes(tmp_path / "one")
    assert ledger_bytes(tmp_path / "two") == one
    assert ledger_bytes(tmp_path / "three") != one
    assert torch.equal(state, torch.random.get_rng_state())


def test_no_order_of_arrival_changes_a_bit(tmp_path: Path) -> None:
    federation(tmp_path / "plain", rounds=2).run()
    for number, order in enumerate(permutations(range(3))):
        shuffling = ReorderingTransport(clients(), order)
        federation(tmp_path / str(number), transport=shuffling, rounds=2).run()
        assert ledger_bytes(tmp_path / str(number)) == ledger_bytes(tmp_path / "plain")


@pytest.mark.parametrize("strategy", [FedCE, CGSV])
def test_no_order_of_tensors_changes_a_bit(strategy: type[Strategy], tmp_path: Path) -> None:
    def backwards(request: Request, reply: Reply) -> Reply:
        if reply.update is None or reply.buffers is None:
            return reply
        update = dict(reversed(list(reply.update.items())))
        return replace(reply, update=update, buffers=dict(reversed(list(reply.buffers.items()))))

    odd_federation.federation(strategy(), tmp_path / "one").run()
    faults = {"ash": backwards, "oak": backwards}
    odd_federation.federation(strategy(), tmp_path / "other", faults=faults).run()
    assert ledger_bytes(tmp_path / "other") == ledger_bytes(tmp_path / "one")


def test_clients_are_drawn_by_seed_and_round(tmp_path: Path) -> None:
    def drawn(folder: Path, **settings: Any) -> list[tuple[str, ...]]:
        run = federation(folder, FedAvg(), clients_per_round=2, rounds=12, **settings).run()
        return [tuple(record["clients"]) for record in run.rounds]

    first = drawn(tmp_path)
    assert {len(of_round) for of_round in first} == {2} and len(set(first)) == 3
    assert drawn(tmp_path / "again") == first
    assert drawn(tmp_path / "other", seed=1) != first
