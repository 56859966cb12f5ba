# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed, Fig. 3: a toy of two blocks of classes: class-specific values (CSSV) and CGSV's one
number beside the truth.

The paper shows heat maps in which class values tell who brings which classes, as one number per
client cannot. Data and network here are our own; the truth is the Shapley value of every class's
accuracy, by averaging coalitions' updates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import heat_maps
from matplotlib.figure import Figure
from reading import markdown, measurement, over_folds, words
from scipy.stats import spearmanr

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.recording import recorded_rounds
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import CGSV, ShapFed, Strategy
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.valuation import Game, exact_shapley, sum_over_rounds
from monai_fairfl.valuation.reconstruction import MultiRound

STUDIES = ()
CLASSES, FEATURES, ROUNDS, SEEDS = 6, 20, 20, range(10)
OWN, OTHER = 90, 10  # samples of every class of a client's own block, and of the other
CLIENTS = {
    "client 1": 0,
    "client 2": 0,
    "client 3": 1,
    "client 4": 1,
}  # the block, of three classes each
WRONG = (1, 1)  # client 2's samples of class 2 carry labels drawn from the others
ROWS = [f"{client}*" if i == WRONG[0] else client for i, client in enumerate(CLIENTS)]

Samples = tuple[torch.Tensor, torch.Tensor]


def network() -> torch.nn.Module:
    """One hidden layer."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES)
    )


def toy(seed: int) -> tuple[dict[str, Samples], Samples]:
    """Every client's samples, normally distributed around their class's centre, and 200 of every
    class for the test.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((CLASSES, FEATURES))

    def draw(counts: list[int]) -> Samples:
        labels = np.repeat(np.arange(CLASSES), counts)
        points = centres[labels] + 1.5 * rng.standard_normal((len(labels), FEATURES))
        return torch.tensor(points, dtype=torch.float32), torch.from_numpy(labels)

    counts = [
        [OWN if c // 3 == block else OTHER for c in range(CLASSES)] for block in CLIENTS.values()
    ]
    samples = {name: draw(mine) for name, mine in zip(CLIENTS, counts)}
    labels = samples[list(CLIENTS)[WRONG[0]]][1]
    wrong = torch.from_numpy(rng.integers(1, CLASSES, counts[WRONG[0]][WRONG[1]]))
    labels[labels == WRONG[1]] = (WRONG[1] + wrong) % CLASSES
    return samples, draw([200] * CLASSES)


class Client:
    """Trains one epoch of plain SGD from whatever it is sent."""

    def __init__(self, samples: Samples):
        self.points, self.labels = samples

    def answer(self, request: Request) -> Reply:
        """The change of every tensor."""
        net = network()
        net.load_state_dict(dict(request.weights))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        order = torch.randperm(
            len(self.labels), generator=torch.Generator().manual_seed(request.seed)
        )
        for batch in order.split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                net(self.points[batch]), self.labels[batch]
            ).backward()
            optimizer.step()
        update = {name: tensor - request.weights[name] for name, tensor in net.state_dict().items()}
        return Reply(
            request.client, update, len(order), id=request.id, run=request.run, round=request.round
        )


def federate(
    strategy: Strategy, samples: Mapping[str, Samples], folder: Path, seed: int
) -> Mapping[str, Any]:
    """The ledger's record of the last round."""

    def initial() -> Any:
        net = network()
        return dict(net.state_dict()), read_spec(net, torch.zeros(1, FEATURES))

    transport = InProcess({name: lambda mine=mine: Client(mine) for name, mine in samples.items()})
    settings = {
        "run_dir": folder,
        "evaluate": (),
        "final": (),
        "seed": seed,
        "record_updates": True,
    }
    return Federation(strategy, transport, ROUNDS, initial, **settings).run().rounds[-1]


def accuracies(weights: Weights, test: Samples) -> list[float]:
    """Of every class."""
    net = network()
    net.load_state_dict(dict(weights))
    with torch.no_grad():
        right = net(test[0]).argmax(1) == test[1]
    return [float(right[test[1] == c].float().mean()) for c in range(CLASSES)]


