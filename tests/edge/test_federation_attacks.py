# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Attacks on a federation of eight sites: on its model, and on the score of the attacker.

With the default guards one attacker leaves the honest sites most of the Dice that they gain among
themselves, and gains neither weight nor credit. ``benchmarks/attacks.py`` has all methods and many
seeds; here each attack meets one method of each kind. Beside them stand honest controls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    multiplied,
    noise,
    scaled,
    weighted_sum,
    with_update,
)
from attacks import ATTACKER, SITES, STRATEGIES, VICTIM
from helpers.attacked_federation import federation_of, innocent_of, progress, progress_of_row

from monai_fairfl import Federation, InProcess, ModelSpec, Reply, Request, Strategy
from monai_fairfl.guards import Copies, Guard, Replayed
from monai_fairfl.strategies import FedAvg, Median

Records = list[Mapping[str, Any]]
Chance = np.random.Generator


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Federation]:
    """Number of sites, method, with default guards -> an honest federation that has run."""
    runs: dict[tuple[int, str, bool], Federation] = {}

    def made(count: int, method: str = "FedAvg", guarded: bool = False) -> Federation:
        key = (count, method, guarded)
        if key not in runs:
            folder = tmp_path_factory.mktemp("honest") / "run"
            settings = {} if guarded else {"guards": ()}
            run = federation_of(STRATEGIES[method](), folder, sites=SITES[:count], **settings)
            run.run()
            runs[key] = run
        return runs[key]

    return made


def rounds_of(run: Federation) -> Records:
    return list(run.run(resume=True).rounds)  # it is finished: nobody is asked


# --- attacks on the model

FLIPPED = ("out.weight", 1)
"""Tensor and row of the class whose labels an attacker exchanges."""


def flipped_labels(reply: Reply, update: Update, scene: Scene, chance: Chance) -> Reply:
    """Trains one class towards the opposite; all else is honest, and so is the length."""
    name, row = FLIPPED
    flipped = update[name].clone()
    flipped[row] *= -1
    return with_update(reply, {**update, name: flipped})


def replacing_model(reply: Reply, update: Update, scene: Scene, chance: Chance) -> Reply:
    """Sends what makes the average a model of its own: N times the way to it."""
    target = attacks.random_model(np.random.default_rng(99), 60.0)
    way = weighted_sum(target, -1.0, {name: scene.present[name] for name in target})
    return with_update(reply, scaled(way, float(len(SITES))))


FAULTS: dict[str, tuple[Change, float, float]] = {
    "flipped sign": (multiplied(-1.0), 0.4, 0.9),
    "scaled by -100": (multiplied(-100.0), -1.0, 0.9),
    "noise": (noise, 0.75, 0.9),
    # No guard finds it: what one site takes is its share of the class, once in each direction.
    "flipped labels": (flipped_labels, 0.5, 0.65),
    "model replacement": (replacing_model, -1.0, 0.8),
}
"""The most of the honest gain that three leave unguarded, the least that one leaves with guards."""


def share_left(
    name: str, count: int, strategy: Strategy, alone: Federation, folder: Path, **settings: Any
) -> float:
    """What so many attackers leave of the honest sites' gain: in Dice, or in the flipped class."""
    sites = SITES[: len(SITES) - count]
    attack = Attack(FAULTS[name][0], sites=count, hospitals=count)
    run = federation_of(strategy, folder / "run", attack, **settings)
    assert run.run().finished
    if name == "flipped labels":
        return progress_of_row(run, sites, *FLIPPED) / progress_of_row(alone, sites, *FLIPPED)
    return progress(run, sites) / progress(alone, sites)


@pytest.mark.parametrize("name", FAULTS)
def test_default_guards_leave_the_honest_sites_their_gain(
    name: str, honest: Any, tmp_path: Path
) -> None:
    _, unguarded, guarded = FAULTS[name]
    assert share_left(name, 1, FedAvg(), honest(len(SITES) - 1), tmp_path) > guarded
    # Three take it where nothing is guarded, and a robust rule bounds what they take.
    assert share_left(name, 3, FedAvg(), honest(5), tmp_path / "3", guards=()) < unguarded
    robust = FedAvg(average=Median())
    assert share_left(name, 3, robust, honest(5), tmp_path / "robust", guards=()) > 0.35


