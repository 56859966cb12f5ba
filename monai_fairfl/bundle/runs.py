# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The runs of a bundle's federation: their clients and first model, and how one is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.initial import bundle_recipe, initial_model
from monai_fairfl.bundle.jobs import Jobs
from monai_fairfl.bundle.settings import Settings
from monai_fairfl.bundle.sites import BundleSites
from monai_fairfl.errors import (
    DiskFullError,
    FairFLError,
    FederationError,
    TransportAborted,
    in_words,
)
from monai_fairfl.guards import Guard
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.run import resuming
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import Failed, Turn, WorkerClients, dealt_out
from monai_fairfl.utils.tensors import own_random_state
from monai_fairfl.utils.terminal import quiet, stopping_on_signals

logger = logging.getLogger(__name__)

CONCERNS_ALL = (OSError, DiskFullError, TransportAborted)
"""Errors of one run that the other ones would meet, too."""


class SomeFailed(FederationError):
    """Some of several trainings failed; what the others reached is written."""


class RunFolders:
    """Where the runs of some strategies lie: a single one in ``run_dir``, several below it.

    Args:
        run_dir: of the single run or the comparison.
        strategies: that are to run.
    """

    def __init__(self, run_dir: Path, strategies: Sequence[Strategy]):
        self.run_dir = run_dir
        self.names = [strategy.name for strategy in strategies]

    def folder_of(self, strategy: Strategy) -> Path:
        """The folder of a strategy's run."""
        if len(self.names) == 1:
            return self.run_dir
        return self.run_dir / strategy.name

    def previous(self) -> list[str]:
        """Strategies whose runs the comparison in ``run_dir`` holds and that are not to run now."""
        recorded = resuming.compared(self.run_dir)
        return [name for name in recorded if name not in self.names]

    def used(self) -> list[Path]:
        """Folders that hold a run which goes on, or with which the new runs are compared.

        A run of a comparison that is not to run now is one of them.
        """
        if resuming.begun(self.run_dir):
            return [self.run_dir]
        return [self.run_dir / name for name in resuming.compared(self.run_dir, self.names)]


