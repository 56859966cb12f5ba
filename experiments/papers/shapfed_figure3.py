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
from functools import cache, partial
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
from monai_fairfl.run_folder.recorded_updates import recorded_rounds
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import CGSV, ShapFed, Strategy
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.valuation import Game, exact_shapley, sum_over_rounds
from monai_fairfl.valuation.reconstruction import MultiRound

STUDIES = ()
CLASSES = 6
FEATURES = 20
ROUNDS = 20
SEEDS = range(10)
OWN, OTHER = 90, 10  # samples of every class of a client's own block, and of the other block
CLIENTS = {"client 1": 0, "client 2": 0, "client 3": 1, "client 4": 1}
"""Client -> its block, of three classes each."""
WRONG_CLIENT, WRONG_CLASS = 1, 1
"""Client 2's samples of class 2 carry labels drawn from the others."""

Samples = tuple[torch.Tensor, torch.Tensor]


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Of every seed: both methods' values, and the truth of both federations."""
    torch.set_num_threads(1)
    found: dict[str, list[Any]] = {
        "CSSV": [],
        "CGSV": [],
        "truth for CSSV": [],
        "truth for CGSV": [],
    }
    for seed in SEEDS:
        samples, test = toy(seed)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            last_of_cssv = federate(ShapFed(), samples, folder / "CSSV", seed)
            class_values = last_of_cssv["details"]["class_value"]
            found["CSSV"].append([list(class_values[client].values()) for client in CLIENTS])
            found["truth for CSSV"].append(truth(folder / "CSSV", test))

            strategy = CGSV(gamma=None, reward=None)
            last_of_cgsv = federate(strategy, samples, folder / "CGSV", seed)
            contributions = last_of_cgsv["contributions"]
            # CGSV has one number for all classes of a client.
            found["CGSV"].append([[contributions[client]] * CLASSES for client in CLIENTS])
            found["truth for CGSV"].append(truth(folder / "CGSV", test))
    return found


def network() -> torch.nn.Module:
    """One hidden layer."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES)
    )


def toy(seed: int) -> tuple[dict[str, Samples], Samples]:
    """Draw every client's samples, and 200 of every class for the test.

    Samples are normally distributed around their class's centre.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((CLASSES, FEATURES))

    def draw(counts: list[int]) -> Samples:
        labels = np.repeat(np.arange(CLASSES), counts)
        points = centres[labels] + 1.5 * rng.standard_normal((len(labels), FEATURES))
        return torch.tensor(points, dtype=torch.float32), torch.from_numpy(labels)

    samples = {}
    for client, block in CLIENTS.items():
        samples[client] = draw(_counts(block))
    wrong_client = list(CLIENTS)[WRONG_CLIENT]
    number = _counts(CLIENTS[wrong_client])[WRONG_CLASS]
    # Adding 1 to 5, modulo 6 classes, gives any other class.
    shifts = torch.from_numpy(rng.integers(1, CLASSES, number))
    labels = samples[wrong_client][1]
    labels[labels == WRONG_CLASS] = (WRONG_CLASS + shifts) % CLASSES
    return samples, draw([200] * CLASSES)


def _counts(block: int) -> list[int]:
    """Return the number of samples of every class at a client with this block."""
    counts = [OTHER] * CLASSES
    for index in range(3 * block, 3 * block + 3):
        counts[index] = OWN
    return counts


class Client:
    """Trains one epoch of plain SGD from the weights of a request."""

    def __init__(self, samples: Samples):
        self.points, self.labels = samples

    def answer(self, request: Request) -> Reply:
        """Return the change of every tensor."""
        net = network()
        net.load_state_dict(dict(request.weights))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(request.seed)
        order = torch.randperm(len(self.labels), generator=generator)
        for batch in order.split(32):
            optimizer.zero_grad()
            logits = net(self.points[batch])
            torch.nn.functional.cross_entropy(logits, self.labels[batch]).backward()
            optimizer.step()
        update = {name: tensor - request.weights[name] for name, tensor in net.state_dict().items()}
        return Reply(
            request.client, update, len(order), id=request.id, run=request.run, round=request.round
        )


def federate(
    strategy: Strategy, samples: Mapping[str, Samples], folder: Path, seed: int
) -> Mapping[str, Any]:
    """Run a federation; return the ledger's record of its last round."""

    def initial() -> Any:
        net = network()
        return dict(net.state_dict()), read_spec(net, torch.zeros(1, FEATURES))

    transport = InProcess({name: partial(Client, of_client) for name, of_client in samples.items()})
    federation = Federation(
        strategy,
        transport,
        ROUNDS,
        initial,
        run_dir=folder,
        evaluate=(),
        final=(),
        seed=seed,
        record_updates=True,
    )
    return federation.run().rounds[-1]


