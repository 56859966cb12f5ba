# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A valuation in which nothing that a client reports of itself counts for itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.linear_federation import SCORES, START, LinearRun, model_of

from monai_fairfl import InProcess, Reply
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Request
from monai_fairfl.valuation import FinishedRun, MaxSamples, Panel, Reconstruction, Retraining

MODELS = {"": 0, "A": 1, "B": 2, "AB": 3, "C": 4, "AC": 5, "BC": 6, "ABC": 7}
"""Coalition -> the only number of its model."""

TWO = {
    "A": {"": 0.2, "A": 0.6, "B": 0.4, "AB": 0.9},
    "B": {"": 0.1, "A": 0.3, "B": 0.5, "AB": 0.6},
}
"""Client -> its Dice of each coalition's model."""

WORTH = {
    "A": {"A": 0.5, "B": 0.1, "C": 0.2},
    "B": {"A": 0.1, "B": 0.4, "C": 0.0},
    "C": {"A": 0.2, "B": 0.05, "C": 0.7},
}
"""Client -> what every other client adds to its Dice."""


class Judge:
    """A client with a Dice for each coalition's model."""

    def __init__(self, dice: Mapping[str, float], asked: list[Request]):
        self.dice = {MODELS[coalition]: value for coalition, value in dice.items()}
        self.asked = asked

    def answer(self, request: Request) -> Reply:
        self.asked.append(request)
        score = self.dice[int(request.weights["w"])]
        echo = {"id": request.id, "run": request.run, "round": request.round}
        return Reply(request.client, None, 0, {"score": score}, **echo)


def finished(
    folder: Path, tables: Mapping[str, Mapping[str, float]], asked: list[Request]
) -> FinishedRun:
    def train(coalition: frozenset[str], strategy: object, folder: Path) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor(float(MODELS["".join(sorted(coalition))]))}

    makers = {name: partial(Judge, dice, asked) for name, dice in tables.items()}
    panel = Panel(InProcess(makers), list(tables))
    return FinishedRun(folder, list(tables), panel, train, folder / "retrained")


def values(found: object) -> dict[str, float]:
    return {name: value.value for name, value in found.values.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("lie", [0.0, 1.0])
def test_a_shapley_value_is_that_of_what_the_others_report(tmp_path: Path, lie: float) -> None:
    """By hand: B's Dice gives A ((0.3 - 0.1) + (0.6 - 0.5)) / 2."""
    found = Retraining("exact", judged_by="others").value(finished(tmp_path / "a", TWO, []))
    assert values(found) == pytest.approx({"A": 0.15, "B": 0.25})
    assert found.total == pytest.approx(0.4) and found.evaluations == 4
    # Whatever A reports of the model that it made, its own value stays.
    tables = {**TWO, "A": {**TWO["A"], "A": lie, "AB": lie}}
    found = Retraining("exact", judged_by="others").value(finished(tmp_path / "b", tables, []))
    assert found.values["A"].value == pytest.approx(0.15)


@pytest.mark.parametrize("method", ["exact", "leave_one_out", "permutation", "stratified"])
def test_every_method_leaves_out_what_a_client_says_of_itself(tmp_path: Path, method: str) -> None:
    """A client is worth to each judge what it adds there, so that all methods agree."""
    tables = {}
    for judge, worth in WORTH.items():
        tables[judge] = {name: sum(worth[member] for member in name) for name in MODELS}
    stop = MaxSamples(30) if method in ("permutation", "stratified") else None
    valuation = Retraining(method, stop=stop, judged_by="others")
    found = valuation.value(finished(tmp_path, tables, []))
    assert values(found) == pytest.approx({"A": 0.15, "B": 0.075, "C": 0.1})
    assert valuation.name.endswith(f"-{method}-mean-others")
    assert found.total == pytest.approx(0.325)


@pytest.mark.parametrize("method", ["leave_one_out", "exact", "gtg"])
def test_no_model_is_scored_for_it_that_all_clients_have_scored(
    tmp_path: Path, method: str
) -> None:
    run = LinearRun(tmp_path / "run")
    run.federate(run.folder)
    run.asked.clear()
    by_all = Reconstruction(method).value(run.finished())
    asked = len(run.asked)
    found = Reconstruction(method, judged_by="others").value(run.finished())
    if method != "gtg":
        # It truncates by the scores, so other models may be needed.
        assert len(run.asked) == asked and found.evaluations == by_all.evaluations
    if method == "leave_one_out":
        expected = dict.fromkeys("ABC", 0.0)
        start = np.array(START)
        for factor in (1.0, 2.0):
            whole = model_of("ABC", start.tolist(), factor)
            for client in "ABC":
                others = [name for name in "ABC" if name != client]
                lost = whole - model_of(others, start.tolist(), factor)
                expected[client] += float(np.mean([lost @ SCORES[judge] for judge in others]))
            start = whole
        assert values(found) == pytest.approx(expected, abs=1e-6)


def test_it_needs_somebody_else() -> None:
    with pytest.raises(ConfigError, match="nobody else to judge A"):
        Retraining(judged_by="others").check("A", recorded=False)
    with pytest.raises(ConfigError, match="judged_by must be one of"):
        Retraining(judged_by="me")
