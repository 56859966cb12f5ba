# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults 26 to 35: what a site gains in weight and credit by an attack.

Real federations of eight sites with default guards, by the fair methods that value updates.
``tests/edge/test_attacks.py`` has the same for FedAvg and FedCE, and ``benchmarks/attacks.py``
for all methods and many seeds. Beside each attack stand honest controls: the same sites without
it, and an honest outlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import attacks
import numpy as np
import pytest
import torch
from attackers import (
    ATTACKS,
    SLEEPS_UNTIL,
    Attack,
    Change,
    Scene,
    Update,
    length_of,
    scaled,
    weighted_sum,
    with_update,
)
from attacks import ATTACKER, SITES, STRATEGIES, VICTIM
from helpers.attacked_federation import federation_of, innocent_of

from monai_fairfl.protocol.messages import Reply

pytestmark = pytest.mark.slow

# Strategies of ``benchmarks/attacks.py``, by what decides their weights.
BY_UPDATES = ("CGSV", "ShapFed")
BY_REPORTS = ("FedCE", "FedCE-sum", "FedISM", "QFedAvg", "AFL", "FairFed")

MOST_GAIN = 1.05

Rounds = list[dict[str, Any]]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Rounds]:
    """Method and number of sites -> the rounds of an honest federation."""
    runs: dict[tuple[str, int], Rounds] = {}

    def rounds(method: str, count: int) -> Rounds:
        if (method, count) not in runs:
            folder = tmp_path_factory.mktemp("honest") / "run"
            run = federation_of(STRATEGIES[method](), folder, sites=SITES[:count])
            runs[method, count] = run.run().rounds
        return runs[method, count]

    return rounds


def under(attack: Attack, method: str, folder: Path, **settings: Any) -> Rounds:
    """The rounds of a federation that is attacked."""
    return federation_of(STRATEGIES[method](), folder / "run", attack, **settings).run().rounds


def require_no_gain(attack: Attack, rounds: Rounds, alone: Rounds) -> None:
    """Neither weight nor step nor credit of the attackers is above that of honest sites."""
    guilty = attacks.attackers_of(attack)
    hospitals = attacks.honest_sites_of(attack)[-attack.hospitals :]
    for gained, own in zip(
        attacks.mean_shares(rounds, guilty), attacks.mean_shares(alone, hospitals), strict=True
    ):
        assert gained <= MOST_GAIN * own
    assert credit(rounds, guilty) <= MOST_GAIN * credit(alone, hospitals)


def credit(rounds: Rounds, clients: Any) -> float:
    """The clients' share of the positive contributions of the last round."""
    values = {}
    for client, value in rounds[-1]["contributions"].items():
        number = value["value"] if isinstance(value, Mapping) else value
        values[client] = max(float(number), 0.0)
    total = sum(values.values()) or 1.0
    return sum(values.get(client, 0.0) for client in clients) / total


@dataclass
class OwnStep:
    """Sends the last step of the models that it was sent: it trains nothing.

    Args:
        length: of what is sent, as a share of the honest length; ``None``: half of the step's own.
    """

    length: float | None
    previous: dict[str, torch.Tensor] = field(default_factory=dict)
    step: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(
        self, reply: Reply, update: Update, scene: Scene, chance: np.random.Generator
    ) -> Reply:
        # The scene's last request is the attacker's own.
        sent = {name: scene.asked[name].double() for name in update}
        if self.previous:
            step = weighted_sum(sent, -1.0, self.previous)
            # A method with rewards sends a site that did not count the same model again.
            if length_of(step) > 0:
                self.step = step
        self.previous = sent
        if not self.step:
            return reply
        if self.length is None:
            return with_update(reply, scaled(self.step, 0.5))
        factor = self.length * length_of(update) / length_of(self.step)
        return with_update(reply, scaled(self.step, factor))


FAULTS: dict[str, Attack] = {
    "26 noise": ATTACKS["noise of honest length"],
    "27 zeros": ATTACKS["zeros"],
    "30 copy": ATTACKS["copy"],
    "31 three identities": ATTACKS["three identities"],
    "32 sleeper": ATTACKS["sleeper"],
    "35 a site that sinks another": ATTACKS["a site that sinks another"],
}


OF_THE_STEP: dict[str, float | None] = {"28 replay of the last step": 1.0, "29 delta weights": None}


def attack_of(name: str) -> Attack:
    """The attack of a fault; those of the step remember, and are made for one run."""
    return Attack(OwnStep(OF_THE_STEP[name])) if name in OF_THE_STEP else FAULTS[name]