@dataclass(frozen=True)
class BundleRuns:
    """Makes and trains the runs of a bundle's sites.

    It can be pickled, so that a worker process can train a run.

    Args:
        sites: all sites, with their settings and those of every run.
        folders: of the strategies' runs.
        jobs: processes and devices that are shared among the runs; :meth:`for_turn` has those of
            one run.
        guards: of every run.
        trained_alone: folder of the models that sites trained alone; ``None``: nobody did.
        resume: go on with what the runs' folders hold.
    """

    sites: BundleSites
    folders: RunFolders
    jobs: Jobs
    guards: Sequence[Guard]
    trained_alone: Path | None
    resume: bool

    @property
    def settings(self) -> Settings:
        """Of every run."""
        return self.sites.settings

    def for_turn(self, turn: Turn) -> BundleRuns:
        """These runs with the processes and devices that a turn allows."""
        return replace(
            self,
            jobs=Jobs(turn.jobs, turn.devices),
            # What a process that ended has left is gone on with.
            resume=self.resume or turn.again,
        )

    # ---- one run

    def run_strategy(
        self, strategy: Strategy, write_start: Callable[[], None], turn: Turn
    ) -> History | Failed:
        """Train the run of one strategy; nothing is checked again.

        Args:
            strategy: one of the comparison, which may have more.
            write_start: is called when the run starts, before anything of it is written.
            turn: what this run may use.

        Returns:
            Its history; or, in a comparison, why this run alone failed.

        Raises:
            Exception: what ends a single run, or what other runs would meet, too: a full disk, or
                an error before the run has started, which is of its settings or its folder.
        """
        runs = self.for_turn(turn)
        start = _Start(write_start)
        try:
            return runs._train(strategy, start)
        except CONCERNS_ALL:
            raise
        except Exception as error:
            before_the_run = isinstance(error, FairFLError) and not start.has_come
            if len(self.folders.names) == 1 or before_the_run:
                raise
            return Failed(logged_failure(strategy.name, error))

    def _train(self, strategy: Strategy, start: Observer) -> History:
        folder = self.folders.folder_of(strategy)
        resume = self.resume and resuming.begun(folder)
        federation = self.federation(strategy, folder, self.sites.names, observer=start)
        with stopping_on_signals(federation.stop), quiet():
            return federation.run(resume)

    def federation(
        self, strategy: Strategy, folder: Path, names: Sequence[str], **changes: Any
    ) -> Federation:
        """A federation of some sites.

        Args:
            strategy: of the run.
            folder: of the run.
            names: of the sites.
            changes: arguments of the federation in place of those of the run.
        """
        arguments = {
            "guards": self.guards,
            "recipe": self.recipe(),
            **self.settings.keywords(),
            **changes,
        }
        transport = self.transport(folder, names)
        return Federation(
            strategy, transport, initial=self._initial_model, run_dir=folder, **arguments
        )

    # ---- its model

    def first_model(self) -> tuple[Weights, ModelSpec]:
        """The model that every run begins with."""
        with own_random_state(self.settings.seed):
            return self._initial_model()

    def _initial_model(self) -> tuple[Weights, ModelSpec]:
        """The same under the caller's seed."""
        given = self.settings
        return initial_model(given.bundle_root, given.overrides, given.initial, given.config)

    def recipe(self) -> ModelRecipe | None:
        """The recipe of the models; ``None`` where the bundle declares none."""
        given = self.settings
        return bundle_recipe(
            given.bundle_root,
            given.overrides,
            given.config,
            given.sites,
            local_epochs=given.local_epochs,
            full_run=given.full_run,
        )

    # ---- its clients

    def transport(self, folder: Path, names: Sequence[str]) -> Transport:
        """Reaches the clients of some sites: in this process, or in several.

        Args:
            folder: of the run.
            names: of the sites.
        """
        number = self.jobs.workers(len(names), self.settings.threads)
        places = dict.fromkeys(names, 0)
        if number > 1:
            places = dealt_out({name: self.sites.cases[name] for name in names}, number)
        devices = self.jobs.devices_of(number)
        clients = {}
        for name in names:
            device = devices[places[name]]
            alone = self._model_trained_alone(name, folder)
            clients[name] = self.sites.client_maker(name, folder, device, alone=alone)
        if number == 1:
            return InProcess(clients)
        return WorkerClients(clients, places)

    def _model_trained_alone(self, name: str, folder: Path) -> str:
        """File of the model that a site trained alone, in another run; empty where nobody did.

        A site whose file is not there says so when it looks for it.

        Args:
            name: of the site.
            folder: of the run.
        """
        if not self.settings.adapt_epochs or self.trained_alone is None:
            return ""
        if self.trained_alone.parent == folder:
            # This is the run that trains alone.
            return ""
        return str((self.trained_alone / f"{name}.pt").absolute())


class _Start(Observer):
    """Notes that a run has started, and calls a function before anything of it is written."""

    def __init__(self, write_start: Callable[[], None]):
        self.has_come = False
        self._write_start = write_start

    def run_started(self) -> None:
        self.has_come = True
        self._write_start()


def logged_failure(name: str, error: Exception) -> str:
    """Log that strategy ``name`` failed, and return why, in words.

    The log has the traceback where the error is a fault of the code.
    """
    if isinstance(error, FairFLError):
        logger.error("%s failed: %s", name, error)
        return str(error)
    logger.error("%s failed", name, exc_info=error)
    return in_words(error)


def failure_of(failed: Mapping[str, str], number: int, what: str = "strategies") -> SomeFailed:
    """The error that ends a comparison in which some runs failed.

    Args:
        failed: name of each -> reason.
        number: of all runs.
        what: the runs are called.
    """
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return SomeFailed(
        f"{len(failed)} of {number} {what} failed ({reasons}). What the others reached is "
        f"not lost. The same command with --resume True tries again: {', '.join(failed)}"
    )
