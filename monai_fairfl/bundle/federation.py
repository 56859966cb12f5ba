# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a bundle's sites on this machine: what ``configs/federate.json`` runs."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl import __version__
from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.checks import check_start
from monai_fairfl.bundle.initial import bundle_recipe, digests_of_configs, initial_model
from monai_fairfl.bundle.settings import Settings, SiteSettings, rows_of
from monai_fairfl.bundle.site import bundle_client, closing_measurements, listed_cases
from monai_fairfl.bundle.sites import chosen_sites
from monai_fairfl.bundle.trainings import Jobs, Training, attempted, deal_out, failure_of
from monai_fairfl.bundle.valuing import RunsValuer
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards.registry import config_of, guards_of
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.run import resuming
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.strategies.registry import configuration_of, strategy_of
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import Failed, Turn, WorkerClients, dealt_out, prepare
from monai_fairfl.utils.arguments import LEAD, one_or_several
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.named_classes import made
from monai_fairfl.utils.tensors import own_random_state
from monai_fairfl.utils.terminal import quiet, stopping_on_signals
from monai_fairfl.valuation import RunValuation

if TYPE_CHECKING:
    from monai_fairfl.bundle.comparison import Comparison

logger = logging.getLogger(__name__)

NOT_AGAIN = ("check", "strategy", "run_dir", "resume", "valuations")
"""Keys that whoever goes on with a finished run gives anew, or leaves to ``federate.json``."""

AT_A_GLANCE = ("config", "overrides", "rounds", "local_epochs", "amp", "full_run", "share_cases")
"""Settings that ``settings.json`` has beside its ``keys``, which are all."""


