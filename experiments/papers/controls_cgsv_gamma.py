# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, round by round: where a longer fixed step sends the agent that has all classes.

Ten agents, the first with one digit, the last with all ten (CLA). What agents received and their
reputation, with updates of length 0.15 and 0.5, which the paper has for CIFAR-10 and MNIST.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from classification.clients import accuracy
from classification.data import class_shares, dealt, digits
from classification.federations import federate
from classification.summaries import SEEDS, chosen, spread, thread_minutes
from figures import lines, panels
from matplotlib.figure import Figure
from papers.controls_cgsv import POOL, RECIPE, ROUNDS
from reading import markdown, measurement

from monai_fairfl.protocol.values import Weights
from monai_fairfl.strategies import CGSV

STUDIES = ()
AGENTS = 10
LENGTHS: Mapping[str, float] = {"0.15": 0.15, "0.5": 0.5}
WATCHED = {0: "one class", 4: "five classes", 9: "ten classes"}
"""An agent's number, from 0 -> the classes that it has."""
EVERY = 10
SHOWN = (20, 40, 80)


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Train with every length and seed; returns accuracies and reputations by round."""
    torch.set_num_threads(1)
    begun = time.process_time()
    found = []
    for length in LENGTHS:
        for seed in SEEDS:
            found.append(one_run(length, seed))
    return {"minutes": thread_minutes(begun), "runs": found}


def one_run(length: str, seed: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Train one federation, and test its agents' models every ten rounds."""
    split = digits(seed, POOL)
    parts = dealt(split.pool, AGENTS, "CLA", seed)
    clients = [list(parts)[number] for number in WATCHED]
    received: dict[str, list[float]] = {client: [] for client in clients}

    def watch(done: int, models: Mapping[str, Weights]) -> None:
        if done % EVERY == 0:
            for client in clients:
                received[client].append(accuracy(RECIPE, models[client], split.test))

    strategy = CGSV(gamma=LENGTHS[length], variant="paper")
    outcome = federate(strategy, parts, RECIPE, rounds, seed, watch)
    of_agent: dict[str, list[list[float]]] = {"cosine": [], "reputation": [], "kept": []}
    for name, series in of_agent.items():
        for client in clients:
            series.append([record["details"][name][client] for record in outcome.rounds])
    return {
        "length": length,
        "seed": seed,
        "received": [received[client] for client in clients],
        "classes": [_classes(parts[client]) for client in clients],
        "update lengths": [_mean_length(record) for record in outcome.rounds],
        **of_agent,
    }


def _classes(samples: Any) -> int:
    return int((class_shares(samples, RECIPE.classes) > 0).sum())


def _mean_length(record: Mapping[str, Any]) -> float:
    """The mean length of the updates that the clients sent in a round."""
    return float(np.sqrt(np.diag(record["gram"]["whole"])).mean())


def table() -> str:
    """Write a row per length and number of rounds."""
    runs = measurement("controls_cgsv_gamma")["runs"]
    rows = []
    for length in LENGTHS:
        found = chosen(runs, length=length)
        for done in SHOWN:
            rows.append([length, done, *_cells(found, done)])
    head = ["length of updates", "rounds", "length that clients sent"]
    for classes in WATCHED.values():
        head.append(f"{classes}: accuracy")
    head += [
        "reputation of one class",
        "of five classes",
        "of ten classes",
        "cosine of ten classes with the step",
    ]
    return markdown(head, rows)


def _cells(found: Sequence[Mapping[str, Any]], done: int) -> list[str]:
    cells = [spread([run["update lengths"][done - 1] for run in found])]
    for index in range(len(WATCHED)):
        cells.append(spread([100 * run["received"][index][done // EVERY - 1] for run in found], 1))
    for index in range(len(WATCHED)):
        cells.append(spread([run["reputation"][index][done - 1] for run in found], 3))
    # Single rounds are noisy: the mean of the last ten.
    cosines = []
    for run in found:
        cosines.append(np.mean(run["cosine"][-1][done - EVERY : done]))
    cells.append(spread(cosines))
    return cells


def figure() -> Figure:
    """Draw reputations by round, means over the seeds; the fair order is that of the classes."""
    runs = measurement("controls_cgsv_gamma")["runs"]
    drawn, axes = panels([f"length: {length}" for length in LENGTHS], height=2.4)
    for axis, length in zip(axes, LENGTHS):
        found = chosen(runs, length=length)
        series = {}
        for index, classes in enumerate(WATCHED.values()):
            series[classes] = np.mean([run["reputation"][index] for run in found], axis=0).tolist()
        lines(axis, series, y="reputation")
    axes[0].legend(fontsize=6)
    return drawn
