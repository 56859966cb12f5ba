# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives strategies without any engine: replies made of plain tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from monai_fairfl import ModelSpec, Replies, Reply, Request, RoundResult, Strategy
from monai_fairfl.server import Observer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden_values.json").read_text())
SPEC = ModelSpec(("w",), layers={"w": "fc"})
CLIENTS = ("1", "2", "3")
COMMON = GOLDEN["common"]
UPDATES = dict(zip(CLIENTS, COMMON["updates"], strict=True))
SAMPLES = dict(zip(CLIENTS, (50, 30, 20), strict=True))


def reported(name: str, numbers: Sequence[float]) -> dict[str, dict[str, float]]:
    """client -> the measurement that it reports, for :func:`play_round`."""
    return {client: {name: number} for client, number in zip(CLIENTS, numbers, strict=True)}


def vector(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def play(
    strategy: Strategy,
    updates: Sequence[Mapping[str, Sequence[float]]] = (UPDATES,),
    measurements: Sequence[Mapping[str, Mapping[str, float]]] = (),
    start: Sequence[float] = COMMON["w0"],
    samples: Mapping[str, int] | None = None,
) -> list[RoundResult]:
    """Play whole rounds.

    Args:
        strategy: is started first.
        updates: of each round, client -> update.
        measurements: of each round, client -> what it measures if a request asks for it; nothing
            in any round where it is not given.
        start: the initial model.
        samples: client -> images of one local epoch; 1 when not given.
    """
    strategy.start({"w": vector(start)}, sorted(updates[0]), SPEC)
    results = []
    for update, measured in zip(updates, measurements or [{}] * len(updates), strict=True):
        results.append(play_round(strategy, update, measured, samples))
    return results


def play_round(
    strategy: Strategy,
    update: Mapping[str, Sequence[float]],
    measured: Mapping[str, Mapping[str, float]],
    samples: Mapping[str, int] | None = None,
) -> RoundResult:
    """Play one round of one exchange; the arguments are those of one round of :func:`play`."""

    def answer(request: Request) -> Reply:
        client = request.client
        known = measured.get(client, {})
        asked = {name: value for name, value in known.items() if name in request.measure}
        count = (samples or {}).get(client, 1)
        return request.reply({"w": vector(update[client])}, count, measurements=asked)

    result, exchanges = drive(strategy, sorted(update), answer)
    assert len(exchanges) == 1
    return result


def drive(
    strategy: Strategy,
    clients: Sequence[str],
    answer: Callable[[Request], Reply | None],
    spec: ModelSpec = SPEC,
) -> tuple[RoundResult, list[list[Request]]]:
    """One round of any number of exchanges.

    Args:
        strategy: gets the weights and rewards of the result.
        clients: of the round.
        answer: in place of the clients; ``None`` where one does not answer.
        spec: the model's tensors.

    Returns:
        The result, and the requests of each exchange.
    """
    generator = strategy.round(clients)
    exchanges = []
    requests = next(generator)
    while True:
        numbered = [replace(request, id=number) for number, request in enumerate(requests)]
        exchanges.append(numbered)
        replies = []
        for request in numbered:
            reply = answer(request)
            if reply is not None:
                replies.append(replace(reply, id=request.id))
        try:
            requests = generator.send(Replies(replies, numbered, spec))
        except StopIteration as stop:
            result = stop.value
            strategy.weights = result.weights
            strategy.rewards = result.rewards or strategy.rewards
            return result, exchanges


def agree(found: Any, expected: Any, atol: float = 2e-6) -> None:
    """Numbers, or those of the three clients, are the worked ones."""
    numbers = values(found) if isinstance(found, Mapping) else found
    np.testing.assert_allclose(numbers, expected, atol=atol)


def values(numbers: Mapping[str, Any], clients: Sequence[str] = CLIENTS) -> list[float]:
    return [float(numbers[client]) for client in clients]


class Listening(Observer):
    """Passes the records that are added to a function."""

    def __init__(self, added: Callable[[Any], Any]):
        self.added = added

    def record_added(self, record: Any) -> None:
        self.added(record)


class LeastSquares:
    """A client whose loss is ||w - target||^2 / 2.

    It trains by one gradient step towards its target; its score is 1 / (1 + distance).
    """

    def __init__(self, target: Sequence[float]):
        self.target = vector(target)

    def answer(self, request: Request) -> Reply:
        weights = request.weights["w"]
        measured: dict[str, float] = {}
        for name in request.measure:
            distance = float(torch.linalg.vector_norm(weights - self.target))
            score = 1 / (1 + distance)
            measured[name] = 1 - score if name == "leave_one_out_error" else score
        if request.task == "measure":
            return request.reply(measurements=measured)
        generator = np.random.default_rng(request.seed)
        noise = vector(generator.normal(size=len(weights)))
        update = 0.5 * (self.target - weights) + 1e-3 * noise
        return request.reply({"w": update}, 10, measurements=measured, num_cases=2, num_steps=1)
