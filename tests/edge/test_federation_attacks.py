# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Attacks on a federation of eight sites: on its model, and on the score of the attacker.

With the default guards one attacker leaves the honest sites most of the Dice that they gain among
themselves, and gains neither weight nor credit. ``benchmarks/attacks.py`` has all methods and many
seeds; here each attack meets one method of each kind. Beside them stand honest controls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    multiplied,
    noise,
    scaled,
    weighted_sum,
    with_update,
)
from attacks import ATTACKER, SITES, STRATEGIES, VICTIM
from helpers.attacked_federation import federation_of, innocent_of, progress, progress_of_row

from monai_fairfl import Federation, Reply, Strategy, compose
from monai_fairfl.strategies import (
    ClippedMean,
    FedAvg,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
)

pytestmark = pytest.mark.slow

Records = list[dict[str, Any]]
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
    return [dict(record) for record in run.ledger.records if record["kind"] == "round"]


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


@dataclass(frozen=True)
class Fault:
    """An attack on the model.

    Args:
        change: of the attackers' replies.
        left: the most of the honest gain that three attackers leave where nothing is guarded.
        with_guards: the least that one attacker leaves with the default guards.
        with_fedce: the same under FedCE, which weighs the unlike twice.
        of_class: the gain is that of the flipped class alone.
    """

    change: Change
    left: float
    with_guards: float = 0.9
    with_fedce: float = 0.9
    of_class: bool = False

    def gain(self, run: Federation, sites: Sequence[str]) -> float:
        """What the sites gained: in Dice, or of the way in the class that is attacked."""
        return progress_of_row(run, sites, *FLIPPED) if self.of_class else progress(run, sites)


FAULTS = {
    "flipped sign": Fault(multiplied(-1.0), 0.4),
    "scaled by -100": Fault(multiplied(-100.0), -1.0),
    "noise": Fault(noise, 0.75),
    # No guard finds it: what one site takes is its share of the class, once in each direction.
    "flipped labels": Fault(flipped_labels, 0.5, 0.65, 0.65, of_class=True),
    "model replacement": Fault(replacing_model, -1.0, with_fedce=0.8),
}
RULES: dict[str, tuple[Callable[[], Strategy], int]] = {
    "median": (lambda: compose(FedAvg(), average=Median()), 3),
    "trimmed mean": (lambda: compose(FedAvg(), average=TrimmedMean(3)), 3),
    "Krum": (lambda: compose(FedAvg(), weighting=Krum(2, 3)), 2),
    "geometric median": (lambda: compose(FedAvg(), weighting=GeometricMedian()), 3),
    "clipped mean": (lambda: compose(FedAvg(), average=ClippedMean()), 2),
}
"""A robust rule, and the attackers of eight that it withstands here."""
LEFT_BY_RULES = 0.35


def share_left(
    fault: Fault, count: int, strategy: Strategy, alone: Federation, folder: Path, **settings: Any
) -> float:
    """What so many attackers leave of the honest sites' gain."""
    sites = SITES[: len(SITES) - count]
    attack = Attack(fault.change, sites=count, hospitals=count)
    run = federation_of(strategy, folder / "run", attack, **settings)
    assert run.run().finished
    return fault.gain(run, sites) / fault.gain(alone, sites)


