# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Nobody gains by an attack that guards can see, and what each action does to a run.

A short form of ``benchmarks/attacks.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attackers
import attacks
import numpy as np
import pytest
from attackers import ATTACKS, SLEEPS_UNTIL, Attack
from attacks import ATTACKER, SITES, STRATEGIES, VICTIM
from helpers.attacked_federation import federation_of

from monai_fairfl import Replies, Reply, Strategy
from monai_fairfl.audit import replay
from monai_fairfl.guards import DEFAULT, Guard, Verdict
from monai_fairfl.server import Observer
from monai_fairfl.strategies import FedAvg, FedCE, LeaveOneOut, Standalone

ROUNDS = 7
SEED = 3
NOT_FOR_GUARDS = ("num_samples 1e9", "report of 1e9", "plausible false report")
"""Sample counts and reports are checked where they arrive; no guard looks at them."""

BY_GUARDS = [name for name in ATTACKS if name not in NOT_FOR_GUARDS]
CASES = [("FedAvg", name) for name in BY_GUARDS]
CASES += [("FedCE", name) for name in ("flipped sign", "copy", "a site that sinks another")]


@cache
def honest(method: str, sites: int) -> attacks.Records:
    """The rounds of the first sites without attack."""
    run = attacks.with_federation(STRATEGIES[method], DEFAULT, ROUNDS)
    return run(attacks.clients_of(SITES[:sites], None, SEED, False), SEED)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_no_attacker_gains(method: str, name: str) -> None:
    attack = ATTACKS[name]
    run = attacks.with_federation(STRATEGIES[method], DEFAULT, ROUNDS)
    rounds = run(attacks.clients_of(SITES, attack, SEED, False), SEED)
    weight, step = attacks.mean_shares(rounds, attacks.attackers_of(attack))

    alone = honest(method, len(attacks.honest_sites_of(attack)))
    hospitals = attacks.honest_sites_of(attack)[-attack.hospitals :]
    honest_weight, honest_step = attacks.mean_shares(alone, hospitals)
    assert weight / honest_weight < 1.05 and step / honest_step < 1.05

    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    found = attacks.verdicts_on(rounds, attacks.attackers_of(attack))
    assert any(begins <= number <= begins + 3 for number in found)
    victims = [VICTIM] if name == "copy" else []
    innocent = [site for site in SITES if site not in (*attacks.attackers_of(attack), *victims)]
    assert attacks.verdicts_on(rounds, innocent) == []


def test_no_guard_acts_on_honest_sites_or_on_an_honest_outlier(tmp_path: Path) -> None:
    for method in ("FedAvg", "FedCE"):
        for outlier in (False, True):
            found = []
            for guards in (DEFAULT, ()):
                run = attacks.with_federation(STRATEGIES[method], guards, ROUNDS)
                rounds = run(attacks.clients_of(SITES, None, SEED, outlier), SEED)
                assert attacks.verdicts_on(rounds, SITES) == []
                found.append([record["model"] for record in rounds])
            # Not a bit is another.
            assert found[0] == found[1]


# ---- what each action does to weights, contributions, rewards and the ledger

Records = list[Mapping[str, Any]]


def rounds_of(
    folder: Path,
    attack: Attack | None = None,
    strategy: Strategy | None = None,
    **settings: Any,
) -> Records:
    """Three rounds of eight sites, the last of which may attack."""
    given = {"rounds": 3, **settings}
    made = federation_of(strategy or FedAvg(), folder / "run", attack, **given)
    return list(made.run().rounds)


def number(value: Any) -> float:
    return float(value["value"] if isinstance(value, Mapping) else value)


def test_a_quarantined_client_has_no_weight_and_no_contribution(tmp_path: Path) -> None:
    for record in rounds_of(tmp_path, ATTACKS["flipped sign"]):
        assert "quarantine" in record["missing"][ATTACKER]
        [verdict] = record["verdicts"][ATTACKER]
        assert verdict["guard"] == "Opposed" and verdict["evidence"]["cosine"] < -0.4
        assert ATTACKER not in record["aggregation"] and ATTACKER not in record["contributions"]
        assert sum(record["aggregation"].values()) == pytest.approx(1)


def test_a_clipped_update_has_the_others_length_and_its_clients_weight(tmp_path: Path) -> None:
    for record in rounds_of(tmp_path, ATTACKS["x100"]):
        squared = np.diag(np.array(record["gram"]["whole"]))
        found = dict(zip(record["gram"]["clients"], np.sqrt(squared), strict=True))
        own = found.pop(ATTACKER)
        assert own == pytest.approx(float(np.median(list(found.values()))), rel=1e-5)
        assert record["aggregation"][ATTACKER] == pytest.approx(1 / 8)
        [verdict] = record["verdicts"][ATTACKER]
        assert verdict["action"] == "clip" and verdict["factor"] < 0.02
        assert ATTACKER not in record["missing"]


