# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One federation of classifiers, from its strategy to every client's model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from classification.clients import Client, Recipe
from classification.data import Samples

from monai_fairfl.guards import Guard
from monai_fairfl.messages import Train, Weights, read_spec
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.in_process import InProcess

Watch = Callable[[int, Mapping[str, Weights]], None]
"""Is given the number of rounds done, and the model that every client continues from."""


@dataclass(frozen=True)
class Outcome:
    """What a federation leaves.

    Args:
        received: client -> the model that it received last.
        trained: client -> that model after one more round of the client's own training.
        rounds: records of the ledger.
        touched: client-rounds in which a guard acted.
        client_rounds: in all.
    """

    received: Mapping[str, Weights]
    trained: Mapping[str, Weights]
    rounds: list[Mapping[str, Any]]
    touched: int
    client_rounds: int


class _Watcher(Observer):
    """Shows the clients' models after every round to a function."""

    def __init__(self, strategy: Strategy, clients: list[str], watch: Watch):
        self.strategy = strategy
        self.clients = clients
        self.watch = watch

    def record_added(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "round":
            models = {client: self.strategy.start_of(client) for client in self.clients}
            self.watch(record["round"] + 1, models)


def federate(
    strategy: Strategy,
    samples: Mapping[str, Samples],
    recipe: Recipe,
    rounds: int,
    seed: int,
    watch: Watch | None = None,
    guards: Sequence[Guard] = (),
) -> Outcome:
    """Run ``rounds`` rounds, and train every client once more.

    Args:
        strategy: as a user would give it.
        samples: client -> what it trains on.
        recipe: of all clients.
        rounds: of the federation.
        seed: of the first model and of all training.
        watch: is shown the clients' models after every round.
        guards: none by default, as in the papers.
    """
    torch.set_num_threads(1)

    def initial() -> Any:
        network = recipe.network()
        return dict(network.state_dict()), read_spec(network, torch.zeros(1, recipe.features))

    makers = {name: partial(Client, own, recipe) for name, own in samples.items()}
    observer = None
    if watch is not None:
        observer = _Watcher(strategy, list(samples), watch)
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(
            strategy,
            InProcess(makers),
            rounds,
            initial,
            guards,
            run_dir=Path(folder) / "run",
            evaluate=(),
            final=(),
            seed=seed,
            observer=observer,
        )
        records = federation.run().rounds

    received = {name: strategy.start_of(name) for name in samples}
    trained = {}
    for name, model in received.items():
        update = Client(samples[name], recipe).answer(Train(name, model)).update
        assert update is not None
        trained[name] = {key: model[key] + change for key, change in update.items()}
    touched = sum(len(record["verdicts"]) for record in records)
    return Outcome(received, trained, records, touched, rounds * len(samples))