@pytest.mark.parametrize("method", ["FedAvg", "FedCE", "ShapFed"])
@pytest.mark.parametrize("name", FAULTS)
def test_default_guards_leave_the_honest_sites_their_gain(
    name: str, method: str, honest: Any, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    least = fault.with_fedce if method == "FedCE" else fault.with_guards
    alone = honest(len(SITES) - 1, method)
    assert share_left(fault, 1, STRATEGIES[method](), alone, tmp_path) > least


@pytest.mark.parametrize("name", FAULTS)
def test_three_attackers_take_it_where_nothing_is_guarded_and_robust_rules_bound_it(
    name: str, honest: Any, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    left = share_left(fault, 3, FedAvg(), honest(5), tmp_path, guards=())
    assert left < fault.left
    for rule in RULES if name == "model replacement" else ("median", "Krum"):
        make, count = RULES[rule]
        alone = honest(len(SITES) - count)
        left = share_left(fault, count, make(), alone, tmp_path / rule, guards=())
        assert left > LEFT_BY_RULES, rule


def test_a_method_that_gives_harmful_updates_no_weight_needs_no_guard_against_one(
    honest: Any, tmp_path: Path
) -> None:
    alone = honest(len(SITES) - 1, "CGSV")
    for name, fault in FAULTS.items():
        folder = tmp_path / name
        left = share_left(fault, 1, STRATEGIES["CGSV"](), alone, folder, guards=())
        assert left > fault.with_guards, name


# --- attacks on the score

BY_UPDATES = ("CGSV", "ShapFed")
BY_REPORTS = ("FedCE", "FedISM", "QFedAvg", "AFL", "FairFed")
MOST_GAIN = 1.05


def under(attack: Attack, method: str, folder: Path, **settings: Any) -> Records:
    """The rounds of a federation that is attacked."""
    run = federation_of(STRATEGIES[method](), folder / "run", attack, **settings)
    run.run()
    return rounds_of(run)


def credit(rounds: Records, clients: Sequence[str]) -> float:
    """The clients' share of the positive contributions of the last round."""
    values = {}
    for client, value in rounds[-1]["contributions"].items():
        number = value["value"] if isinstance(value, Mapping) else value
        values[client] = max(float(number), 0.0)
    total = sum(values.values()) or 1.0
    return sum(values.get(client, 0.0) for client in clients) / total


def require_no_gain(attack: Attack, rounds: Records, honest: Any, method: str) -> None:
    """Neither weight nor step nor credit of the attackers is above that of honest sites."""
    alone = rounds_of(honest(len(attacks.honest_sites_of(attack)), method, True))
    guilty = attacks.attackers_of(attack)
    hospitals = attacks.honest_sites_of(attack)[-attack.hospitals :]
    for gained, own in zip(
        attacks.mean_shares(rounds, guilty), attacks.mean_shares(alone, hospitals), strict=True
    ):
        assert gained <= MOST_GAIN * own
    assert credit(rounds, guilty) <= MOST_GAIN * credit(alone, hospitals)


@dataclass
class OwnStep:
    """Sends the last step of the models that it was sent: it trains nothing.

    Args:
        length: of what is sent, as a share of the honest length; ``None``: half of the step's own.
    """

    length: float | None
    previous: dict[str, torch.Tensor] = field(default_factory=dict)
    step: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, reply: Reply, update: Update, scene: Scene, chance: Chance) -> Reply:
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


OF_THE_SCORE: dict[str, Callable[[], Attack]] = {
    "noise": lambda: ATTACKS["noise of honest length"],
    "zeros": lambda: ATTACKS["zeros"],
    "replay of the last step": lambda: Attack(OwnStep(1.0)),
    "delta weights": lambda: Attack(OwnStep(None)),
    "copy": lambda: ATTACKS["copy"],
    "three identities": lambda: ATTACKS["three identities"],
    "two colluders": lambda: ATTACKS["two colluders"],
    "sleeper": lambda: ATTACKS["sleeper"],
    "a site that sinks another": lambda: ATTACKS["a site that sinks another"],
}


@pytest.mark.parametrize("method", ["FedAvg", *BY_UPDATES])
@pytest.mark.parametrize("name", OF_THE_SCORE)
def test_the_attacker_gains_nothing_and_is_found_and_nobody_else_is(
    name: str, method: str, honest: Any, tmp_path: Path
) -> None:
    attack = OF_THE_SCORE[name]()
    rounds = under(attack, method, tmp_path)
    require_no_gain(attack, rounds, honest, method)
    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    found = attacks.verdicts_on(rounds, attacks.attackers_of(attack))
    assert any(begins <= number <= begins + 3 for number in found)
    if method == "FedAvg" and name == "sleeper":
        assert found == list(range(SLEEPS_UNTIL, len(rounds)))
    assert attacks.verdicts_on(rounds, innocent_of(attack)) == []


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


@pytest.mark.parametrize("method", ["FedAvg", *BY_UPDATES])
@pytest.mark.parametrize("count", [1, 2])
def test_plausible_false_reports_bring_nothing_where_reports_do_not_count(
    count: int, method: str, honest: Any, tmp_path: Path
) -> None:
    attack = Attack(reporting(1.0), sites=count, hospitals=count, reports=True)
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


@pytest.mark.parametrize("method", ["FedAvg", "FedCE", *BY_UPDATES])
def test_a_site_that_is_sunk_keeps_its_weight_and_credit(
    method: str, honest: Any, tmp_path: Path
) -> None:
    rounds = under(ATTACKS["a site that sinks another"], method, tmp_path)
    alone = rounds_of(honest(len(SITES) - 1, method, True))
    kept, _ = attacks.mean_shares(rounds, [VICTIM])
    assert kept >= 0.95 * attacks.mean_shares(alone, [VICTIM])[0]
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
    """A frozen encoder: three quarters of its update are zero in every round."""

    def frozen(reply: Reply, update: Update, scene: Scene, chance: Chance) -> Reply:
        parts = {name: (0 if name.startswith("encoder") else 1) * update[name] for name in update}
        return replace(reply, update=parts)

    rounds = under(Attack(frozen), "FedAvg", tmp_path)
    assert attacks.verdicts_on(rounds, SITES) == []


# --- behind a privacy filter of NVIDIA FLARE's


@pytest.mark.nvflare
@pytest.mark.parametrize(
    ("kind", "arguments", "alone"),
    [
        ("PercentilePrivacy", {"percentile": 10, "gamma": 0.01}, ""),
        ("PercentilePrivacy", {"percentile": 90, "gamma": 1.0}, ""),
        ("SVTPrivacy", {}, "Noise"),
        ("SVTPrivacy", {"fraction": 0.9, "gamma": 0.1}, "Outsized"),
    ],
)
def test_what_guards_see_behind_a_filter(
    kind: str, arguments: dict[str, Any], alone: str, tmp_path: Path
) -> None:
    """An honest site that alone adds noise is taken for noise."""
    pytest.importorskip("nvflare")
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters import percentile_privacy, svt_privacy

    from monai_fairfl import Request, own_random_state

    module = percentile_privacy if kind == "PercentilePrivacy" else svt_privacy
    made = {site: getattr(module, kind)(**arguments) for site in SITES}

    def verdicts(sites: Sequence[str], folder: Path) -> dict[str, set[str]]:
        """client -> the guards that acted on it, where these sites have the filter."""

        def filtered(request: Request, reply: Reply) -> Reply:
            if reply.update is None or request.client not in sites:
                return reply
            arrays = {name: tensor.numpy() for name, tensor in reply.update.items()}
            meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: reply.num_steps}
            sent = DXO(DataKind.WEIGHT_DIFF, arrays, meta).to_shareable()
            passed = from_shareable(made[request.client].process(sent, FLContext())).data
            update = {name: torch.as_tensor(array) for name, array in passed.items()}
            return replace(reply, update=update)

        run = federation_of(FedAvg(), folder / "run", fault=filtered, rounds=3)
        # NVIDIA FLARE's filters draw from NumPy's global generator.
        with own_random_state(0):
            run.run()
        acted: dict[str, set[str]] = {}
        for record in rounds_of(run):
            for client, of_client in record["verdicts"].items():
                acted.setdefault(client, set()).update(each["guard"] for each in of_client)
        return acted

    assert verdicts(SITES[-1:], tmp_path / "one") == ({SITES[-1]: {alone}} if alone else {})
    assert verdicts(SITES, tmp_path / "all") == {}
