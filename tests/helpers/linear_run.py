# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation whose every number is known: constant updates, scores linear in the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from helpers.driving import SPEC, vector

from monai_fairfl import Estimate, Federation, InProcess, Reply, Request
from monai_fairfl.messages import UNDECLARED, Expected, Measurement, Weights
from monai_fairfl.strategies import FedAvg
from monai_fairfl.valuation import FinishedRun, Panel

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