class BundleFederation(Observer):
    """Trains a bundle with one strategy or several, over the same sites, splits and seed.

    At the end it writes the report. If one of several strategies fails, the others go on: the
    report names the one that failed and the reason, and :meth:`run` raises an error at the end.

    Args:
        bundle_root: the bundle's folder. Every site trains with its ``configs/train.json``.
        sites_root: the folder with one folder per site, or with NVFlare's data lists; see
            ``docs/data.md``.
        strategies: one or more strategies, or texts that name them, such as ``FedCE('sum')``, see
            :mod:`monai_fairfl.strategies.registry`. Several write to ``run_dir/<name>`` each.
        rounds: number of rounds of each strategy, at least 1.
        run_dir: the folder for all results.
        given: other :class:`~monai_fairfl.bundle.settings.Settings`, such as ``overrides``,
            ``local_epochs``, ``seed`` and ``resume``.

    Raises:
        ConfigError: if a strategy, a guard, a setting or a device is unknown or out of range.
            :meth:`run` checks all else before it trains.

    >>> from monai_fairfl import find_bundle
    >>> bundle = str(find_bundle("prostate_mri_segmentation"))
    >>> strategies = ["FedAvg", "FedCE('sum')"]
    >>> federation = BundleFederation(bundle, "DATA", strategies, rounds=2, run_dir="runs/two")
    >>> [strategy.name for strategy in federation.strategies]  # federation.run() trains both
    ['FedAvg', 'FedCE-sum']
    """

    # What the sites' folders decide is there after read_settings():
    sites: dict[str, Path]
    """The sites, sorted -> folder of each one's images."""
    files: dict[str, str]
    """Name of a configuration file of the bundle -> SHA-256."""
    recipe: ModelRecipe | None
    """Of the models; ``None`` where the bundle declares none."""
    digests: dict[str, list[str]]
    """Site -> digests of its cases, which only the check of its files knows."""

    def __init__(
        self,
        bundle_root: str,
        sites_root: str,
        strategies: Strategy | str | Sequence[Strategy | str],
        rounds: int,
        run_dir: str,
        **given: Any,
    ):
        given |= {"bundle_root": bundle_root, "sites_root": sites_root, "rounds": rounds}
        given |= {"strategies": one_or_several(strategies), "run_dir": run_dir}
        if given.get("full_run", "bundle") == "bundle":
            given["full_run"] = configuration.full_run_of(Path(bundle_root))
        if given.get("final") is None:
            given["final"] = closing_measurements(bundle_root)
        if callable(groups := given.get("groups")):
            # It draws sites, and only the folders say which there are.
            chosen, any_folder = given.get("site_names"), bool(given.get("any_folder"))
            own = given.get("sites") or {}
            given["groups"] = groups(list(chosen_sites(sites_root, chosen, own, any_folder)))
        self.settings: Settings = made(Settings, [], given)
        self.strategies = [strategy_of(one) for one in self.settings.strategies]
        self.names = [strategy.name for strategy in self.strategies]
        self.valuations = one_or_several(self.settings.valuations)
        for valuation in self.valuations:
            if not isinstance(valuation, RunValuation):
                raise ConfigError(f"valuations must be objects or mappings, got {valuation!r}")
        self.guards = guards_of(self.settings.guards)
        self.jobs = Jobs(self.settings.jobs, self.settings.devices or [self.settings.device])
        self.bundle_root, self.run_dir = Path(bundle_root), Path(run_dir)

    @classmethod
    def from_config(
        cls, strategy: Any = "FedAvg", strategies: Any = (), **keys: Any
    ) -> BundleFederation | Comparison:
        """Make the federation of the keys of ``federate.json``, which names this method.

        Args:
            strategy: that trains.
            strategies: several in its place.
            keys: the other :class:`~monai_fairfl.bundle.settings.Settings`.

        Returns:
            The federation. With ``seeds`` or ``folds`` it is a comparison, which trains a
            federation for each strategy, seed and fold.

        Raises:
            ConfigError: if keys do not go together.
        """
        # Here, not at the top: it is made of such federations.
        from monai_fairfl.bundle.comparison import Comparison

        with configuration.errors_in_one_line():
            federation = cls(strategies=strategies or strategy, **keys)
            if federation.settings.seeds or federation.settings.folds is not None:
                return Comparison(federation)
            return federation

    def run(self) -> list[History]:
        """Check everything, run every strategy, and write the report.

        Returns:
            A :class:`~monai_fairfl.server.federation.History` of each run, in the order of the
            strategies.

        Raises:
            FairFLError: if a check finds a fault, or if the only strategy fails; it names the fix.
            FederationError: if some of several strategies fail, after the others have run; it names
                each of them and the reason.
        """
        with configuration.errors_in_one_line():
            return self.run_with()

    def run_with(self) -> list[History]:
        """As :meth:`run`, but an error is always raised, also under ``python -m monai.bundle``."""
        if self.jobs.number != 1:
            # Libraries are imported for the workers while this process checks the sites.
            prepare()
        self.check_settings()
        if len(self.names) > 1:
            # Here, once: several processes would write it at a time.
            self.run_started()

        # Where there is a last mile, the models of those that train alone are candidates of others.
        trainings = []
        for strategy in self.strategies:
            run = partial(self.run_strategy, strategy)
            # One of several may fail.
            work = run if len(self.names) == 1 else partial(attempted, strategy.name, run)
            waits = not (self.settings.adapt_epochs and isinstance(strategy, Standalone))
            trainings.append(Training(strategy.name, self.settings.rounds, work, waits))
        found, stopped = deal_out(trainings, self.jobs, len(self.sites), self.settings.threads)
        results = {name: found[name] for name in self.names if name in found}
        failed = {name: one.reason for name, one in results.items() if isinstance(one, Failed)}
        histories = [one for one in results.values() if isinstance(one, History)]
        if stopped:
            logger.info("stopped; the same command with --resume True goes on")
        try:
            if self.valuations and not stopped and all(one.finished for one in histories):
                RunsValuer(self, histories).value(self.valuations)
        finally:  # a valuation that failed does not cost the report
            if self.settings.report:
                self._write_report(histories, failed)
        if failed:
            raise failure_of(failed, len(self.strategies))
        return histories

    # ---- before anything is trained

    def check_settings(self) -> None:
        """Check settings, folders and data, as :meth:`run` does before it trains.

        Raises:
            FairFLError: if there is a fault; it names the setting, the site or the file, and the
                fix.
        """
        self.read_settings()
        self.digests = check_start(self)

    def read_settings(self) -> None:
        """Find the sites and the bundle's files: all that is known before the checks.

        Raises:
            FairFLError: naming the setting or the folder, and the fix.
        """
        given = self.settings
        self.sites = chosen_sites(given.sites_root, given.site_names, given.sites, given.any_folder)
        # Named twice, a site would count twice in a mean.
        grouped = [site for members in given.groups.values() for site in members]
        if len(set(grouped)) < len(grouped) or not self.sites.keys() >= set(grouped):
            known = list(self.sites)
            raise ConfigError(f"groups must name sites of {known}, each once, got {given.groups}")
        configs = resuming.config_files({"config": given.config, "sites": given.sites})
        self.files = digests_of_configs(self.bundle_root, configs)
        settings = (given, given.sites, given.full_run)
        self.recipe = bundle_recipe(self.bundle_root, *settings, self.files)

    # ---- the runs: folders

    def folder_of(self, strategy: str) -> Path:
        """The folder of a strategy's run: a single one lies in ``run_dir``, several below it."""
        return self.run_dir if len(self.strategies) == 1 else self.run_dir / strategy

    def used(self) -> list[Path]:
        """Folders that hold a run which goes on, or with which the new runs are compared.

        A run of a comparison that is not to run now is one of them.
        """
        if resuming.begun(self.run_dir):
            return [self.run_dir]
        return [self.run_dir / name for name in resuming.compared(self.run_dir, self.names)]

    @property
    def trained_alone(self) -> Path | None:
        """The folder of the models that sites trained alone; ``None``: nobody did."""
        if self.settings.trained_alone is not None:
            return Path(self.settings.trained_alone)
        for strategy in self.strategies:
            if isinstance(strategy, Standalone) and len(self.strategies) > 1:
                return self.folder_of(strategy.name) / "models"
        return None

    # ---- sites

    def settings_of(self, name: str) -> SiteSettings:
        """The settings of all sites with what this one adds."""
        return self.settings.for_site(self.settings.sites.get(name, {}))

    def datalist_of(self, name: str) -> Path:
        """The list that says which case of a site trains, validates and tests.

        It is the one that the settings of the site name, else that of the run.
        """
        own = self.settings_of(name).overrides.get("datalist_file")
        return Path(own or self.run_dir / "datalists" / f"{name}.json")

    def check_site(self, name: str, folder: Path) -> Any:
        """Run the bundle's check on a site's folder, with what its overrides set of the files."""
        overrides = self.settings_of(name).overrides
        assert self.settings.check is not None
        return self.settings.check(str(folder), **configuration.settings_of_files(overrides))

    def listed(self, name: str, file: Path | None = None) -> dict[str, list[CaseFiles]]:
        """The cases of a site in these runs, by part; none where the bundle has no data list.

        Args:
            name: of the site.
            file: gets the list; ``None``: that of the runs is read where it is there.
        """
        of_site, known = self.settings_of(name), self.datalist_of(name)
        if file is None and known.exists():
            file = known
        given = (of_site.config, of_site.overrides, file)
        try:
            return listed_cases(self.sites[name], self.bundle_root, *given)
        except ConfigError:
            return {}

    def client_maker(self, name: str, folder: Path, device: str) -> Callable[[], FairMonaiAlgo]:
        """Makes a site's client, here or in another process.

        Args:
            name: of the site.
            folder: of the run.
            device: for its training.
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
            datalist_file=self.datalist_of(name),
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
        # How much a site has to do, roughly.
        files = {name: 1 + sum(1 for _ in self.sites[name].rglob("*")) for name in names}
        places = dealt_out(files, number) if number > 1 else dict.fromkeys(names, 0)
        devices = self.jobs.devices_of(number)
        clients = {}
        for name in names:
            clients[name] = self.client_maker(name, folder, devices[places[name]])
        return InProcess(clients) if number == 1 else WorkerClients(clients, places)

    # ---- the model

    def first_model(self) -> tuple[Weights, ModelSpec]:
        """The model that every run begins with."""
        given = self.settings
        with own_random_state(given.seed):
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
        arguments = {"guards": self.guards, "recipe": self.recipe, **self.settings.keywords()}
        return Federation(
            strategy,
            self.transport(folder, names),
            initial=self.first_model,
            run_dir=folder,
            **{**arguments, **changes},
        )

    def for_turn(self, turn: Turn) -> BundleFederation:
        """This federation with the processes and devices that a turn allows."""
        found = copy.copy(self)
        # What a process that ended has left is gone on with.
        resume = self.settings.resume or turn.again
        found.settings = replace(self.settings, resume=resume)
        found.jobs = Jobs(turn.jobs, turn.devices)
        return found

    def run_strategy(self, strategy: Strategy, turn: Turn) -> History:
        """Train the run of one strategy; nothing is checked again."""
        folder = self.folder_of(strategy.name)
        runs = self.for_turn(turn)
        federation = runs.federation(strategy, folder, [*self.sites], observer=self)
        with stopping_on_signals(federation.stop), quiet():
            return federation.run(runs.settings.resume and resuming.begun(folder))

    # ---- what is there before anything is trained

    def config(self) -> dict[str, Any]:
        """What was asked for, and the hashes of the bundle's files.

        A resumed run compares its own with it (:func:`~monai_fairfl.run.resuming.check_training`).
        """
        config = {name: getattr(self.settings, name) for name in AT_A_GLANCE}
        return config | {
            "package": __version__,
            "bundle": self.bundle_root.absolute().name,
            "files": self.files,
            "strategies": list(dict.fromkeys([*resuming.compared(self.run_dir), *self.names])),
            "sites": {name: self.settings.sites.get(name, {}) for name in self.sites},
            "data": {name: str(folder) for name, folder in self.sites.items()},
            "device": ", ".join(dict.fromkeys(self.jobs.devices)),
        }

    def digest_of_training(self) -> str:
        """A digest of all that decides what a coalition trains: other settings, another digest."""
        config = self.config()
        decides = {name: config[name] for name in ("files", "sites", "data", "rounds", "device")}
        decides |= {"initial": self.settings.initial, "guards": config_of(self.guards)}
        decides |= self.settings.training() | self.settings.compared()
        text = json.dumps(decides, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def run_started(self) -> None:
        """Write ``settings.json``, which the report reads, too, and digests of the sites' cases.

        A run that is refused writes neither.
        """
        settings = self.settings
        # With these of federate.json the same runs can be gone on with.
        keys = {name: getattr(settings, name) for name in rows_of(LEAD) if name not in NOT_AGAIN}
        for name in ("bundle_root", "sites_root"):
            keys[name] = str(Path(keys[name]).absolute())
        keys["strategies"] = [configuration_of(strategy) for strategy in self.strategies]
        if settings.check is None:
            keys["check"] = "$None"  # MONAI leaves out a plain null
        if settings.guards is not None:
            keys["guards"] = config_of(self.guards)
        config = {**self.config(), "keys": keys}
        files = resuming.files_to_write(self.run_dir / "datalists", self.digests)
        files[self.run_dir / resuming.SETTINGS] = json.dumps(config, indent=4, default=str).encode()
        for file, content in files.items():
            # Other runs may be about to read a file that is there already.
            if not file.exists() or file.read_bytes() != content:
                write_atomically(file, content)

    # ---- after the runs

    def _write_report(self, histories: Sequence[History], failed: Mapping[str, str]) -> None:
        """Report these runs and those of previous strategies.

        Args:
            histories: of these runs.
            failed: name -> reason of the strategies that failed.
        """
        from monai_fairfl.report import as_text, write_report_if_possible

        previous = [name for name in resuming.compared(self.run_dir) if name not in self.names]
        runs = [self.run_dir / name for name in previous]
        runs += [history.run_dir for history in histories]
        if not runs:
            return
        report = write_report_if_possible(runs, self.run_dir, failed)
        if report is not None:
            print(f"{as_text(report)}\nReport: {self.run_dir / 'report.html'}")
