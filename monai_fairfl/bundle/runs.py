# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The runs of a bundle's sites as plain values: their clients, first model, folders and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.bundle.initial import digests_of_configs, initial_model
from monai_fairfl.bundle.settings import Settings, SiteSettings, rows_of
from monai_fairfl.bundle.site import bundle_client, listed_cases
from monai_fairfl.bundle.trainings import CONCERNS_ALL, Jobs, logged_failure
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.guards.registry import config_of
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.run import resuming
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Strategy
from monai_fairfl.strategies.registry import configuration_of
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import Failed, Turn, WorkerClients, dealt_out
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.settings import LEAD
from monai_fairfl.utils.tensors import own_random_state
from monai_fairfl.utils.terminal import quiet, stopping_on_signals

NOT_AGAIN = ("check", "strategy", "run_dir", "resume", "valuations")
"""Keys that whoever goes on with a finished run gives anew, or leaves to ``federate.json``."""


@dataclass(frozen=True)
class StartFiles(Observer):
    """Writes files when a run begins or goes on, before anything else of it is written.

    A run that is refused writes none. Where they are there already, nothing is written: other runs
    may be about to read them.

    Args:
        files: file -> content.
    """

    files: Mapping[Path, bytes]

    def run_started(self) -> None:
        for file, content in self.files.items():
            if not file.exists() or file.read_bytes() != content:
                write_atomically(file, content)


