# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Equal runs have equal records, whatever the order of replies or the number of workers."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import odd_federation
from helpers.driving import LeastSquares
from helpers.faulty_transports import ReorderingTransport
from helpers.least_squares_federation import (
    ROUNDS,
    TARGETS,
    clients,
    federation,
    ledger_bytes,
    watching,
)

from monai_fairfl import Reply, Request, seed_of
from monai_fairfl.run import Ledger, digest_of
from monai_fairfl.strategies import CGSV, FedAvg, FedCE, Strategy
from monai_fairfl.transports.workers import WorkerClients, dealt_out


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
    orders: set[tuple[str, ...]] = set()
    chance = random.Random(0)

    def shuffle(replies: list[Reply]) -> None:
        chance.shuffle(replies)
        orders.add(tuple(reply.client for reply in replies))

    for number in range(12):
        shuffling = ReorderingTransport(clients(), shuffle)
        federation(tmp_path / str(number), transport=shuffling, rounds=2).run()
        assert ledger_bytes(tmp_path / str(number)) == ledger_bytes(tmp_path / "plain")
    assert len(orders) == 6


@pytest.mark.parametrize("strategy", [FedCE, CGSV])
def test_no_order_of_tensors_changes_a_bit(strategy: type[Strategy], tmp_path: Path) -> None:
    def backwards(request: Request, reply: Reply) -> Reply:
        if reply.update is None or reply.buffers is None:
            return reply
        update = dict(reversed(list(reply.update.items())))
        return replace(reply, update=update, buffers=dict(reversed(list(reply.buffers.items()))))

    odd_federation.federation(strategy(), tmp_path / "one" / "run").run()
    faults = {"ash": backwards, "oak": backwards}
    odd_federation.federation(strategy(), tmp_path / "other" / "run", faults=faults).run()
    assert ledger_bytes(tmp_path / "other") == ledger_bytes(tmp_path / "one")


def test_no_number_of_workers_changes_a_bit(tmp_path: Path) -> None:
    makers = {name: partial(LeastSquares, target) for name, target in TARGETS.items()}
    federation(tmp_path / "plain").run()
    for count in (1, 2):
        workers = WorkerClients(makers, dealt_out(dict.fromkeys(makers, 1), count))
        federation(tmp_path / str(count), transport=workers).run()
        assert ledger_bytes(tmp_path / str(count)) == ledger_bytes(tmp_path / "plain")


def test_clients_are_drawn_by_seed_and_round(tmp_path: Path) -> None:
    def drawn(folder: Path, **settings: Any) -> list[tuple[str, ...]]:
        run = federation(folder, FedAvg(), clients_per_round=2, rounds=12, **settings).run()
        return [tuple(record["clients"]) for record in run.rounds]

    first = drawn(tmp_path)
    assert {len(of_round) for of_round in first} == {2} and len(set(first)) == 3
    assert drawn(tmp_path / "again") == first
    assert drawn(tmp_path / "other", seed=1) != first


def test_requests_carry_seed_run_and_head_and_the_last_ones_the_head_of_the_whole(
    tmp_path: Path,
) -> None:
    seen: list[Request] = []
    federation(tmp_path, transport=watching(seen.append)).run()
    training = [request for request in seen if request.task == "train"]
    assert {request.run for request in seen} == {"run"}
    assert len({request.run_id for request in seen}) == 1 and seen[0].run_id
    seeds = {seed_of(0, c, number) for c in "ABC" for number in range(ROUNDS)}
    assert {request.seed for request in training} == seeds
    assert all("global_score" in request.measure for request in training)
    heads = Ledger(tmp_path / "run" / "ledger.jsonl").heads
    for request in training:
        assert request.ledger_head == heads[request.round]

    closing, last = seen[12:15], seen[15:]
    assert {(request.measure, request.round) for request in closing} == {(("score",), 4)}
    assert {request.ledger_head for request in closing} == {heads[-2]}
    assert [request.client for request in last] == list(TARGETS)
    for request in last:
        assert (request.context, dict(request.weights), request.measure) == ({"ended": 1}, {}, ())
        assert request.ledger_head == heads[-1]


def test_a_digest_depends_on_values_names_types_and_shapes_and_not_on_order() -> None:
    base = {"a": torch.arange(4.0), "b": torch.tensor(1)}
    others = [
        {**base, "a": torch.arange(4.0) + 1e-6},
        {**base, "a": torch.arange(4.0).view(2, 2)},
        # Zeros have the same bytes in both types.
        {**base, "b": torch.tensor(1, dtype=torch.int32)},
        {"A": base["a"], "b": base["b"]},
        {**base, "b": torch.tensor(True)},
    ]
    assert digest_of(base) == digest_of(dict(reversed(base.items())))
    assert len({digest_of(base), *map(digest_of, others)}) == 6
    single, double = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float32)
    assert digest_of({"a": single}) != digest_of({"a": double})