# --- attacks on the score

BY_UPDATES = ("CGSV", "ShapFed")
BY_REPORTS = ("FedCE", "QFedAvg", "FairFed")


def under(attack: Attack, method: str, folder: Path) -> Records:
    """The rounds of a federation that is attacked."""
    run = federation_of(STRATEGIES[method](), folder / "run", attack)
    run.run()
    return rounds_of(run)


def credit(rounds: Records, clients: Sequence[str]) -> float:
    """The clients' share of the positive contributions of the last round."""
    values = {}
    for client, value in rounds[-1]["contributions"].items():
        number = value["value"] if isinstance(value, Mapping) else value
        values[client] = max(float(number), 0.0)
    return sum(values.get(client, 0.0) for client in clients) / (sum(values.values()) or 1.0)


def require_no_gain(attack: Attack, rounds: Records, honest: Any, method: str) -> None:
    """Neither weight nor step nor credit of the attackers is above that of honest sites."""
    alone = rounds_of(honest(len(attacks.honest_sites_of(attack)), method, True))
    guilty = attacks.attackers_of(attack)
    hospitals = attacks.honest_sites_of(attack)[-attack.hospitals :]
    gained = (*attacks.mean_shares(rounds, guilty), credit(rounds, guilty))
    own = (*attacks.mean_shares(alone, hospitals), credit(alone, hospitals))
    assert all(one <= 1.05 * other for one, other in zip(gained, own, strict=True))


OF_THE_SCORE = ["noise of honest length", "copy", "sleeper", "a site that sinks another"]


@pytest.mark.parametrize("method", BY_UPDATES)
@pytest.mark.parametrize("name", OF_THE_SCORE)
def test_the_attacker_gains_nothing_and_is_found_and_nobody_else_is(
    name: str, method: str, honest: Any, tmp_path: Path
) -> None:
    attack = ATTACKS[name]
    rounds = under(attack, method, tmp_path)
    require_no_gain(attack, rounds, honest, method)
    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    found = attacks.verdicts_on(rounds, attacks.attackers_of(attack))
    assert any(begins <= number <= begins + 3 for number in found)
    assert attacks.verdicts_on(rounds, innocent_of(attack)) == []
    if name == "a site that sinks another":
        alone = rounds_of(honest(len(SITES) - 1, method, True))
        kept, before = (attacks.mean_shares(records, [VICTIM])[0] for records in (rounds, alone))
        assert kept >= 0.95 * before
        assert credit(rounds, [VICTIM]) >= 0.95 * credit(alone, [VICTIM])


def reporting(value: float) -> Change:
    """The same number in place of everything that was measured."""

    def change(reply: Reply, update: Update, scene: Scene, chance: Chance) -> Reply:
        return replace(reply, measurements=dict.fromkeys(reply.measurements, value))

    return change


@pytest.mark.parametrize("method", BY_REPORTS)
def test_a_report_out_of_its_range_is_dropped_and_brings_nothing(
    method: str, honest: Any, tmp_path: Path
) -> None:
    for value in (1e9, -1e9):
        attack = Attack(reporting(value), reports=True)
        rounds = under(attack, method, tmp_path / str(value))
        require_no_gain(attack, rounds, honest, method)
        assert all(set(record["dropped"]) == {ATTACKER} for record in rounds)


@pytest.mark.parametrize("method", BY_UPDATES)
def test_plausible_false_reports_bring_nothing_where_reports_do_not_count(
    method: str, honest: Any, tmp_path: Path
) -> None:
    attack = Attack(reporting(1.0), sites=2, hospitals=2, reports=True)
    plain = rounds_of(honest(len(SITES), method, True))
    for record, alone in zip(under(attack, method, tmp_path), plain, strict=True):
        assert (record["aggregation"], record["model"]) == (alone["aggregation"], alone["model"])


