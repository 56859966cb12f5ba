# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Attacks on a federation of eight sites: on its model, and on the score of the attacker.

With the default guards one attacker leaves the honest sites most of the Dice that they gain among
themselves, and gains neither weight nor credit. ``benchmarks/attacks.py`` has all methods and many
seeds; here each attack meets one method of each kind. Beside them stand honest controls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attacks
import numpy as np
import pytest
from attackers import (
    ATTACKS,
    SLEEPS_UNTIL,
    Attack,
    Change,
    Scene,
    Update,
    multiplied,
    scaled,
    weighted_sum,
    with_update,
)
from attacks import SITES, STRATEGIES, VICTIM
from helpers.attacked_federation import ROUNDS, federation_of, progress

from monai_fairfl import Federation, Reply, Strategy
from monai_fairfl.strategies import FedAvg, FedCE, Median

Records = Sequence[Mapping[str, Any]]
Chance = np.random.Generator


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Federation]:
    """Number of sites, method, with default guards, rounds -> an honest federation that has run."""

    @cache
    def made(
        count: int, method: str = "FedAvg", guarded: bool = False, rounds: int = ROUNDS
    ) -> Federation:
        folder = tmp_path_factory.mktemp("honest") / "run"
        settings: dict[str, Any] = {"rounds": rounds} | ({} if guarded else {"guards": ()})
        run = federation_of(STRATEGIES[method](), folder, sites=SITES[:count], **settings)
        run.run()
        return run

    return made


def rounds_of(run: Federation) -> Records:
    return run.run(resume=True).rounds  # it is finished: nobody is asked


# --- attacks on the model


def replacing_model(reply: Reply, update: Update, scene: Scene, chance: Chance) -> Reply:
    """Sends what makes the average a model of its own: N times the way to it."""
    target = attacks.random_model(np.random.default_rng(99), 60.0)
    way = weighted_sum(target, -1.0, {name: scene.present[name] for name in target})
    return with_update(reply, scaled(way, float(len(SITES))))


FAULTS: dict[str, Change] = {
    "scaled by -100": multiplied(-100.0),
    "model replacement": replacing_model,
}


def gain_left(
    name: str, count: int, honest: Any, folder: Path, strategy: Strategy | None = None, **given: Any
) -> float:
    """The share of the honest sites' gain in Dice that so many attackers leave."""
    sites = SITES[: len(SITES) - count]
    attack = Attack(FAULTS[name], sites=count, hospitals=count)
    run = federation_of(strategy or FedAvg(), folder / "run", attack, **given)
    assert run.run().finished
    return progress(run, sites) / progress(honest(len(sites)), sites)


@pytest.mark.parametrize("name", FAULTS)
def test_default_guards_leave_the_honest_sites_their_gain(
    name: str, honest: Any, tmp_path: Path
) -> None:
    assert gain_left(name, 1, honest, tmp_path) > 0.8
    # Three take it where nothing is guarded, and a robust rule bounds what they take.
    assert gain_left(name, 3, honest, tmp_path / "3", guards=()) < -1.0
    robust = FedAvg(average=Median())
    assert gain_left(name, 3, honest, tmp_path / "robust", robust, guards=()) > 0.35


# --- attacks on the score

LEFT_OUT = ("num_samples 1e9", "report of 1e9", "plausible false report", "x10", "Inf")
"""Counts and reports are checked where they arrive, by no guard; of two that are alike, one is left
out.
"""

CASES = [("FedAvg", name) for name in ATTACKS if name not in LEFT_OUT]
CASES += [("FedCE", "copy"), ("CGSV", "a site that sinks another"), ("ShapFed", "copy")]


def credit(rounds: Records, clients: Sequence[str]) -> float:
    """The clients' share of the positive contributions of the last round."""
    values = {}
    for client, value in rounds[-1]["contributions"].items():
        number = value["value"] if isinstance(value, Mapping) else value
        values[client] = max(float(number), 0.0)
    return sum(values.get(client, 0.0) for client in clients) / (sum(values.values()) or 1.0)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_the_attacker_gains_nothing_and_is_found_and_nobody_else_is(
    method: str, name: str, honest: Any, tmp_path: Path
) -> None:
    attack = ATTACKS[name]
    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    run = federation_of(STRATEGIES[method](), tmp_path, attack, rounds=max(ROUNDS, begins + 2))
    rounds = run.run().rounds
    guilty, honest_sites = attacks.attackers_of(attack), attacks.honest_sites_of(attack)

    # Neither weight nor step nor credit of the attackers is above that of honest sites.
    alone = rounds_of(honest(len(honest_sites), method, True, len(rounds)))
    hospitals = honest_sites[-attack.hospitals :]
    gained = (*attacks.mean_shares(rounds, guilty), credit(rounds, guilty))
    own = (*attacks.mean_shares(alone, hospitals), credit(alone, hospitals))
    assert all(one <= 1.05 * other for one, other in zip(gained, own, strict=True))

    found = attacks.verdicts_on(rounds, guilty)
    assert any(begins <= number <= begins + 3 for number in found)
    victims = [VICTIM] if name == "copy" else []
    innocent = [site for site in SITES if site not in (*guilty, *victims)]
    assert attacks.verdicts_on(rounds, innocent) == []
    if name == "a site that sinks another":
        alone = rounds_of(honest(len(SITES) - 1, method, True))
        kept, before = (attacks.mean_shares(records, [VICTIM])[0] for records in (rounds, alone))
        assert kept >= 0.95 * before
        assert credit(rounds, [VICTIM]) >= 0.95 * credit(alone, [VICTIM])


# --- several guards together


def test_no_guard_acts_on_honest_sites_or_on_an_honest_outlier(honest: Any, tmp_path: Path) -> None:
    for method in ("FedAvg", "FedCE"):
        assert attacks.verdicts_on(rounds_of(honest(len(SITES), method, True)), SITES) == []
    models = []
    for title, settings in (("guarded", {}), ("plain", {"guards": ()})):
        run = federation_of(FedCE(), tmp_path / title, outlier=True, rounds=4, **settings)
        rounds = list(run.run().rounds)
        assert attacks.verdicts_on(rounds, SITES) == []
        models.append([record["model"] for record in rounds])
    # Not a bit is another.
    assert models[0] == models[1]
