# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The models of coalitions of a bundle's sites, for valuations that train them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import Weights
from monai_fairfl.run.checkpoint import Checkpoints
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies import FedAvg, Strategy
from monai_fairfl.utils.terminal import stopping_on_signals


@dataclass(frozen=True)
class CoalitionTraining:
    """Trains a coalition's model in a federation of its own, resumed where it was stopped.

    Args:
        sites: all sites of the federation.
        settings: of the run that is valued.
        finished: name of a strategy -> folder of its finished run of all sites.
        first_model: builds the model that every run begins with.
        federation: makes the federation of a strategy, in a folder, of some sites, with other
            settings than those of the run.
    """

    sites: Sequence[str]
    settings: RunSettings
    finished: Mapping[str, Path]
    first_model: Callable[[], Weights]
    federation: Callable[..., Federation]

    def __call__(
        self, coalition: frozenset[str], strategy: Strategy | None, folder: Path
    ) -> Weights:
        """The model that ``coalition`` trains.

        Args:
            coalition: names of its sites; without any, nothing is trained.
            strategy: with which they train; ``None``: FedAvg.
            folder: of the coalition's run.

        Raises:
            FederationError: when the training was stopped; it names the way to go on.
        """
        if not coalition:
            return self.first_model()
        strategy = FedAvg() if strategy is None else copy.deepcopy(strategy)
        trained = self._model_of_finished_run(coalition, strategy)
        if trained is not None:
            return trained

        per_round = self.settings.clients_per_round or len(coalition)
        samples = {}
        for site, count in self.settings.samples.items():
            if site in coalition:
                samples[site] = count
        federation = self.federation(
            strategy,
            folder,
            sorted(coalition),
            min_clients=min(len(coalition), per_round),
            evaluate=(),
            final=(),
            record_updates=False,
            adapt_epochs=0,
            adapt_fuse=False,
            samples=samples,
        )
        with stopping_on_signals(federation.stop):
            if not federation.run(resume=True).finished:
                raise FederationError("stopped; the same command with --resume True goes on")
        return federation.strategy.weights

    def needs_training(self, coalition: frozenset[str], strategy: Strategy | None) -> bool:
        """Whether the model of ``coalition`` is neither the first one nor that of a finished run.

        Args:
            coalition: names of its sites.
            strategy: with which they train; ``None``: FedAvg.
        """
        if not coalition:
            return False
        return self._model_of_finished_run(coalition, strategy or FedAvg()) is None

    def _model_of_finished_run(
        self, coalition: frozenset[str], strategy: Strategy
    ) -> Weights | None:
        """The model of the finished run of all sites, if no other site ever took part in it."""
        run = self.finished.get(strategy.name)
        if run is None or coalition != set(self.sites):
            return None
        records = read_ledger(run / "ledger.jsonl")
        if not trained_by(records, self.sites, self.settings.clients_per_round):
            return None
        checkpoint = Checkpoints(run / "checkpoints").load()
        return None if checkpoint is None else checkpoint.weights


def trained_by(
    records: Sequence[Mapping[str, Any]], clients: Sequence[str], per_round: int | None
) -> bool:
    """Whether just these clients trained a run's model in every round, and none was ever missing.

    Args:
        records: of the run's ledger.
        clients: names of the clients in question.
        per_round: how many of them a round samples; ``None``: all.

    >>> rounds = [{"kind": "round", "clients": ["A", "B"], "missing": {}}]
    >>> run = [{"kind": "start", "clients": ["A", "B"]}, *rounds]
    >>> trained_by(run, ["A", "B"], None), trained_by(run, ["A"], None)
    (True, False)
    """
    if set(records[0]["clients"]) != set(clients):
        return False
    size = min(len(clients), per_round or len(clients))
    for record in records:
        if record["kind"] != "round":
            continue
        others = set(record["clients"]) - set(clients)
        if others or record["missing"] or len(record["clients"]) != size:
            return False
    return True