def test_copies_share_one_weight_and_one_credit(tmp_path: Path) -> None:
    copied = rounds_of(tmp_path / "copied", ATTACKS["copy"], FedCE())
    alone = rounds_of(tmp_path / "alone", None, FedCE())
    for record, plain in zip(copied, alone, strict=True):
        assert record["missing"] == {} and sorted(record["verdicts"]) == [VICTIM, ATTACKER]
        assert record["verdicts"][ATTACKER][0]["group"] == [VICTIM, ATTACKER]
        for values in (record["aggregation"], record["contributions"]):
            assert number(values[ATTACKER]) == pytest.approx(number(values[VICTIM]), rel=0.05)
            assert set(values) == set(SITES)
        assert sum(record["aggregation"].values()) == pytest.approx(1)
        assert record["aggregation"][ATTACKER] < 0.75 * plain["aggregation"][VICTIM]


def copied_at_last(reply: Reply, update: Any, scene: Any, chance: np.random.Generator) -> Reply:
    """Honest until the last round, and then the victim's update."""
    return reply if reply.round < 2 else attackers.copied(reply, update, scene, chance)


def test_copies_share_their_credit_in_the_round_and_keep_what_they_earned(tmp_path: Path) -> None:
    records = rounds_of(tmp_path, Attack(copied_at_last), LeaveOneOut())
    assert [ATTACKER in record["verdicts"] for record in records] == [False, False, True]
    for site in (VICTIM, ATTACKER):
        mean = np.mean([record["details"]["drop"][site] for record in records])
        assert number(records[-1]["contributions"][site]) == pytest.approx(mean / 2)
    assert not replay(tmp_path / "run").differences


def test_where_nothing_is_averaged_an_update_is_judged_by_itself(tmp_path: Path) -> None:
    """Else the yardstick of training alone would have others' updates in it, or shorter ones."""
    for name in ("copy", "x100"):
        guarded = rounds_of(tmp_path / name, ATTACKS[name], Standalone())
        plain = rounds_of(tmp_path / f"plain {name}", ATTACKS[name], Standalone(), guards=())
        for record, other in zip(guarded, plain, strict=True):
            assert record["verdicts"] == {} and record["missing"] == {}
            assert record["rewards"] == other["rewards"]
    for record in rounds_of(tmp_path / "NaN", ATTACKS["NaN"], Standalone()):
        assert list(record["missing"]) == list(record["verdicts"]) == [ATTACKER]


class Flag(Guard):
    """Flags one client."""

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        found = [reply for reply in replies if reply.client == ATTACKER]
        return {reply.id: Verdict("flag", "worth a look", {"rounds": 1.0}) for reply in found}


def test_a_flag_is_recorded_and_changes_no_bit(tmp_path: Path) -> None:
    flagged = rounds_of(tmp_path / "flagged", guards=[Flag()])
    plain = rounds_of(tmp_path / "plain", guards=())
    for record, other in zip(flagged, plain, strict=True):
        [verdict] = record["verdicts"][ATTACKER]
        assert (verdict["guard"], verdict["action"]) == ("Flag", "flag")
        assert verdict["evidence"] == {"rounds": 1.0}
        assert record["model"] == other["model"]
        assert record["aggregation"] == other["aggregation"]


def unchanging(reply: Reply, update: Any, scene: Any, chance: np.random.Generator) -> Reply:
    """The first honest update in every round."""
    first = vars(scene).setdefault("first", dict(update))
    return attackers.with_update(reply, first)


class StopsAt(Observer):
    """Asks a federation to stop after a round."""

    def __init__(self, at: int):
        self.at = at
        self.federation: Any = None

    def record_added(self, record: Mapping[str, Any]) -> None:
        if record.get("round") == self.at:
            self.federation.stop()


def test_what_guards_remember_is_of_this_run_and_survives_a_stop(tmp_path: Path) -> None:
    whole = federation_of(FedAvg(), tmp_path / "whole" / "run", Attack(unchanging), rounds=4)
    records = whole.run().rounds
    assert [ATTACKER in record["verdicts"] for record in records] == [False, True, True, True]
    written = (tmp_path / "whole" / "run" / "ledger.jsonl").read_bytes()

    stop = StopsAt(1)
    folder = tmp_path / "parts" / "run"
    stop.federation = federation_of(FedAvg(), folder, Attack(unchanging), rounds=4, observer=stop)
    assert not stop.federation.run().finished
    resumed = federation_of(FedAvg(), folder, rounds=4, fault=as_before(stop.federation))
    resumed.run(resume=True)
    assert (folder / "ledger.jsonl").read_bytes() == written

    # A second run of one federation remembers nothing of the first.
    shutil.rmtree(tmp_path / "whole" / "run")
    whole.run()
    assert (tmp_path / "whole" / "run" / "ledger.jsonl").read_bytes() == written


def as_before(federation: Any) -> Any:
    """The sites of a federation that was stopped go on: they know what they sent first."""
    transport = federation.transport

    def fault(request: Any, reply: Reply) -> Reply:
        return next(transport.ask([request]))

    return fault


def test_clients_that_take_part_in_some_rounds_are_judged_by_their_own_last_one(
    tmp_path: Path,
) -> None:
    records = rounds_of(tmp_path, Attack(unchanging), rounds=5, clients_per_round=6)
    asked = [record["round"] for record in records if ATTACKER in record["clients"]]
    judged = [record["round"] for record in records if ATTACKER in record["verdicts"]]
    assert judged == asked[1:] and judged
