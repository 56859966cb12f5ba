# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replies that are lost, late, malformed or poisoned: what of them counts, and what is recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.driving import vector
from helpers.least_squares_federation import (
    Faulty,
    changing,
    federation,
    ledger_bytes,
    ledger_file,
    losing,
)

from monai_fairfl import Reply, Request, Train, read_ledger
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.strategies import CGSV, FedAvg, Rounds, Strategy

QUIET: dict[str, Any] = {"evaluate": (), "final": ()}


class Lost(dict[str, Any]):
    """Tensors that wait on a disk, and whose files are gone."""

    def __getitem__(self, name: str) -> Any:
        raise OSError(f"the file of {name!r} is gone")


def trained_by_b_in_round_1(request: Request) -> bool:
    return (request.client, request.round, request.task) == ("B", 1, "train")


# --- one client's reply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, ["timeout"]),
        ({"update": Lost(w=None)}, ["error", "'w'", "read"]),
        ({"measurements": None}, ["refused", "measurements", "NoneType"]),
        ({"update": {"w": vector([math.nan, 0.0])}}, ["quarantined", "'w'"]),
    ],
)
def test_a_bad_reply_is_left_out_with_its_reason_and_the_others_go_on(
    tmp_path: Path, change: Any, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad = losing(trained_by_b_in_round_1)
    if change is not None:
        bad = changing(trained_by_b_in_round_1, **change)
    history = federation(tmp_path, transport=bad).run()
    reason = history.rounds[1]["missing"]["B"]
    assert all(word in reason for word in words) and len(reason) < 500
    assert caplog.text.count("client B") == (change is not None)
    present = ["".join(record["aggregation"]) for record in history.rounds]
    assert present == ["ABC", "AC", "ABC", "ABC"]
    assert len(set(history.rounds[3]["aggregation"].values())) == 3


# --- replies that do not belong to the exchange


def test_a_client_that_scores_only_the_global_model_at_the_end_is_missing(tmp_path: Path) -> None:
    lost = losing(lambda request: request.client == "A" and bool(request.context.get("closing")))
    end = federation(tmp_path, CGSV(gamma=None), lost, final=["score"]).run().records[-1]
    assert end["missing"] == {"A": "timeout"} and [*end["scores"]["A"]] == ["global"]


def test_a_second_or_foreign_answer_does_not_count(tmp_path: Path) -> None:
    def answer_twice_and_for_another(request: Request, reply: Reply) -> Sequence[Reply]:
        second = replace(reply, num_samples=999)
        foreign = replace(reply, client="B" if request.client == "A" else "A")
        return [foreign, reply, second, foreign]

    federation(tmp_path / "plain").run()
    federation(tmp_path / "twice", transport=Faulty(answer_twice_and_for_another)).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "twice")


def test_a_late_answer_does_not_stand_in_for_the_own_one_of_a_round(tmp_path: Path) -> None:
    """Over a transport that hands it to the present exchange: ids begin at 0 in every round."""
    late: list[Reply] = []

    def delay(request: Request, reply: Reply) -> Sequence[Reply]:
        if (request.client, request.round) == ("B", 0):
            poisoned = {"w": vector([99.0, 99.0])}
            late.append(replace(reply, update=poisoned, num_samples=500))
            return []
        return [*late, reply, *late] if request.round == 1 else [reply]

    run = federation(tmp_path / "late", FedAvg(), Faulty(delay), **QUIET).run()
    lost = losing(lambda request: (request.client, request.round) == ("B", 0))
    assert run.rounds == federation(tmp_path / "lost", FedAvg(), lost, **QUIET).run().rounds
    assert run.rounds[0]["missing"] == {"B": "timeout"} and run.rounds[1]["missing"] == {}


# --- too few replies


def test_below_min_clients_for_good_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    asked: list[str] = []

    def gone(request: Request) -> bool:
        asked.extend([request.client] if request.round == 2 else [])
        return request.round == 2 and request.client != "A"

    with pytest.raises(FederationError, match="1 of 3 .*B.*C.*timeout") as error:
        federation(tmp_path / "parts", transport=losing(gone), retries=2).run()
    assert "--resume True" in str(error.value) and "done: 2" in str(error.value)
    assert len(asked) == 9
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


# --- models that are not finite


def test_a_round_without_a_finite_model_fails_with_the_tensor_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """B's update of round 1 is not finite, and no guard looks at it."""
    settings: dict[str, Any] = {"guards": (), "record_updates": True}
    poisoned = changing(trained_by_b_in_round_1, update={"w": vector([-math.inf, -1.0])})
    with pytest.raises(FederationError, match="round 1.*'w'"):
        federation(tmp_path / "parts", FedAvg(), poisoned, **settings).run()
    records = read_ledger(ledger_file(tmp_path / "parts"))
    assert [record["kind"] for record in records] == ["start", "round"]
    assert not (tmp_path / "parts" / "run" / "updates" / "round-0001").exists()

    # The site was mended: the run goes on as if nothing had happened.
    federation(tmp_path / "parts", FedAvg(), **settings).run(resume=True)
    federation(tmp_path / "whole", FedAvg(), **settings).run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


# --- strategies that slip


class WithoutYield(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        return [Train(client, self.weights) for client in clients]


class Remembering(FedAvg):
    """Keeps a number of NumPy in its state, which no checkpoint can hold."""

    seen: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        self.seen = dict.fromkeys(clients, np.float32(0.5))
        return result


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (WithoutYield(), "WithoutYield.*yield.*list"),
        (Remembering(), "Remembering.*seen.*float32"),
    ],
)
def test_a_slip_in_a_round_is_named_before_anything_of_it_is_recorded(
    tmp_path: Path, strategy: Strategy, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        federation(tmp_path, strategy).run()
    assert [record["kind"] for record in read_ledger(ledger_file(tmp_path))] == ["start"]