def test_a_plausible_false_report_is_not_found_where_reports_decide(
    honest: Any, tmp_path: Path
) -> None:
    """No statistic can verify a number that a site alone can know."""
    rounds = under(ATTACKS["plausible false report"], "FedCE", tmp_path)
    gained, _ = attacks.mean_shares(rounds, [ATTACKER])
    alone = rounds_of(honest(len(SITES), "FedCE", True))
    own, _ = attacks.mean_shares(alone, [ATTACKER])
    assert gained > 1.3 * own and attacks.verdicts_on(rounds, [ATTACKER]) == []


# --- several guards together


SIZE = 1200
SPEC = ModelSpec(("w",))


class Steady:
    """Goes on in its own direction, or sends the last global step times a factor.

    Args:
        direction: its own.
        samples: its images.
        replayed: the factor; 0: it is honest.
    """

    def __init__(self, direction: torch.Tensor, samples: int, replayed: float):
        self.direction = direction
        self.samples = samples
        self.replayed = replayed
        self.previous: torch.Tensor | None = None

    def answer(self, request: Request) -> Reply:
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(request.client, None, 0, **echo)
        received = request.weights["w"]
        chance = torch.Generator().manual_seed(request.seed)
        update = self.direction + 0.2 * torch.randn(SIZE, generator=chance)
        if self.replayed and self.previous is not None:
            update = self.replayed * (received - self.previous)
        self.previous = received.clone()
        return Reply(request.client, {"w": update}, self.samples, **echo)


def sites_of(names: str, replayed: dict[str, float]) -> dict[str, Steady]:
    """Honest sites, of which b has most of the images, and those that replay, by a factor."""
    directions = torch.randn(len(names), SIZE, generator=torch.Generator().manual_seed(0))
    sites = {}
    for name, direction in zip(names, directions, strict=True):
        sites[name] = Steady(direction, 850 if name == "b" else 50, replayed.get(name, 0.0))
    return sites


def federation(
    folder: Path, sites: dict[str, Steady], guards: Sequence[Guard], rounds: int
) -> Federation:
    """A federation whose sites live longer than its transport."""
    makers = {name: lambda site=site: site for name, site in sites.items()}
    initial = lambda: ({"w": torch.zeros(SIZE)}, SPEC)  # noqa: E731
    settings: dict[str, Any] = {"evaluate": (), "final": (), "guards": guards}
    return Federation(
        FedAvg(), InProcess(makers), rounds, initial, run_dir=folder / "run", **settings
    )


@pytest.mark.parametrize(
    ("names", "replayed"),
    [
        # The group of the two has the attacker's name, or the hospital's.
        ("abcd", {"a": 1.0}),
        ("abcd", {"c": 1.0}),
        # One hospital under two names, and under so many that most send the same.
        ("abcd", {"a": 1.0, "c": 1.5}),
        ("abcdef", {"a": 1.0, "c": 1.0, "e": 1.0, "f": 1.0}),
    ],
)
def test_who_sends_the_last_step_is_found_and_not_the_hospital_that_dominates_it(
    names: str, replayed: dict[str, float], tmp_path: Path
) -> None:
    """Also after a restart: guards remember, and those that were given stay new."""
    guards = [Copies(), Replayed()]
    fresh = guards[1].state_dict()
    sites = sites_of(names, replayed)
    federation(tmp_path, sites, guards, rounds=1).run()
    assert guards[1].state_dict() == fresh
    first, second = federation(tmp_path, sites, guards, rounds=2).run(resume=True).rounds
    assert first["verdicts"] == {} and first["missing"] == {}
    honest = [name for name in names if name not in replayed]
    assert list(second["aggregation"]) == honest
    images = {name: 850 if name == "b" else 50 for name in honest}
    for name in honest:
        assert second["aggregation"][name] == pytest.approx(images[name] / sum(images.values()))
    assert set(second["verdicts"]) == set(second["missing"]) == set(replayed)
    for name in replayed:
        assert {verdict["guard"] for verdict in second["verdicts"][name]} == {"Replayed"}
        assert second["missing"][name].startswith("quarantined")
