# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finished runs are valued: by models rebuilt of recorded updates, by retraining, by the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.driving import SPEC, vector

from monai_fairfl import Estimate, Federation, InProcess, Reply, Request, read_ledger
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import UNDECLARED, Expected, Measurement, Weights
from monai_fairfl.strategies import FedAvg
from monai_fairfl.valuation import (
    FinishedRun,
    Game,
    Panel,
    Reconstruction,
    Retraining,
    Valuation,
    exact_shapley,
)

START = [1.0, -1.0]
STEPS = {"A": [0.4, 0.0], "B": [0.0, 0.3], "C": [0.2, 0.1]}
IMAGES = {"A": 10, "B": 20, "C": 10}
LINEAR = {name: [-1000, 1000] for name in ("score", "test_score", "global_score", "global_loss")}
"""Inner products, in place of Dice: ranges of these measurements."""
SCORES = {"A": [1.0, 0.0], "B": [0.0, 2.0], "C": [1.0, 1.0]}


class LinearClient:
    """A client that computes nothing.

    Its update in round t is (t + 1) times its step, its score of w the inner product with its own
    vector.
    """

    def __init__(self, name: str, asked: list[Request]):
        self.name = name
        self.asked = asked

    def answer(self, request: Request) -> Reply:
        self.asked.append(request)
        value = float(request.weights["w"] @ vector(SCORES[self.name]))
        measured: dict[str, Measurement] = {}
        for name in request.measure:
            if name == "global_loss":
                measured[name] = -value
            else:
                estimate = Estimate(value, 0.1, IMAGES[self.name])
                measured[name] = {"mean": estimate, "rim": value / 2}
        if request.task == "measure":
            return request.reply(measurements=measured)
        update = {"w": (request.round + 1) * vector(STEPS[self.name])}
        return request.reply(update, IMAGES[self.name], measurements=measured)


class LinearRun:
    """Runs such federations, and counts what the clients were asked."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.asked: list[Request] = []
        self.lose: Callable[[Request], bool] = lambda request: False

    @property
    def models_measured(self) -> int:
        """Models scored for a valuation, by all three clients each."""
        count = sum(request.run == "valuation" for request in self.asked)
        assert count % 3 == 0
        return count // 3

    def transport(self, clients: Sequence[str] = "ABC") -> InProcess:
        run = self

        class Lossy(InProcess):
            def ask(self, requests, timeout=None):  # type: ignore[no-untyped-def]
                delivered = [request for request in requests if not run.lose(request)]
                return super().ask(delivered, timeout)

        return Lossy({name: partial(LinearClient, name, self.asked) for name in clients})

    def federate(self, folder: Path, clients: Sequence[str] = "ABC") -> Weights:
        initial = lambda: ({"w": vector(START)}, SPEC)  # noqa: E731
        federation = Federation(
            FedAvg(),
            self.transport(clients),
            2,
            initial,
            run_dir=folder,
            min_clients=1,
            record_updates=True,
            ranges=LINEAR,
        )
        federation.run(resume=True)
        return federation.strategy.weights

    def train(self, coalition: frozenset[str], folder: Path) -> Weights:
        if not coalition:
            return {"w": vector(START)}
        return self.federate(folder, sorted(coalition))

    def finished(self) -> FinishedRun:
        panel = Panel(
            self.transport(), "ABC", expected=Expected(ranges=dict.fromkeys(LINEAR, UNDECLARED))
        )
        return FinishedRun(self.folder, list("ABC"), panel, self.train, self.folder / "retrained")


def model_of(coalition: Sequence[str], start: Sequence[float], factor: float) -> np.ndarray:
    """start + factor * mean of the members' steps by images."""
    images = sum(IMAGES[client] for client in coalition)
    step = np.zeros(2)
    for client in coalition:
        step = step + factor * IMAGES[client] / images * np.array(STEPS[client])
    return np.array(start) + step


def mean_score(weights: np.ndarray | torch.Tensor) -> float:
    return float(np.mean([np.dot(weights, SCORES[c]) for c in SCORES]))


@pytest.fixture
def run(tmp_path: Path) -> LinearRun:
    """A finished run of two rounds, whose requests are not counted."""
    made = LinearRun(tmp_path / "run")
    made.federate(made.folder)
    made.asked.clear()
    return made


def shapley(factor: float, start: Sequence[float]) -> dict[str, float]:
    """By the game of what each coalition makes of ``start``."""
    game = Game("ABC", lambda coalition: mean_score(model_of(sorted(coalition), start, factor)))
    return numbers(exact_shapley(game))


def after(rounds: int) -> np.ndarray:
    """The run's model after so many rounds, whose updates have the factors 1 and 2."""
    sum_of_factors = {0: 0.0, 1: 1.0, 2: 3.0}
    return model_of("ABC", START, sum_of_factors[rounds])


def numbers(found: Valuation) -> dict[str, float]:
    return {client: float(value) for client, value in found.values.items()}


# ---- what a model is worth


MEASURED: dict[str, Measurement] = {
    "A": {"mean": Estimate(0.9, 0.01, 30), "disc": Estimate(0.95, 0.01, 30), "cup": 0.85},
    "B": {"mean": Estimate(0.5, None, 10), "disc": Estimate(0.60, None, 10), "cup": 0.40},
}