def truth(folder: Path, test: Samples) -> list[list[float]]:
    """client x class: Shapley value of the class's accuracy, the mean over the rounds of a recorded
    run.
    """
    rounds = recorded_rounds(folder)
    models = MultiRound(rounds)
    scores = cache(lambda number, coalition: accuracies(models(number, coalition), test))
    values = []
    for c in range(CLASSES):
        games = [Game(CLIENTS, lambda s, n=n, c=c: scores(n, s)[c]) for n in range(len(rounds))]
        values.append(sum_over_rounds([exact_shapley(game) for game in games]).values)
    return [[float(found[client]) / len(rounds) for found in values] for client in CLIENTS]


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Of every seed: both methods' values, and the truth of both federations."""
    torch.set_num_threads(1)
    found: dict[str, list[Any]] = {
        name: [] for name in ("CSSV", "CGSV", "truth for CSSV", "truth for CGSV")
    }
    for seed in SEEDS:
        samples, test = toy(seed)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cssv = federate(ShapFed(), samples, folder / "CSSV", seed)["details"]["class_value"]
            cgsv = federate(CGSV(gamma=None, reward=None), samples, folder / "CGSV", seed)[
                "contributions"
            ]
            found["CSSV"].append([list(cssv[client].values()) for client in CLIENTS])
            found["CGSV"].append(
                [[cgsv[client]] * CLASSES for client in CLIENTS]
            )  # the same for all of its classes
            for method in ("CSSV", "CGSV"):
                found[f"truth for {method}"].append(truth(folder / method, test))
    return found


def table() -> str:
    """Means over the seeds; then how well each method, and the truth's own mean per client, agrees
    with the truth.
    """
    found = results()
    mean = {name: values.mean(axis=0) for name, values in found.items()}
    rows = []
    for i, client in enumerate(ROWS):
        cells = [
            f"{true:+.2f} / {value:+.2f}"
            for true, value in zip(mean["truth for CSSV"][i], mean["CSSV"][i])
        ]
        rows.append([client, *cells, f"{mean['CGSV'][i, 0]:.2f}"])
    head, ranks = ["", *(f"class {c + 1}, truth / CSSV" for c in range(CLASSES)), "CGSV"], []
    true_mean = np.repeat(found["truth for CSSV"].mean(axis=2, keepdims=True), CLASSES, axis=2)
    compared = {
        "CSSV": found["CSSV"],
        "CGSV": found["CGSV"],
        "the truth's own mean per client": true_mean,
    }
    for name, values in compared.items():
        true = found[f"truth for {'CGSV' if name == 'CGSV' else 'CSSV'}"]
        over = [agreement(values, true), agreement(values.mean(axis=2), true.mean(axis=2))]
        last = (values[:, :, WRONG[1]].argmin(axis=1) == WRONG[0]).sum()
        ranks.append([name, *over, f"{last} of {len(values)}"])
    of = ["over pairs of client and class", "over clients", "client 2 is last in class 2"]
    agree = markdown(["rank correlation with the truth", *of], ranks)
    return f"{markdown(head, rows)}\n\n\\* wrong labels in class {WRONG[1] + 1}\n\n{agree}"


def figure() -> Figure:
    """Means over the seeds; every class has its own scale."""
    mean = {name: values.mean(axis=0) for name, values in results().items()}
    maps = {"truth": mean["truth for CSSV"], "CSSV": mean["CSSV"], "CGSV": mean["CGSV"]}
    return heat_maps(maps, ROWS, [str(c + 1) for c in range(CLASSES)])


def results() -> dict[str, np.ndarray]:
    """Name -> seed x client x class."""
    return {
        name: np.array(found)
        for name, found in measurement("shapfed_figure3").items()
        if name != "minutes"
    }


def agreement(values: np.ndarray, true: np.ndarray) -> str:
    """Mean over the seeds of Spearman's rank correlation over all entries, with its interval."""
    found = [spearmanr(one.ravel(), other.ravel()).statistic for one, other in zip(values, true)]
    return words(over_folds(found, np.mean), 2)