@dataclass(frozen=True)
class BundleRuns:
    """The runs of one or several strategies over the sites of a bundle.

    It can be pickled, so that a worker process can train a run.

    Args:
        settings: of all runs.
        bundle_root: the bundle.
        run_dir: the folder of the single run, or of several.
        sites: the sites, sorted -> folder of each one's images.
        strategies: names of those that are to run.
        guards: of every run.
        jobs: processes and devices that are shared among the runs.
        recipe: of the models; ``None`` where the bundle declares none.
        alone: the one of ``strategies`` whose models are candidates of the others' last mile;
            empty: none.
    """

    settings: Settings
    bundle_root: Path
    run_dir: Path
    sites: Mapping[str, Path]
    strategies: Sequence[str]
    guards: Sequence[Guard]
    jobs: Jobs
    recipe: ModelRecipe | None
    alone: str = ""

    # ---- folders

    def folder_of(self, strategy: str) -> Path:
        """The folder of a strategy's run: a single one lies in ``run_dir``, several below it."""
        return self.run_dir if len(self.strategies) == 1 else self.run_dir / strategy

    def previous(self) -> list[str]:
        """Strategies whose runs the comparison in ``run_dir`` holds and that are not to run now."""
        recorded = resuming.compared(self.run_dir)
        return [name for name in recorded if name not in self.strategies]

    def used(self) -> list[Path]:
        """Folders that hold a run which goes on, or with which the new runs are compared.

        A run of a comparison that is not to run now is one of them.
        """
        if resuming.begun(self.run_dir):
            return [self.run_dir]
        return [self.run_dir / name for name in resuming.compared(self.run_dir, self.strategies)]

    @property
    def trained_alone(self) -> Path | None:
        """The folder of the models that sites trained alone; ``None``: nobody did."""
        if self.settings.trained_alone is not None:
            return Path(self.settings.trained_alone)
        return self.folder_of(self.alone) / "models" if self.alone else None

    # ---- sites

    def settings_of(self, name: str) -> SiteSettings:
        """The settings of all sites with what this one adds."""
        additions = dict(self.settings.sites.get(name, {}))
        # The folder is written as the bundle's own paths need it.
        additions.pop("dataset_dir", None)
        return self.settings.for_site(additions)

    def run_datalist(self, name: str) -> Path:
        """The list that says which case of a site trains, validates and tests in these runs."""
        return self.run_dir / "datalists" / f"{name}.json"

    def datalist_of(self, name: str) -> Path:
        """The data list that the settings of a site name, else that of the run."""
        own = self.settings_of(name).overrides.get("datalist_file")
        return Path(own or self.run_datalist(name))

    def listed(self, name: str, file: Path | None = None) -> dict[str, list[CaseFiles]]:
        """The cases of a site in these runs, by part; none where the bundle has no data list.

        Args:
            name: of the site.
            file: gets the list; ``None``: that of the runs is read where it is there.
        """
        of_site = self.settings_of(name)
        if file is None and self.datalist_of(name).exists():
            file = self.datalist_of(name)
        given = (of_site.config, of_site.overrides, file)
        try:
            return listed_cases(self.sites[name], self.bundle_root, *given)
        except ConfigError:
            return {}

    def client_maker(
        self,
        name: str,
        folder: Path,
        device: str,
        datalist_file: Path | None = None,
    ) -> Callable[[], FairMonaiAlgo]:
        """Makes a site's client, here or in another process.

        Args:
            name: of the site.
            folder: of the run.
            device: for its training.
            datalist_file: in place of that of the runs.
        """
        alone = ""
        models = self.trained_alone
        # A site whose file is not there says so when it looks for it.
        if self.settings.adapt_epochs and models is not None and models.parent != folder:
            alone = str((models / f"{name}.pt").absolute())
        return partial(
            bundle_client,
            self.bundle_root,
            name,
            folder / "sites" / name,
            dataset_dir=self.sites[name],
            datalist_file=datalist_file or self.run_datalist(name),
            groups=self.settings.groups,
            rounds=self.settings.rounds,
            **{**self.settings_of(name).of_client(), "device": device, "alone": alone},
        )

    def transport(self, folder: Path, names: Sequence[str]) -> Transport:
        """Reaches the clients of some sites: in this process, or in several.

        Args:
            folder: of the run.
            names: of the sites.
        """
        number = self.jobs.workers(len(names), self.settings.threads)
        places = dict.fromkeys(names, 0)
        if number > 1:
            # How much a site has to do, roughly.
            files = {name: 1 + sum(1 for _ in self.sites[name].rglob("*")) for name in names}
            places = dealt_out(files, number)
        devices = self.jobs.devices_of(number)
        clients = {}
        for name in names:
            clients[name] = self.client_maker(name, folder, devices[places[name]])
        return InProcess(clients) if number == 1 else WorkerClients(clients, places)

    # ---- the model

    def first_model(self) -> tuple[Weights, ModelSpec]:
        """The model that every run begins with."""
        with own_random_state(self.settings.seed):
            return self._initial_model()

    def _initial_model(self) -> tuple[Weights, ModelSpec]:
        """The same under the caller's seed."""
        given = self.settings
        return initial_model(given.bundle_root, given.overrides, given.initial, given.config)

    # ---- a run

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
            "recipe": self.recipe,
            **self.settings.keywords(),
            **changes,
        }
        transport = self.transport(folder, names)
        return Federation(
            strategy, transport, initial=self._initial_model, run_dir=folder, **arguments
        )

    def for_turn(self, turn: Turn) -> BundleRuns:
        """These runs with the processes and devices that a turn allows."""
        # What a process that ended has left is gone on with.
        resume = self.settings.resume or turn.again
        settings = replace(self.settings, resume=resume)
        return replace(self, settings=settings, jobs=Jobs(turn.jobs, turn.devices))

    def run_strategy(self, strategy: Strategy, start: StartFiles, turn: Turn) -> History | Failed:
        """Train the run of one strategy; nothing is checked again.

        Args:
            strategy: one of the comparison, which may have more.
            start: as of :meth:`start_files`.
            turn: what this run may use.

        Returns:
            Its history; or, in a comparison, why this run alone failed.

        Raises:
            Exception: what ends a single run, or what other runs would meet, too, as a full disk.
        """
        runs = self.for_turn(turn)
        folder = self.folder_of(strategy.name)
        try:
            federation = runs.federation(strategy, folder, [*self.sites], observer=start)
            with stopping_on_signals(federation.stop), quiet():
                return federation.run(runs.settings.resume and resuming.begun(folder))
        except CONCERNS_ALL:
            raise
        except Exception as error:
            if len(self.strategies) == 1:
                raise
            return Failed(logged_failure(strategy.name, error))

    # ---- what is there before anything is trained

    def config(self) -> dict[str, Any]:
        """What was asked for, and the hashes of the bundle's files.

        A resumed run compares its own with it (:func:`~monai_fairfl.run.resuming.check_training`).
        """
        settings = self.settings
        files = resuming.config_files({"config": settings.config, "sites": settings.sites})
        federation = settings.keywords()
        del federation["rounds"]
        # In the first process only: guards that were sent to another one are not these objects.
        if self.guards is not DEFAULT:
            federation["guards"] = config_of(self.guards)
        devices = list(dict.fromkeys(self.jobs.devices))
        return {
            "package": __version__,
            "bundle": self.bundle_root.absolute().name,
            "files": digests_of_configs(self.bundle_root, files),
            "strategies": [*self.previous(), *self.strategies],
            "sites": {name: settings.sites.get(name, {}) for name in self.sites},
            "data": {name: str(folder) for name, folder in self.sites.items()},
            "config": settings.config,
            "overrides": settings.overrides,
            "rounds": settings.rounds,
            "local_epochs": settings.local_epochs,
            "device": devices[0] if len(devices) == 1 else devices,
            "amp": settings.amp,
            "federation": federation,
        }

    def digest_of_training(self) -> str:
        """A digest of all that decides what a coalition trains: other settings, another digest."""
        config = self.config()
        config["files"].pop("federate.json", None)
        guards = config["federation"].get("guards")
        federation = {**self.settings.compared(), "guards": guards}
        of_all_runs = {"package": None, "strategies": None, "initial": self.settings.initial}
        config = {**config, **of_all_runs, "federation": federation}
        text = json.dumps(config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def start_files(
        self,
        digests: Mapping[str, Sequence[str]],
        strategies: Sequence[Strategy],
        valuations: Sequence[str],
    ) -> StartFiles:
        """``settings.json``, which the report reads, too, and the digests of the sites' cases.

        Args:
            digests: site -> digests of its cases.
            strategies: of these runs.
            valuations: names of those that are made of the finished runs.
        """
        settings = self.settings
        # With these of federate.json the same runs can be gone on with.
        keys = {name: getattr(settings, name) for name in rows_of(LEAD) if name not in NOT_AGAIN}
        for name in ("bundle_root", "sites_root"):
            keys[name] = str(Path(keys[name]).absolute())
        keys["strategies"] = [configuration_of(strategy) for strategy in strategies]
        if settings.check is None:
            keys["check"] = "$None"  # MONAI leaves out a plain null
        if keys["guards"] is not None:
            keys["guards"] = config_of(self.guards)
        config = {
            **self.config(),
            "valuations": valuations,
            "full_run": settings.full_run,
            "share_cases": settings.share_cases,
            "keys": keys,
        }
        files = resuming.files_to_write(self.run_dir / "datalists", digests)
        files[self.run_dir / resuming.SETTINGS] = json.dumps(config, indent=4, default=str).encode()
        return StartFiles(files)