def test_a_utility_is_one_number_of_what_the_sites_measured() -> None:
    for name, value in {"mean": 0.7, "worst": 0.5, "cup": 0.625}.items():
        assert Retraining(utility=name).worth(MEASURED) == pytest.approx(value)
    with pytest.raises(ConfigError, match=r"'rim'.*\['cup', 'disc'\]"):
        Retraining(utility="rim").worth(MEASURED)


# ---- models rebuilt of what a run recorded


def test_multi_round_values_are_those_of_the_definition_and_share_out_what_the_run_gained(
    run: LinearRun,
) -> None:
    found = Reconstruction("exact").value(run.finished())
    first, second = shapley(1.0, START), shapley(2.0, after(1).tolist())
    expected = {client: first[client] + second[client] for client in "ABC"}
    assert numbers(found) == pytest.approx(expected)

    # FedAvg: the gains of the rounds telescope.
    assert found.total == pytest.approx(mean_score(after(2)) - mean_score(np.array(START)))
    assert found.evaluations == run.models_measured == 16


# ---- measured models are measured once


def test_a_second_valuation_measures_only_what_is_lost_and_finds_the_same_bits(
    run: LinearRun,
) -> None:
    first = Reconstruction("exact").value(run.finished())
    run.asked.clear()
    # A crash cut the last line of the cache short.
    cache = run.folder / "valuations" / "measured.jsonl"
    cache.write_bytes(cache.read_bytes()[:-9])
    assert Reconstruction("exact").value(run.finished()) == first
    for utility in ("worst", "rim"):
        Reconstruction("gtg", utility).value(run.finished())
    assert run.models_measured == 1
    # Another way to evaluate.
    changed = replace(run.finished(), evaluation="second")
    Reconstruction("leave_one_out").value(changed)
    assert run.models_measured == 1 + 8


# ---- models that coalitions train themselves


def utility(coalition: str) -> float:
    """Both rounds' steps, 1 + 2 times, scored by all three."""
    return mean_score(model_of(coalition, START, 3.0))


def trained(run: LinearRun) -> list[str]:
    return sorted({f"{r.run} {r.round}" for r in run.asked if r.task == "train"})


def test_retrained_values_are_of_each_coalitions_own_training(tmp_path: Path) -> None:
    found = Retraining().value(LinearRun(tmp_path).finished())
    drops = {c: utility("ABC") - utility("ABC".replace(c, "")) for c in "ABC"}
    assert numbers(found) == pytest.approx(drops)
    ledgers = (tmp_path / "retrained" / "FedAvg").glob("*/ledger.jsonl")
    members = {"".join(read_ledger(ledger)[0]["clients"]) for ledger in ledgers}
    assert members == {"ABC", "BC", "AC", "AB"}


def test_a_kill_between_and_within_coalitions_trains_nothing_twice(tmp_path: Path) -> None:
    whole = Retraining().value(LinearRun(tmp_path / "whole").finished())
    run = LinearRun(tmp_path / "killed")

    def kill(request: Request) -> bool:
        if len(trained(run)) == 5 and request.round == 1:
            raise KeyboardInterrupt
        return False

    run.lose = kill
    with pytest.raises(KeyboardInterrupt):
        Retraining().value(run.finished())
    before = trained(run)
    run.lose = lambda request: False
    run.asked.clear()
    assert Retraining().value(run.finished()) == whole
    assert len(before) == 5 and len({*before, *trained(run)}) == 8
    assert len(trained(run)) == 3 and run.models_measured == 2


# ---- nothing that a client reports of itself counts for itself


MODELS = ["", "A", "B", "AB"]
"""Coalitions; the place of each is the only number of its model."""


TWO = {
    "A": {"": 0.2, "A": 0.6, "B": 0.4, "AB": 0.9},
    "B": {"": 0.1, "A": 0.3, "B": 0.5, "AB": 0.6},
}
"""Client -> its Dice of each coalition's model."""


class Judge:
    """A client with a Dice for each coalition's model."""

    def __init__(self, dice: Mapping[str, float]):
        self.dice = dice

    def answer(self, request: Request) -> Reply:
        return request.reply(measurements={"score": self.dice[MODELS[int(request.weights["w"])]]})


def finished(folder: Path, tables: Mapping[str, Mapping[str, float]]) -> FinishedRun:
    def train(coalition: frozenset[str], folder: Path) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor(float(MODELS.index("".join(sorted(coalition)))))}

    makers = {name: partial(Judge, dice) for name, dice in tables.items()}
    panel = Panel(InProcess(makers), list(tables))
    return FinishedRun(folder, list(tables), panel, train, folder / "retrained")


def test_a_shapley_value_is_that_of_what_the_others_report(tmp_path: Path) -> None:
    """By hand: B's Dice gives A ((0.3 - 0.1) + (0.6 - 0.5)) / 2."""
    found = Retraining("exact", judged_by="others").value(finished(tmp_path / "a", TWO))
    assert numbers(found) == pytest.approx({"A": 0.15, "B": 0.25})
    assert found.total == pytest.approx(0.4) and found.evaluations == 4
    # Whatever A reports of the model that it made, its own value stays.
    tables = {**TWO, "A": {**TWO["A"], "A": 1.0, "AB": 0.0}}
    found = Retraining("exact", judged_by="others").value(finished(tmp_path / "b", tables))
    assert numbers(found)["A"] == pytest.approx(0.15)
