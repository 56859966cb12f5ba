# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What each action does to weights, contributions, rewards and the ledger of a real federation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attackers
import attacks
import numpy as np
import pytest
from attackers import ATTACKS, Attack
from attacks import ATTACKER, SITES, VICTIM

from monai_fairfl.audit import replay
from monai_fairfl.guards import DEFAULT, Guard, Verdict
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.run_folder.ledger import number_in
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import (
    FedAvg,
    FedCE,
    FedCI,
    LeaveOneOut,
    Standalone,
    Strategy,
)
from monai_fairfl.transports.in_process import InProcess

ROUNDS = 4


def federation(
    folder: Path,
    attack: Attack | None = None,
    strategy: Strategy | None = None,
    guards: Sequence[Guard] = DEFAULT,
    clients: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Federation:
    """A federation of eight sites, the last of which may attack."""
    made: dict[str, Any] = {}

    def maker(name: str) -> Any:
        # Whatever clients remember is forgotten with the first of them.
        if clients is not None:
            return clients[name]
        if name == SITES[0] or not made:
            made.update(attacks.clients_of(SITES, attack, 0, False))
        return made[name]

    makers = {name: partial(maker, name) for name in SITES}
    given = {"seed": 0, "final": (), **settings}
    return Federation(
        strategy or FedAvg(), InProcess(makers), ROUNDS, attacks.initial, guards, folder, **given
    )


def lengths(record: Mapping[str, Any]) -> dict[str, float]:
    """client -> length of the update that the strategy saw."""
    squared = np.diag(np.array(record["gram"]["whole"]))
    return dict(zip(record["gram"]["clients"], np.sqrt(squared), strict=True))


def ledger(folder: Path) -> bytes:
    return (folder / "ledger.jsonl").read_bytes()


class Flag(Guard):
    """Flags one client."""

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        found = [reply for reply in replies if reply.client == ATTACKER]
        return {reply.id: Verdict("flag", "worth a look", {"rounds": 1.0}) for reply in found}


def test_a_quarantined_client_has_no_weight_and_no_contribution(tmp_path: Path) -> None:
    history = federation(tmp_path / "run", ATTACKS["flipped sign"]).run()
    for record in history.rounds:
        assert record["missing"][ATTACKER].startswith("quarantined: its update points against")
        assert record["guards"][ATTACKER].startswith("quarantine: its update points against")
        [verdict] = record["verdicts"][ATTACKER]
        assert verdict["guard"] == "Opposed" and verdict["evidence"]["cosine"] < -0.4
        assert ATTACKER not in record["aggregation"] and ATTACKER not in record["contributions"]
        assert sum(record["aggregation"].values()) == pytest.approx(1)


def test_a_clipped_update_has_the_others_length_and_its_clients_weight(tmp_path: Path) -> None:
    history = federation(tmp_path / "run", ATTACKS["x100"]).run()
    for record in history.rounds:
        found = lengths(record)
        own = found.pop(ATTACKER)
        assert own == pytest.approx(float(np.median(list(found.values()))), rel=1e-5)
        assert record["aggregation"][ATTACKER] == pytest.approx(1 / 8)
        [verdict] = record["verdicts"][ATTACKER]
        assert verdict["action"] == "clip" and verdict["factor"] < 0.02
        assert ATTACKER not in record["missing"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [FedAvg, FedCE])
def test_copies_share_one_weight_and_one_credit(tmp_path: Path, strategy: type[Strategy]) -> None:
    history = federation(tmp_path / "run", ATTACKS["copy"], strategy()).run()
    alone = federation(tmp_path / "alone", None, strategy()).run()
    for record, honest in zip(history.rounds, alone.rounds, strict=True):
        assert record["missing"] == {}
        assert [v["group"] for v in record["verdicts"][ATTACKER]] == [[VICTIM, ATTACKER]]
        assert sorted(record["verdicts"]) == [VICTIM, ATTACKER]
        for values in (record["aggregation"], record["contributions"]):
            assert number_in(values[ATTACKER]) == pytest.approx(number_in(values[VICTIM]), rel=0.05)
            assert set(values) == set(SITES)
        assert sum(record["aggregation"].values()) == pytest.approx(1)
        assert record["aggregation"][ATTACKER] < 0.75 * honest["aggregation"][VICTIM]


def copied_at_last(reply: Reply, update: Any, scene: Any, chance: np.random.Generator) -> Reply:
    """Honest until the last round, and then the victim's update."""
    if reply.round < ROUNDS - 1:
        return reply
    return attackers.copied(reply, update, scene, chance)


@pytest.mark.parametrize(
    ("strategy", "of_round"),
    [
        pytest.param(FedCI, "round_value", marks=[pytest.mark.slow, pytest.mark.long]),
        (LeaveOneOut, "drop"),
    ],
)
def test_what_sites_earned_before_they_were_copied_stays_their_own(
    tmp_path: Path, strategy: type[Strategy], of_round: str
) -> None:
    history = federation(tmp_path / "run", Attack(copied_at_last), strategy()).run()
    assert [ATTACKER in record["verdicts"] for record in history.rounds] == [False] * 3 + [True]
    for site in (VICTIM, ATTACKER):
        total = sum(record["details"][of_round][site] for record in history.rounds)
        if strategy is LeaveOneOut:
            total /= ROUNDS
        assert history.rounds[-1]["contributions"][site] == pytest.approx(total)
    assert not replay(tmp_path / "run").differences


@pytest.mark.parametrize("name", ["copy", "x100"])
def test_where_nothing_is_averaged_nobody_is_compared_with_others(
    tmp_path: Path, name: str
) -> None:
    """Else the yardstick of training alone would have others' updates in it, or shorter ones."""
    guarded = federation(tmp_path / "run", ATTACKS[name], Standalone()).run()
    plain = federation(tmp_path / "plain", ATTACKS[name], Standalone(), guards=()).run()
    for record, other in zip(guarded.rounds, plain.rounds, strict=True):
        assert record["verdicts"] == {} and record["missing"] == {}
        assert record["rewards"] == other["rewards"]


def test_where_nothing_is_averaged_an_update_is_judged_by_itself(tmp_path: Path) -> None:
    history = federation(tmp_path / "run", ATTACKS["NaN"], Standalone()).run()
    for record in history.rounds:
        assert list(record["missing"]) == list(record["verdicts"]) == [ATTACKER]
        assert "is not finite" in record["missing"][ATTACKER]


def test_a_flag_is_recorded_and_changes_no_bit(tmp_path: Path) -> None:
    flagged = federation(tmp_path / "run", guards=[Flag()]).run()
    plain = federation(tmp_path / "plain", guards=()).run()
    for record, other in zip(flagged.rounds, plain.rounds, strict=True):
        assert record["guards"] == {ATTACKER: "flag: worth a look"}
        [verdict] = record["verdicts"][ATTACKER]
        assert verdict["evidence"] == {"rounds": 1.0} and verdict["guard"] == "Flag"
        assert record["model"] == other["model"]
        assert record["aggregation"] == other["aggregation"]


@pytest.mark.slow
def test_without_attack_default_guards_change_no_bit(tmp_path: Path) -> None:
    guarded = federation(tmp_path / "run").run()
    plain = federation(tmp_path / "plain", guards=()).run()
    for record, other in zip(guarded.rounds, plain.rounds, strict=True):
        assert record["verdicts"] == {} and record["model"] == other["model"]


class StopsAt(Observer):
    """Asks a federation to stop after a round."""

    def __init__(self, number: int):
        self.number = number
        self.federation: Federation | None = None

    def record_added(self, record: Mapping[str, Any]) -> None:
        if record.get("round") == self.number and self.federation is not None:
            self.federation.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replay of the last step", "copy"])
def test_a_run_that_was_stopped_and_resumed_has_the_same_ledger(tmp_path: Path, name: str) -> None:
    whole = federation(tmp_path / "whole" / "run", ATTACKS[name]).run()
    assert any(ATTACKER in record["verdicts"] for record in whole.rounds[2:])

    clients = attacks.clients_of(SITES, ATTACKS[name], 0, False)
    stop = StopsAt(1)
    folder = tmp_path / "parts" / "run"
    stop.federation = federation(folder, clients=clients, observer=stop)
    assert not stop.federation.run().finished
    federation(folder, clients=clients).run(resume=True)
    assert ledger(folder) == ledger(tmp_path / "whole" / "run")


def unchanging(reply: Reply, update: Any, scene: Any, chance: np.random.Generator) -> Reply:
    """The first honest update in every round."""
    first = vars(scene).setdefault("first", dict(update))
    return attackers.with_update(reply, first)


def test_a_second_run_of_one_federation_remembers_nothing_of_the_first(tmp_path: Path) -> None:
    again = federation(tmp_path / "run", Attack(unchanging))
    first = again.run()
    assert first.rounds[0]["verdicts"] == {}
    assert "its own previous update" in first.rounds[1]["guards"][ATTACKER]
    written = ledger(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    again.run()
    assert ledger(tmp_path / "run") == written


def test_clients_that_take_part_in_some_rounds_are_judged_by_their_own_last_one(
    tmp_path: Path,
) -> None:
    run = federation(tmp_path / "run", Attack(unchanging), clients_per_round=6)
    asked = [record["round"] for record in run.run().rounds if ATTACKER in record["clients"]]
    records = [record for record in run.ledger.records if record["kind"] == "round"]
    judged = [record["round"] for record in records if ATTACKER in record["verdicts"]]
    assert judged == asked[1:] and judged