@pytest.mark.slow
@pytest.mark.parametrize("method", BY_UPDATES)
@pytest.mark.parametrize("name", [*FAULTS, *OF_THE_STEP])
def test_the_attacker_gains_nothing_and_is_found_and_nobody_else_is(
    name: str, method: str, honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    attack = attack_of(name)
    rounds = under(attack, method, tmp_path)
    require_no_gain(attack, rounds, honest(method, len(attacks.honest_sites_of(attack))))

    begins = SLEEPS_UNTIL if name == "32 sleeper" else 0
    found = attacks.verdicts_on(rounds, attacks.attackers_of(attack))
    assert any(begins <= number <= begins + 3 for number in found)
    assert attacks.verdicts_on(rounds, innocent_of(attack)) == []


def test_29_delta_weights_are_found_with_the_reason(tmp_path: Path) -> None:
    for record in under(attack_of("29 delta weights"), "FedAvg", tmp_path)[1:]:
        assert "its update repeats the last global step" in record["guards"][ATTACKER]


def test_32_the_sleeper_is_found_in_the_round_in_which_it_begins(tmp_path: Path) -> None:
    rounds = under(FAULTS["32 sleeper"], "FedAvg", tmp_path)
    found = attacks.verdicts_on(rounds, [ATTACKER])
    assert found == list(range(SLEEPS_UNTIL, len(rounds)))


# --- reports


def reporting(value: float) -> Change:
    """The same number in place of everything that was measured."""

    def change(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
        return replace(reply, measurements=dict.fromkeys(reply.measurements, value))

    return change


@pytest.mark.parametrize("value", [1e9, -1e9, 1.0001e3])
@pytest.mark.parametrize("method", BY_REPORTS)
def test_33_a_report_out_of_its_range_is_dropped_noted_and_brings_nothing(
    method: str, value: float, honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    attack = Attack(reporting(value), reports=True)
    rounds = under(attack, method, tmp_path)
    require_no_gain(attack, rounds, honest(method, len(SITES)))
    for record in rounds:
        assert set(record["dropped"]) == {ATTACKER}


@pytest.mark.parametrize("method", ["FedAvg", *BY_UPDATES])
def test_33_a_plausible_false_report_brings_nothing_where_reports_do_not_count(
    method: str, honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    attack = Attack(reporting(1.0), reports=True)
    rounds = under(attack, method, tmp_path)
    for record, plain in zip(rounds, honest(method, len(SITES)), strict=True):
        assert record["aggregation"] == plain["aggregation"]
        assert record["model"] == plain["model"]


def test_33_a_plausible_false_report_is_not_found_where_reports_decide(
    honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    """What SECURITY.md says: no statistic can verify a number that a site alone can know."""
    attack = ATTACKS["plausible false report"]
    rounds = under(attack, "FedCE", tmp_path)
    gained, _ = attacks.mean_shares(rounds, [ATTACKER])
    own, _ = attacks.mean_shares(honest("FedCE", len(SITES)), [ATTACKER])
    assert gained > 1.3 * own and attacks.verdicts_on(rounds, [ATTACKER]) == []


def test_34_two_that_report_for_each_other_change_no_methods_weights_that_value_updates(
    honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    attack = Attack(reporting(1.0), sites=2, hospitals=2, reports=True)
    for method in BY_UPDATES:
        rounds = under(attack, method, tmp_path / method)
        for record, plain in zip(rounds, honest(method, len(SITES)), strict=True):
            assert record["aggregation"] == plain["aggregation"]


def test_34_two_that_send_one_update_share_one_weight(
    honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    attack = ATTACKS["two colluders"]
    rounds = under(attack, "FedAvg", tmp_path)
    require_no_gain(attack, rounds, honest("FedAvg", len(SITES)))
    for record in rounds:
        [verdict] = record["verdicts"][ATTACKER]
        assert verdict["group"] == ["G", "H"]


@pytest.mark.parametrize("method", ["FedAvg", "FedCE", *BY_UPDATES])
def test_35_a_site_that_is_sunk_keeps_its_weight_and_credit(
    method: str, honest: Callable[[str, int], Rounds], tmp_path: Path
) -> None:
    attack = ATTACKS["a site that sinks another"]
    rounds = under(attack, method, tmp_path)
    alone = honest(method, len(SITES) - 1)
    assert (
        attacks.mean_shares(rounds, [VICTIM])[0] >= 0.95 * attacks.mean_shares(alone, [VICTIM])[0]
    )
    assert credit(rounds, [VICTIM]) >= 0.95 * credit(alone, [VICTIM])


# --- honest controls


@pytest.mark.parametrize("method", ["FedAvg", "FedCE", *BY_UPDATES])
def test_an_honest_outlier_has_the_weight_that_it_has_without_guards(
    method: str, tmp_path: Path
) -> None:
    guarded = federation_of(STRATEGIES[method](), tmp_path / "guarded" / "run", outlier=True)
    free = federation_of(STRATEGIES[method](), tmp_path / "free" / "run", outlier=True, guards=())
    for record, plain in zip(guarded.run().rounds, free.run().rounds, strict=True):
        assert record["verdicts"] == {} and record["dropped"] == {}
        for key in ("aggregation", "contributions", "model"):
            assert record[key] == plain[key]


def test_an_honest_site_that_trains_some_layers_only_is_no_attacker(tmp_path: Path) -> None:
    """A frozen encoder: three quarters of its update are zero in every round (fault 20)."""

    def frozen(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
        kept = {name: update[name] for name in update if not name.startswith("encoder")}
        zeros = {name: 0 * update[name] for name in update if name.startswith("encoder")}
        return replace(reply, update={**zeros, **kept})

    rounds = under(Attack(frozen), "FedAvg", tmp_path)
    assert attacks.verdicts_on(rounds, SITES) == []
