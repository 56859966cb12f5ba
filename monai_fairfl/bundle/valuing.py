# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The valuations of a bundle's finished runs, and the coalitions that are trained for them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.bundle.trainings import Jobs, Training, deal_out, show_text
from monai_fairfl.errors import FederationError
from monai_fairfl.guards.registry import config_of
from monai_fairfl.messages import Weights
from monai_fairfl.run.checkpoint import Checkpoints
from monai_fairfl.server.federation import History
from monai_fairfl.server.round import Facts
from monai_fairfl.strategies import FedAvg, Strategy
from monai_fairfl.transports.workers import Failed, Turn
from monai_fairfl.utils.devices import torch_threads
from monai_fairfl.utils.terminal import quiet, stopping_on_signals
from monai_fairfl.valuation import FinishedRun, Panel, RunValuation
from monai_fairfl.valuation.run import value_run

if TYPE_CHECKING:
    from monai_fairfl.bundle.federation import BundleFederation

STOPPED = "stopped; the same command with --resume True goes on"

DECIDING = ("files", "sites", "data", "rounds", "device")
"""Keys of ``settings.json`` that decide what a coalition trains."""

TRAINING_ONLY: dict[str, Any] = {"evaluate": (), "final": (), "record_updates": False}
TRAINING_ONLY |= {"adapt_epochs": 0, "adapt_fuse": False}
"""Settings of a federation that nothing but its model is wanted of."""


@dataclass(frozen=True)
class RunsValuer:
    """Makes valuations of finished runs, and trains coalitions of their sites for these.

    Models that are trained for coalitions are common to all runs.

    Args:
        runs: the federation.
        histories: of the finished runs.
    """

    runs: BundleFederation
    histories: Sequence[History]

    def value(self, valuations: Sequence[RunValuation]) -> None:
        """Make every valuation of every run, in their order.

        Raises:
            FederationError: when a run cannot be valued, or a training was stopped.
        """
        runs, names = self.runs, list(self.runs.sites)
        # All that decides what a coalition trains: other settings, another folder.
        decides = {name: runs.config[name] for name in DECIDING}
        decides |= {"initial": runs.settings.initial, "guards": config_of(runs.guards)}
        decides |= runs.settings.training() | runs.settings.compared()
        text = json.dumps(decides, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        retrained = runs.run_dir / "valuations" / f"retrained-{digest}"
        evaluation = runs.files.get("evaluate.json", "")
        with quiet(), torch_threads(runs.settings.threads):
            for history in self.histories:
                folder = history.run_dir
                expected, facts = runs.settings.expected({}), Facts(records=history.records)
                transport = runs.transport(folder, names, runs.jobs)
                panel = Panel(transport, names, expected=expected, facts=facts)
                trains = (self.train, retrained, self._train_ahead)
                run = FinishedRun(folder, names, panel, *trains, evaluation, show_text)
                try:
                    for valuation in valuations:
                        value_run(valuation, run)
                finally:
                    panel.close()

    def _train_ahead(
        self, coalitions: Mapping[frozenset[str], Path], strategy: Strategy | None
    ) -> None:
        """Train several coalitions, at a time where there are processes for it.

        Args:
            coalitions: to train -> folder of each.
            strategy: with which they train; ``None``: FedAvg.

        Raises:
            FederationError: when the training was stopped, or a coalition's failed.
        """
        runs = self.runs
        trainings = []
        for coalition, folder in coalitions.items():
            if coalition and self._model_of_finished_run(coalition, strategy or FedAvg()) is None:
                work = partial(self._train_apart, coalition, strategy, folder)
                trainings.append(Training(folder.name, runs.settings.rounds, work))
        found, stopped = deal_out(trainings, runs.jobs, len(runs.sites), runs.settings.threads)
        if stopped:
            raise FederationError(STOPPED)
        for title, result in found.items():
            if isinstance(result, Failed):
                raise FederationError(f"coalition {title}: {result.reason}; use --resume True")

    def _train_apart(
        self, coalition: frozenset[str], strategy: Strategy | None, folder: Path, turn: Turn
    ) -> None:
        """Train one coalition to its end, so that its model is there when somebody asks for it."""
        self.train(coalition, strategy, folder, Jobs(turn.jobs, turn.devices))

    def train(
        self,
        coalition: frozenset[str],
        strategy: Strategy | None,
        folder: Path,
        jobs: Jobs | None = None,
    ) -> Weights:
        """The model that a coalition trains, in a federation that goes on where it was stopped.

        Args:
            coalition: names of its sites; without any, nothing is trained.
            strategy: with which they train; ``None``: FedAvg.
            folder: of the coalition's run.
            jobs: processes and devices; ``None``: those of the runs.

        Raises:
            FederationError: when the training was stopped; it names the way to go on.
        """
        if not coalition:
            return self.runs.first_model()[0]
        strategy = FedAvg() if strategy is None else copy.deepcopy(strategy)
        trained = self._model_of_finished_run(coalition, strategy)
        if trained is not None:
            return trained

        settings = self.runs.settings
        federation = self.runs.federation(
            strategy,
            folder,
            sorted(coalition),
            jobs or self.runs.jobs,
            **TRAINING_ONLY,
            min_clients=min(len(coalition), settings.clients_per_round or len(coalition)),
            samples={site: n for site, n in settings.samples.items() if site in coalition},
        )
        with stopping_on_signals(federation.stop):
            if not federation.run(resume=True).finished:
                raise FederationError(STOPPED)
        return federation.strategy.weights

    def _model_of_finished_run(
        self, coalition: frozenset[str], strategy: Strategy
    ) -> Weights | None:
        """The model of the finished run of all sites, if none was ever missing in it."""
        for history in self.histories if coalition == set(self.runs.sites) else ():
            start = history.records[0]
            is_same = start["name"] == strategy.name and set(start["clients"]) == coalition
            if is_same and not any(record["missing"] for record in history.rounds):
                checkpoint = Checkpoints(history.run_dir / "checkpoints").load()
                return None if checkpoint is None else checkpoint.weights
        return None