def accuracies(weights: Weights, test: Samples) -> list[float]:
    """Compute the accuracy of every class."""
    points, labels = test
    net = network()
    net.load_state_dict(dict(weights))
    with torch.no_grad():
        right = net(points).argmax(1) == labels
    return [float(right[labels == index].float().mean()) for index in range(CLASSES)]


def truth(folder: Path, test: Samples) -> list[list[float]]:
    """Compute the Shapley value of every class's accuracy: client x class.

    Values are means over the rounds of a recorded run.
    """
    rounds = recorded_rounds(folder)
    models = MultiRound(rounds)

    @cache
    def scores(number: int, coalition: frozenset[str]) -> list[float]:
        return accuracies(models(number, coalition), test)

    def utility(number: int, index: int, coalition: frozenset[str]) -> float:
        return scores(number, coalition)[index]

    of_classes = []
    for index in range(CLASSES):
        valuations = []
        for number in range(len(rounds)):
            valuations.append(exact_shapley(Game(CLIENTS, partial(utility, number, index))))
        of_classes.append(sum_over_rounds(valuations).values)
    values = []
    for client in CLIENTS:
        values.append([float(of_class[client]) / len(rounds) for of_class in of_classes])
    return values


def table() -> str:
    """Means over the seeds; below, how well every method agrees with the truth."""
    found = results()
    wrong = f"\\* wrong labels in class {WRONG_CLASS + 1}"
    return f"{_values(found)}\n\n{wrong}\n\n{_agreements(found)}"


def _values(found: Mapping[str, np.ndarray]) -> str:
    """A row per client: the truth and its class values, and CGSV's one number."""
    true = found["truth for CSSV"].mean(axis=0)
    class_values = found["CSSV"].mean(axis=0)
    numbers = found["CGSV"].mean(axis=0)[:, 0]
    rows = []
    for row, name in enumerate(_marked_clients()):
        cells = []
        for of_truth, of_method in zip(true[row], class_values[row]):
            cells.append(f"{of_truth:+.2f} / {of_method:+.2f}")
        rows.append([name, *cells, f"{numbers[row]:.2f}"])
    classes = [f"class {index + 1}, truth / CSSV" for index in range(CLASSES)]
    return markdown(["", *classes, "CGSV"], rows)


def _agreements(found: Mapping[str, np.ndarray]) -> str:
    """A row per method, and one for the truth's own mean per client."""
    true_means = found["truth for CSSV"].mean(axis=2, keepdims=True)
    compared = [
        ("CSSV", found["CSSV"], found["truth for CSSV"]),
        ("CGSV", found["CGSV"], found["truth for CGSV"]),
        (
            "the truth's own mean per client",
            np.repeat(true_means, CLASSES, axis=2),
            found["truth for CSSV"],
        ),
    ]
    rows = []
    for name, values, true in compared:
        last_in_class = values[:, :, WRONG_CLASS].argmin(axis=1)
        rows.append(
            [
                name,
                agreement(values, true),
                agreement(values.mean(axis=2), true.mean(axis=2)),
                f"{(last_in_class == WRONG_CLIENT).sum()} of {len(values)}",
            ]
        )
    head = [
        "rank correlation with the truth",
        "over pairs of client and class",
        "over clients",
        "client 2 is last in class 2",
    ]
    return markdown(head, rows)


def figure() -> Figure:
    """Means over the seeds; every class has its own scale."""
    mean = {name: values.mean(axis=0) for name, values in results().items()}
    maps = {"truth": mean["truth for CSSV"], "CSSV": mean["CSSV"], "CGSV": mean["CGSV"]}
    return heat_maps(maps, _marked_clients(), [str(index + 1) for index in range(CLASSES)])


def _marked_clients() -> list[str]:
    """The names of the clients, with a star behind the one with wrong labels."""
    names = list(CLIENTS)
    names[WRONG_CLIENT] += "*"
    return names


def results() -> dict[str, np.ndarray]:
    """Name -> seed x client x class."""
    found = measurement("shapfed_figure3")
    del found["minutes"]
    return {name: np.array(values) for name, values in found.items()}


def agreement(values: np.ndarray, true: np.ndarray) -> str:
    """Compute the mean over the seeds of Spearman's correlation over all entries."""
    correlations = []
    for of_method, of_truth in zip(values, true):
        correlations.append(spearmanr(of_method.ravel(), of_truth.ravel()).statistic)
    return words(over_folds(correlations, np.mean), 2)
