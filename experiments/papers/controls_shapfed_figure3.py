# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed, Fig. 3: class values where every client owns some classes and lacks the others.

The paper's own example is a plane with four classes, two clients and two classes each. The same on
digits, with two clients of five digits and five clients of two digits. Class values of the last
round, smoothed over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from classification.clients import Recipe, class_accuracies
from classification.data import Split, by_shares, digits, stripes
from classification.federations import federate
from classification.summaries import SEEDS, answer, chosen, spread
from reading import markdown, measurement

from monai_fairfl.strategies import ShapFed

ROUNDS = 30
LEAST_RATIO = 5


@dataclass(frozen=True)
class Design:
    """Who owns which classes: the classes in their order, as many for each of the clients.

    Rates, epochs and rounds were chosen on seed 0.
    """

    name: str
    clients: int
    recipe: Recipe

    def split(self, seed: int) -> Split:
        """Draw or split the data."""
        if self.recipe.classes == 4:
            return stripes(seed, each=50)
        return digits(seed, pool=800)

    def owned(self) -> np.ndarray:
        """Whether a client owns a class: client x class."""
        each = self.recipe.classes // self.clients
        owners = np.arange(self.recipe.classes) // each
        return owners == np.arange(self.clients)[:, None]


DESIGNS = (
    Design("plane", 2, Recipe(features=5, hidden=32, classes=4, rate=0.1, epochs=5)),
    Design("digits, 2 clients", 2, Recipe(rate=0.02)),
    Design("digits, 5 clients", 5, Recipe(rate=0.02)),
)


def measure(data: Path, runs: Path) -> Iterator[dict[str, Any]]:
    """Train every design with every seed; yield the class values."""
    for design in DESIGNS:
        for seed in SEEDS:
            yield one_run(design, seed)


def one_run(design: Design, seed: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Train one federation; its class values, and the accuracies of the global model."""
    split = design.split(seed)
    parts = by_shares(split.pool, design.owned(), seed)
    outcome = federate(ShapFed(), parts, design.recipe, rounds, seed)
    class_values = outcome.rounds[-1]["details"]["class_value"]
    model = next(iter(outcome.received.values()))
    return {
        "design": design.name,
        "seed": seed,
        "values": [list(class_values[client].values()) for client in parts],
        "accuracies": class_accuracies(design.recipe, model, split.test).tolist(),
    }


def blocks(run: Mapping[str, Any], owned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class values of the classes that clients own, and of those that they lack."""
    values = np.array(run["values"])
    return values[owned], values[~owned]


def table() -> str:
    """Write a row per design."""
    runs = measurement("controls_shapfed_figure3")["runs"]
    rows = []
    for design in DESIGNS:
        rows.append(_row(design, chosen(runs, design=design.name)))
    head = [
        "design",
        "mean accuracy of classes",
        "own classes, mean",
        "own classes, smallest",
        "other classes, mean",
        "other classes, largest magnitude",
        "own, smallest / other, largest",
        "at least five times",
    ]
    return markdown(head, rows)


def _row(design: Design, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    own_means = []
    own_least = []
    other_means = []
    other_most = []
    ratios = []
    for run in runs:
        own, other = blocks(run, design.owned())
        own_means.append(own.mean())
        own_least.append(own.min())
        other_means.append(other.mean())
        other_most.append(np.abs(other).max())
        ratios.append(own.min() / np.abs(other).max())
    holds = [ratio >= LEAST_RATIO for ratio in ratios]
    accuracies = [100 * np.mean(run["accuracies"]) for run in runs]
    columns = (own_means, own_least, other_means, other_most)
    cells = [spread(values) for values in columns]
    return [design.name, spread(accuracies, 1), *cells, spread(ratios, 1), answer(holds)]
