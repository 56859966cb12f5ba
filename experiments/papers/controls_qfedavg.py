# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg with SGD, its paper's own step: the variance of the clients' accuracies.

Ten clients with unequal classes share 800 digits, or 300 tumours of breasts; the rest tests. A
client's accuracy is that of the test samples of every class, weighted by the client's own share of
the class. L is 1 / learning rate, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from classification.clients import Recipe, class_accuracies
from classification.data import (
    Split,
    breast_cancer,
    by_shares,
    class_shares,
    digits,
    dirichlet_shares,
)
from classification.federations import federate
from classification.summaries import SEEDS, answer, chosen, spread
from reading import NOTHING, markdown, measurement

from monai_fairfl.strategies import QFedAvg

CLIENTS = 10
ROUNDS = 40
RECIPES: Mapping[str, Recipe] = {
    "digits": Recipe(rate=0.1),
    "breast cancer": Recipe(features=30, classes=2, rate=0.1),
}

METHODS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {"q": 0.0},
    "q = 0.1": {"q": 0.1},
    "q = 1": {"q": 1.0},
    "q = 1, three times the rounds": {"q": 1.0},
    "loss-weighted, q = 1": {"q": 1.0, "variant": "released"},
}
"""Method -> arguments of the strategy; q = 0 is FedAvg with uniform weights. The last two are
controls: more of the shorter steps, and the same weights without the shorter step.
"""


def measure(data: Path, runs: Path) -> Iterator[dict[str, Any]]:
    """Train every method on both data sets; yield the accuracies of the clients."""
    for name in RECIPES:
        for seed in SEEDS:
            for method in METHODS:
                yield one_run(name, method, seed)


def one_run(name: str, method: str, seed: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Train one federation; the accuracy of its global model for every client."""
    recipe = RECIPES[name]
    split = _split(name, seed)
    shares = dirichlet_shares(CLIENTS, recipe.classes, alpha=0.5, seed=seed)
    parts = by_shares(split.pool, shares, seed)
    if method.endswith("three times the rounds"):
        rounds *= 3
    strategy = QFedAvg(learning_rate=recipe.rate, **METHODS[method])
    outcome = federate(strategy, parts, recipe, rounds, seed)
    model = next(iter(outcome.received.values()))
    of_classes = class_accuracies(recipe, model, split.test)
    accuracies = []
    for samples in parts.values():
        accuracies.append(float(class_shares(samples, recipe.classes) @ of_classes))
    return {
        "data": name,
        "method": method,
        "seed": seed,
        "accuracies": accuracies,
        "factor": float(np.mean([_factor(record) for record in outcome.rounds])),
    }


def _factor(record: Mapping[str, Any]) -> float:
    """The factor by which q-FedAvg shortens the average step of a round."""
    of_clients = record["details"].get("scale", {})
    return float(np.mean(list(of_clients.values()) or [1.0]))


def _split(name: str, seed: int) -> Split:
    if name == "digits":
        return digits(seed, pool=800)
    return breast_cancer(seed, pool=300)


def table() -> str:
    """Write a row per data set and method."""
    runs = measurement("controls_qfedavg")["runs"]
    rows = []
    for name in RECIPES:
        baseline = [_variance(run) for run in chosen(runs, data=name, method="FedAvg")]
        for method in METHODS:
            rows.append(_row(name, method, chosen(runs, data=name, method=method), baseline))
    head = [
        "data",
        "method",
        "mean",
        "worst client",
        "best client",
        "variance over clients, percent squared",
        "lower than FedAvg's",
        "length of the step, of the average's",
    ]
    return markdown(head, rows)


def _row(
    name: str, method: str, found: Sequence[Mapping[str, Any]], baseline: Sequence[float]
) -> list[str]:
    accuracies = 100 * np.array([run["accuracies"] for run in found])
    variances = [_variance(run) for run in found]
    verdict = NOTHING
    if method != "FedAvg":
        verdict = answer([one < other for one, other in zip(variances, baseline, strict=True)])
    return [
        name,
        method,
        spread(accuracies.mean(axis=1), 1),
        spread(accuracies.min(axis=1), 1),
        spread(accuracies.max(axis=1), 1),
        spread(variances, 1),
        verdict,
        spread([run["factor"] for run in found]),
    ]


def _variance(run: Mapping[str, Any]) -> float:
    """The variance over clients, of accuracies in percent."""
    return float(np.var(100 * np.array(run["accuracies"])))
