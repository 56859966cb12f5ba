# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The valuations of a bundle's finished runs, and the coalitions that are trained for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from monai_fairfl.bundle.coalitions import CoalitionTraining
from monai_fairfl.bundle.initial import digests_of_configs
from monai_fairfl.bundle.run_config import digest_of_training
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.runs_display import deal_out, display_of, show_text
from monai_fairfl.errors import FederationError
from monai_fairfl.server.federation import History
from monai_fairfl.server.round import Facts
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.workers import Failed, Turn, at_a_time
from monai_fairfl.utils.devices import torch_threads
from monai_fairfl.utils.terminal import quiet
from monai_fairfl.valuation import FinishedRun, Panel, RunValuation
from monai_fairfl.valuation.run import value_run


@dataclass(frozen=True)
class RunsValuer:
    """Makes valuations of finished runs.

    Models that are trained for coalitions are common to all runs.

    Args:
        runs: of the federation.
        finished: name of a strategy -> folder of its finished run of all sites.
        write_start: writes what is there before coalitions are trained beside each other.
    """

    runs: BundleRuns
    finished: Mapping[str, Path]
    write_start: Callable[[], None]

    def value(self, valuations: Sequence[RunValuation], histories: Sequence[History]) -> None:
        """Make every valuation of every run.

        Args:
            valuations: in their order.
            histories: of the finished runs.

        Raises:
            FederationError: when a run cannot be valued, or a training was stopped.
        """
        digest = digest_of_training(self.runs)
        retrained = self.runs.folders.run_dir / "valuations" / f"retrained-{digest}"
        with quiet(), torch_threads(self.runs.settings.threads):
            for history in histories:
                self._value_run(valuations, history, retrained)

    def _value_run(
        self, valuations: Sequence[RunValuation], history: History, retrained: Path
    ) -> None:
        names = self.runs.sites.names
        panel = Panel(
            self.runs.transport(history.run_dir, names),
            names,
            expected=self.runs.settings.expected({}),
            facts=Facts(records=history.records),
        )
        run = FinishedRun(
            history.run_dir,
            names,
            panel,
            _coalition_training(self.runs, self.finished),
            retrained,
            self._train_ahead,
            digests_of_configs(self.runs.sites.bundle_root).get("evaluate.json", ""),
            show_text,
        )
        try:
            for valuation in valuations:
                value_run(valuation, run)
        finally:
            panel.close()

    def _train_ahead(
        self, coalitions: Mapping[frozenset[str], Path], strategy: Strategy | None
    ) -> None:
        """Train several coalitions at a time, where there are processes for it.

        Without them each is trained when its model is asked for. The models are the same.

        Args:
            coalitions: to train -> folder of each.
            strategy: with which they train; ``None``: FedAvg.

        Raises:
            FederationError: when the training was stopped, or a coalition's failed.
        """
        runs = self.runs
        training = _coalition_training(runs, self.finished)
        pieces = {}
        for coalition, folder in coalitions.items():
            if training.needs_training(coalition, strategy):
                given = (runs, self.finished, coalition, strategy, folder)
                pieces[folder.name] = partial(train_coalition, *given)
        most = len(pieces) * len(runs.sites.names)
        jobs = runs.jobs.workers(most, runs.settings.threads)
        beside = at_a_time(pieces, jobs)
        if beside == 1:
            return
        # Once, here: several processes would write it at a time.
        self.write_start()
        with display_of(list(pieces), runs.settings.rounds, beside) as display:
            found, stopped = deal_out(pieces, runs.jobs.devices_of(jobs), display)
        if stopped:
            raise FederationError("stopped; the same command with --resume True goes on")
        for title, result in found.items():
            if isinstance(result, Failed):
                raise FederationError(f"coalition {title}: {result.reason}; use --resume True")


def train_coalition(
    runs: BundleRuns,
    finished: Mapping[str, Path],
    coalition: frozenset[str],
    strategy: Strategy | None,
    folder: Path,
    turn: Turn,
) -> None:
    """Train one coalition to its end, so that its model is there when somebody asks for it.

    Args:
        runs: of the federation.
        finished: as :class:`RunsValuer`.
        coalition: names of its sites.
        strategy: with which they train; ``None``: FedAvg.
        folder: of the coalition's run.
        turn: what this training may use.

    Raises:
        FederationError: when the training was stopped.
    """
    _coalition_training(runs.for_turn(turn), finished)(coalition, strategy, folder)


def _coalition_training(runs: BundleRuns, finished: Mapping[str, Path]) -> CoalitionTraining:
    """Trains a coalition's model."""
    return CoalitionTraining(
        sites=runs.sites.names,
        settings=runs.settings,
        finished=finished,
        first_model=lambda: runs.first_model()[0],
        federation=runs.federation,
    )
