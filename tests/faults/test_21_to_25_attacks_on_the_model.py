# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults 21 to 25: what attackers of the model can do to the Dice of the honest sites.

Real federations of eight sites. With the default guards one attacker, under FedAvg and under the
fair methods, and with each robust rule as many as it withstands, leave the honest sites most of the
Dice that they gain among themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import attacks
import numpy as np
import pytest
from attackers import (
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
from attacks import SITES, STRATEGIES
from helpers.attacked_federation import federation_of, progress, progress_of_row

from monai_fairfl.protocol.messages import Reply
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import (
    ClippedMean,
    FedAvg,
    GeometricMedian,
    Krum,
    Median,
    Strategy,
    TrimmedMean,
    compose,
)

pytestmark = pytest.mark.slow

FLIPPED = ("out.weight", 1)
"""Tensor and row of the class whose labels an attacker exchanges."""


def flipped_labels(
    reply: Reply, update: Update, scene: Scene, chance: np.random.Generator
) -> Reply:
    """Trains one class towards the opposite; all else is honest, and so is the length."""
    name, row = FLIPPED
    flipped = update[name].clone()
    flipped[row] *= -1
    return with_update(reply, {**update, name: flipped})


def replacing_model(
    reply: Reply, update: Update, scene: Scene, chance: np.random.Generator
) -> Reply:
    """Sends what makes the average a model of its own: N times the way to it."""
    target = attacks.random_model(np.random.default_rng(99), 60.0)
    way = weighted_sum(target, -1.0, {name: scene.present[name] for name in target})
    return with_update(reply, scaled(way, float(len(SITES))))


@dataclass(frozen=True)
class Fault:
    """An attack on the model.

    Args:
        change: of the attackers' replies.
        left: the most of the honest gain that three attackers leave where nothing is guarded.
        with_guards: the least that one attacker leaves with the default guards.
        of_class: the gain is that of the flipped class alone.
    """

    change: Change
    left: float
    with_guards: float = 0.9
    of_class: bool = False


FAULTS = {
    "21 flipped sign": Fault(multiplied(-1.0), 0.4),
    "22 scaled by -100": Fault(multiplied(-100.0), -1.0),
    "23 noise": Fault(noise, 0.75),
    # No guard finds it: what one site takes is its share of the class, once in each direction.
    "24 flipped labels": Fault(flipped_labels, 0.5, with_guards=0.65, of_class=True),
    "25 model replacement": Fault(replacing_model, -1.0),
}


LEFT_UNDER: dict[tuple[str, str], float] = {
    ("25 model replacement", "FedCE"): 0.8,
    ("25 model replacement", "FedCE-sum"): 0.8,
}
"""Attack and method -> the least that one attacker leaves, where the method makes it less.

A replaced model is cut to the median length, and from round 3 on it is no longer like noise. What
is left is unlike all others: FedCE weighs it twice, 0.25 in place of 1/8, and 0.85 is left.
"""

# FedCI asks every client to measure the models of the others, which takes seconds.
FEDCI = pytest.param("FedCI", marks=pytest.mark.long)
METHODS = [name for name in STRATEGIES if name != "FedCI"]


def gain_of(fault: Fault, run: Federation, sites: Sequence[str]) -> float:
    """What the sites gained: in Dice, or of the way in the class that is attacked."""
    if fault.of_class:
        return progress_of_row(run, sites, *FLIPPED)
    return progress(run, sites)


LEFT_BY_RULES = 0.35


class Honest(Protocol):
    """An attack, the number of attackers and the method -> the gain without them."""

    def __call__(self, fault: Fault, attackers: int, method: str = "FedAvg") -> float: ...


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    """The gain of the other sites among themselves, by the number of attackers and the method."""
    runs: dict[tuple[int, str], Federation] = {}

    def gain(fault: Fault, attackers: int, method: str = "FedAvg") -> float:
        sites = SITES[: len(SITES) - attackers]
        key = (attackers, method)
        if key not in runs:
            folder = tmp_path_factory.mktemp("honest") / "run"
            runs[key] = federation_of(STRATEGIES[method](), folder, sites=sites, guards=())
            runs[key].run()
        return gain_of(fault, runs[key], sites)

    return gain


def gain_under(
    fault: Fault, attackers: int, strategy: Strategy, folder: Path, **settings: Any
) -> float:
    """The gain of the honest sites under an attack."""
    attack = Attack(fault.change, sites=attackers, hospitals=attackers)
    run = federation_of(strategy, folder, attack, **settings)
    assert run.run().finished
    return gain_of(fault, run, SITES[: len(SITES) - attackers])


@pytest.mark.parametrize("method", [*METHODS, FEDCI])
@pytest.mark.parametrize("name", FAULTS)
def test_default_guards_leave_the_honest_sites_their_gain(
    name: str, method: str, honest: Honest, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    least = LEFT_UNDER.get((name, method), fault.with_guards)
    gain = gain_under(fault, 1, STRATEGIES[method](), tmp_path / "run")
    assert gain > least * honest(fault, 1, method)


@pytest.mark.parametrize("method", ["CGSV", FEDCI])
@pytest.mark.parametrize("name", FAULTS)
def test_methods_that_give_harmful_updates_no_weight_need_no_guard_against_one(
    name: str, method: str, honest: Honest, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    gain = gain_under(fault, 1, STRATEGIES[method](), tmp_path / "run", guards=())
    assert gain > fault.with_guards * honest(fault, 1, method)


@pytest.mark.parametrize("name", FAULTS)
def test_three_attackers_take_it_where_nothing_is_guarded(
    name: str, honest: Honest, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    gain = gain_under(fault, 3, FedAvg(), tmp_path / "run", guards=())
    assert gain < fault.left * honest(fault, 3)


RULES: dict[str, tuple[Callable[[], Strategy], int]] = {
    "median": (lambda: compose(FedAvg(), average=Median()), 3),
    "trimmed mean": (lambda: compose(FedAvg(), average=TrimmedMean(3)), 3),
    "Krum": (lambda: compose(FedAvg(), weighting=Krum(2, 3)), 2),
    "geometric median": (lambda: compose(FedAvg(), weighting=GeometricMedian()), 3),
    "clipped mean": (lambda: compose(FedAvg(), average=ClippedMean()), 2),
}
"""A robust rule, and the attackers of eight that it withstands here."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", FAULTS)
def test_each_robust_rule_bounds_what_several_attackers_take(
    name: str, rule: str, honest: Honest, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    make, attackers = RULES[rule]
    gain = gain_under(fault, attackers, make(), tmp_path / "run", guards=())
    assert gain > LEFT_BY_RULES * honest(fault, attackers)
