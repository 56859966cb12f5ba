# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replay: the numbers of trained federations, computed again from their ledgers alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faults_of_folders import forge
from helpers.tiny_networks import federation

from monai_fairfl import Reply, Request, Strategy, read_ledger
from monai_fairfl import strategies as shipped
from monai_fairfl.audit import NotInLedgerError, replay
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.replies import normalise, uniform
from monai_fairfl.run import Ledger
from monai_fairfl.strategies import FedAvg, FedCE, Rounds


def times(update: Any, factor: float) -> dict[str, torch.Tensor]:
    return {name: tensor * factor for name, tensor in update.items()}


def test_what_guards_left_out_clipped_and_merged_is_replayed(tmp_path: Path) -> None:
    """Oak copies elm in rounds 0 and 1; beech is not finite in round 0, ash's update long in 2."""
    sent: dict[str, Any] = {}

    def attack(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        sent[request.client] = reply.update
        if request.client == "oak" and request.round < 2:
            return replace(reply, update=times(sent["elm"], 3.0))
        if (request.client, request.round) == ("beech", 0):
            return replace(reply, update=times(reply.update, math.nan))
        if (request.client, request.round) == ("ash", 2):
            return replace(reply, update=times(reply.update, 50.0))
        return reply

    actions = set()
    for record in federation(shipped.CGSV(), tmp_path, attack, rounds=4).run().rounds:
        for verdicts in record["verdicts"].values():
            actions |= {verdict["action"] for verdict in verdicts}
    assert {"quarantine", "clip", "share"} <= actions
    found = replay(tmp_path / "run")
    assert (found.rounds, found.differences) == (4, ())


# --- records that were changed


@pytest.mark.parametrize(
    ("place", "edit"),
    [
        ("aggregation, elm", lambda record: record["aggregation"].pop("elm")),
        ("details, cosine, ash", lambda record: record["details"]["cosine"].update(ash=None)),
        (
            "measurements, elm, global_score",
            lambda record: record["measurements"]["elm"].update(global_score=None),
        ),
        ("details, invented", lambda record: record["details"].update(invented={"ash": 1.0})),
        (
            "measurements, elm, global_score, gland, value",
            lambda record: record["measurements"]["elm"]["global_score"]["gland"].update(value=2),
        ),
    ],
)
def test_a_number_that_is_absent_too_many_or_in_no_reply_is_a_difference(
    place: str, edit: Any, tmp_path: Path
) -> None:
    federation(shipped.CGSV(), tmp_path, rounds=2).run()
    forge(tmp_path / "run", lambda records: edit(records[2]))
    found = replay(tmp_path / "run")
    assert found.differences
    assert all(text.startswith(f"round 1, {place}") for text in found.differences)


@pytest.mark.parametrize(
    ("line", "edit"),
    [
        (2, lambda record: record.update(exchanges=None)),
        (3, lambda record: record.update(gram={"clients": ["ash"]})),
        (3, lambda record: record["exchanges"][0].pop()),
        (3, lambda record: record["exchanges"][0][0].update(task="measure")),
    ],
)
def test_a_record_that_is_none_is_named_and_no_fault_of_the_program(
    line: int, edit: Any, tmp_path: Path
) -> None:
    federation(FedCE(), tmp_path).run()
    forge(tmp_path / "run", lambda records: edit(records[line - 1]))
    with pytest.raises(FederationError, match=f"opening|line {line}|round {line - 2}"):
        replay(tmp_path / "run")


# --- strategies outside the package


class Own(FedAvg):
    """A strategy outside the package, which weighs by the inverse of an update's length."""

    def __init__(self, power: float = 1.0):
        super().__init__()
        self.power = power

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield self.train(clients)
        weights = normalise(local.geometry.norms**-self.power)
        return self.finish(local, weights, weights)


class Peeking(Own):
    """Looks at the updates, which no ledger has."""

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield self.train(clients)
        sums = [float(reply.update["0.bias"].sum()) for reply in local]  # type: ignore[index]
        return self.finish(local, uniform(local), sums)


class Forgetful(Own):
    """Does not store its argument."""

    def __init__(self, strength: float = 1.0):
        super().__init__()


@pytest.fixture
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategies of this file are those of a module that can be imported."""
    monkeypatch.setitem(sys.modules, "own_methods", sys.modules[__name__])
    for kind in (Own, Peeking, Forgetful):
        monkeypatch.setattr(kind, "__module__", "own_methods")


def test_a_strategy_outside_the_package_is_imported_on_request_only(
    tmp_path: Path, own_methods: None
) -> None:
    federation(Own(power=2.0), tmp_path).run()
    opening = read_ledger(tmp_path / "run" / "ledger.jsonl")[0]
    assert opening["configuration"] == {"_target_": "own_methods.Own", "power": 2.0}
    with pytest.raises(ConfigError, match=r"own_methods\.Own"):
        replay(tmp_path / "run")
    found = replay(tmp_path / "run", allow_import=True)
    assert (found.rounds, found.differences) == (3, ())


@pytest.mark.parametrize(
    "written", ["FedAvg(weighting=planted.Mine())", {"_target_": "planted.Mine"}]
)
def test_a_ledger_runs_no_code_that_was_planted_beside_it(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation(FedAvg(), tmp_path).run()
    ledger = Ledger(tmp_path / "run" / "ledger.jsonl")
    opening, *others = ledger.records
    ledger.truncate(0)
    for record in ({**opening, "configuration": written}, *others):
        ledger.append(record)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    (tmp_path / "planted.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"planted\.Mine"):
        replay(tmp_path / "run")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("strategy", "word"),
    [
        (Peeking, "updates themselves"),
        (Forgetful, "arguments"),
    ],
)
def test_a_strategy_that_cannot_be_replayed_is_refused_with_the_reason(
    strategy: type[Strategy], word: str, tmp_path: Path, own_methods: None
) -> None:
    federation(strategy(), tmp_path).run()
    with pytest.raises(NotInLedgerError, match=word):
        replay(tmp_path / "run", allow_import=True)
