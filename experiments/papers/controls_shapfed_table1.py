# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed, Table 1: the accuracy of personal models, and its correlation with training alone.

Four clients share 800 digits: one has 70 % of every class and the others 10 % each (imbalanced), or
every class is dealt by a Dirichlet distribution (heterogeneous). 997 digits test. The null mixes a
share of 1/N of the plain average into every client's model, whoever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from agreement import pearson
from classification.clients import Recipe, accuracy
from classification.data import by_shares, digits, dirichlet_shares
from classification.federations import federate
from classification.summaries import SEEDS, answer, chosen, each, spread
from reading import NOTHING, markdown, measurement

from monai_fairfl.strategies import FedAvg, ShapFed, Standalone, Strategy
from monai_fairfl.strategies.parts import Mixed

CLIENTS, CLASSES = 4, 10
ROUNDS = 12
SPLITS = ("imbalanced", "heterogeneous")
LEAST_PEARSON = 0.85
METHODS: Mapping[str, Callable[[], Strategy]] = {
    "alone": Standalone,
    "FedAvg": FedAvg,
    "ShapFed, paper": lambda: ShapFed(personalised=True, variant="paper"),
    "ShapFed, released": lambda: ShapFed(personalised=True, variant="released"),
    "null: 1/N for everybody": lambda: FedAvg("uniform", reward=Mixed()),
}

EPOCHS: Mapping[int, Sequence[str]] = {
    10: tuple(METHODS),
    1: ("alone", "ShapFed, released", "null: 1/N for everybody"),
}
"""Epochs of a round -> what is trained. Ten were chosen on seed 0; one is the control."""


def measure(data: Path, runs: Path) -> Iterator[dict[str, Any]]:
    """Train every method on both splits; yield the accuracy of every client's model."""
    for epochs, methods in EPOCHS.items():
        for split in SPLITS:
            for seed in SEEDS:
                for method in methods:
                    yield one_run(split, method, seed, epochs)


def shares_of(split: str, seed: int) -> np.ndarray:
    """Return the clients' shares of every class."""
    if split == "imbalanced":
        of_clients = np.array([0.7, 0.1, 0.1, 0.1])
        return np.repeat(of_clients[:, None], CLASSES, axis=1)
    return dirichlet_shares(CLIENTS, CLASSES, alpha=0.5, seed=seed)


def one_run(
    split: str, method: str, seed: int, epochs: int, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Train one federation, and test what every client received and what it makes of that."""
    recipe = Recipe(rate=0.05, epochs=epochs)
    data = digits(seed, pool=800)
    parts = by_shares(data.pool, shares_of(split, seed), seed)
    outcome = federate(METHODS[method](), parts, recipe, rounds, seed)
    return {
        "epochs": epochs,
        "split": split,
        "method": method,
        "seed": seed,
        "received": [accuracy(recipe, model, data.test) for model in outcome.received.values()],
        "trained": [accuracy(recipe, model, data.test) for model in outcome.trained.values()],
    }


def table() -> str:
    """Write a row per split and method."""
    runs = measurement("controls_shapfed_table1")["runs"]
    parts = []
    clients = [f"client {index + 1}" for index in range(CLIENTS)]
    of_correlations = [
        "Pearson with alone",
        "of each seed",
        "at least 0.85",
        "after training, of each seed",
    ]
    head = ["split", "method", *clients, *of_correlations]
    for epochs, methods in EPOCHS.items():
        rows = []
        for split in SPLITS:
            of_split = chosen(runs, epochs=epochs, split=split)
            for method in methods:
                rows.append(_row(split, method, of_split))
        parts += [f"**Epochs of a round: {epochs}**", markdown(head, rows)]
    return "\n\n".join(parts)


def _row(split: str, method: str, runs: list[Any]) -> list[str]:
    found = chosen(runs, method=method)
    row = [split, method]
    for of_client in 100 * np.array([run["received"] for run in found]).T:
        row.append(spread(of_client, 1))
    if method == "alone":
        return [*row, NOTHING, NOTHING, NOTHING, NOTHING]
    of_received = correlations(found, chosen(runs, method="alone"), "received")
    of_trained = correlations(found, chosen(runs, method="alone"), "trained")
    holds = [correlation >= LEAST_PEARSON for correlation in of_received]
    return [*row, spread(of_received), each(of_received), answer(holds), each(of_trained)]


def correlations(found: list[Any], alone: list[Any], model: str) -> list[float]:
    """Compute Pearson's correlation of every seed with the accuracy of training alone.

    Args:
        found: runs of a method, one per seed.
        alone: those of training alone.
        model: ``"received"``, or ``"trained"``: after one more round of the client's own training.
    """
    values = []
    for run, of_alone in zip(found, alone, strict=True):
        values.append(pearson(of_alone["received"], run[model]))
    return values
