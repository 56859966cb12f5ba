# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a bundle's sites on this machine: what ``configs/federate.json`` runs."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai.utils import ensure_tuple

from monai_fairfl import __version__
from monai_fairfl.bundle import checks, configuration
from monai_fairfl.bundle.settings import KEYS, TRAINS, Settings, SiteSettings
from monai_fairfl.bundle.site import (
    EVALUATE,
    bundle_client,
    bundle_recipe,
    chosen_sites,
    closing_measurements,
    initial_model,
    listed_cases,
    settings_of_check,
)
from monai_fairfl.bundle.trainings import Jobs, Training, deal_out, failure_of, show_text
from monai_fairfl.data.checks import FIELD_OF_VIEW, LEAST_SEEN, notes_on_parts
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError, DataError, DataWarning, FederationError
from monai_fairfl.guards.registry import config_of, guards_of
from monai_fairfl.messages import Weights
from monai_fairfl.model_files import ModelRecipe
from monai_fairfl.run import resuming
from monai_fairfl.server import Federation, History, Observer, Transport
from monai_fairfl.strategies import FedAvg, Standalone, Strategy
from monai_fairfl.strategies.registry import configuration_of, strategy_of
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import Turn, WorkerClients, prepare
from monai_fairfl.utils.arguments import check_value, marked
from monai_fairfl.utils.devices import require_device, torch_threads
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.named_classes import made
from monai_fairfl.utils.tensors import own_random_state
from monai_fairfl.utils.terminal import quiet, stopping_on_signals
from monai_fairfl.valuation import FinishedRun, Panel, RunValuation
from monai_fairfl.valuation.finished import check_valuations, value_run

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
    recipe: ModelRecipe | None
    """Of the models; ``None`` where the bundle declares none."""
    of_sites: dict[str, SiteSettings]
    """Site -> the settings of all sites with what this one adds."""
    datalists: dict[str, Path]
    """Site -> the list that says which of its cases train, validate and test."""
    config: dict[str, Any]
    """What was asked for, which a resumed run compares (``resuming.check_training``)."""
    digests: dict[str, list[str]]
    """Site -> digests of its cases, which only the check of its files knows."""
    data: dict[str, Any]
    """Site -> what else this check found, as ``data.json`` has it."""
    listed: dict[str, Callable[..., dict[str, list[CaseFiles]]]]
    """Site -> lists its cases in these runs, by part; none where the bundle has no data list."""

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
        # A mapping is one strategy, with its arguments.
        several = [strategies] if isinstance(strategies, Mapping) else ensure_tuple(strategies)
        given |= {"strategies": several, "run_dir": run_dir}
        if "full_run" not in given:
            of_bundle = configuration.read_keys(Path(bundle_root) / configuration.FEDERATE)
            given["full_run"] = of_bundle.get("full_run")
        if given.get("final") is None:
            given["final"] = closing_measurements(bundle_root)
        settings: Settings = made(Settings, [], given)
        self.settings = settings
        if settings.jobs != "auto":
            check_value("jobs, if not 'auto',", settings.jobs, "int", "[1, inf)")
        self.strategies = [strategy_of(one) for one in settings.strategies]
        self.names = [strategy.name for strategy in self.strategies]
        if len(set(self.names)) < max(1, len(self.names)):
            raise ConfigError(f"strategies must be one or more different ones, got {self.names}")
        self.valuations = ensure_tuple(settings.valuations)
        for valuation in self.valuations:
            if not isinstance(valuation, RunValuation):
                raise ConfigError(f"valuations must be objects or mappings, got {valuation!r}")
        self.guards = guards_of(settings.guards)
        self.jobs = Jobs(settings.jobs, settings.devices or [settings.device], settings.threads)
        self.initial = partial(
            initial_model, bundle_root, settings.overrides, settings.initial, settings.config
        )
        self.bundle_root, self.run_dir = Path(bundle_root), Path(run_dir)
        # A single run lies in run_dir, several below it.
        compared = len(self.names) > 1
        self.folders = {one: self.run_dir / one if compared else self.run_dir for one in self.names}
        # The folder of the candidates that sites trained alone; None: there are none.
        self.trained_alone: Path | None = None
        alone = [one.name for one in self.strategies if isinstance(one, Standalone)]
        if settings.trained_alone is not None:
            if not settings.adapt_epochs:
                raise ConfigError(f"trained_alone {settings.trained_alone} needs adapt_epochs")
            self.trained_alone = Path(settings.trained_alone)
        elif settings.adapt_epochs and alone and compared:
            self.trained_alone = self.folders[alone[0]] / "models"

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
            if self.jobs.number != 1:
                # Libraries are imported for the workers while this process checks the sites.
                prepare()
            self.check_settings()
            if len(self.names) > 1:
                # Here, once: several processes would write it at a time.
                self.run_started()
            # With a last mile, the models of those that train alone are candidates of others.
            trainings = []
            for strategy in self.strategies:
                waits = not (self.settings.adapt_epochs and isinstance(strategy, Standalone))
                run = partial(self.train, strategy)
                trainings.append(Training(strategy.name, self.settings.rounds, run, waits))
            return self._concluded(*deal_out(trainings, self.jobs, len(self.sites)))

    # ---- before anything is trained

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
            raise ConfigError(f"groups must name {[*self.sites]}, each once, got {given.groups}")
        self.of_sites, self.datalists, self.listed = {}, {}, {}
        for name, folder in self.sites.items():
            self.of_sites[name] = of_site = given.for_site(given.sites.get(name, {}))
            own = of_site.overrides.get("datalist_file")
            self.datalists[name] = Path(own or self.run_dir / "datalists" / f"{name}.json")
            places = (folder, self.bundle_root, of_site.config, of_site.overrides)
            self.listed[name] = partial(listed_cases, *places, file=self.datalists[name])
        self.recipe, files = bundle_recipe(self.bundle_root, given, given.sites, given.full_run)
        self.config = {name: getattr(given, name) for name in AT_A_GLANCE} | {
            "package": __version__,
            "bundle": self.bundle_root.absolute().name,
            "files": files,
            "strategies": list(dict.fromkeys([*resuming.compared(self.run_dir), *self.names])),
            "sites": {name: given.sites.get(name, {}) for name in self.sites},
            "data": {name: str(folder) for name, folder in self.sites.items()},
            "device": ", ".join(dict.fromkeys(self.jobs.devices)),
        }

    def check_settings(self) -> None:
        """Find everything that is wrong before hours of training are spent.

        Raises:
            FairFLError: if there is a fault; it names the setting, the site or the file, and the
                fix.
        """
        self.read_settings()
        settings, names, valuations = self.settings, list(self.sites), self.valuations

        # The settings and the bundle's files.
        for device in self.jobs.devices:
            require_device(device)
        train = configuration.train_config(self.bundle_root, settings.overrides, settings.config)
        checks.check_strategies(self.strategies, names, train, settings)
        federated = any(not isinstance(strategy, Standalone) for strategy in self.strategies)
        if settings.adapt_fuse and federated and self.trained_alone is None:
            raise ConfigError("adapt_fuse needs Standalone among the strategies, or trained_alone")
        if valuations:
            channels = self.recipe.classes.values() if self.recipe else ()
            check_valuations(valuations, self.bundle_root, channels, names, settings)

        used = checks.check_run_dir(self)

        # Each site's images can be read, are those of the runs that go on, and are enough.
        self.digests, self.data = {}, {}
        if settings.check is not None:
            calls = {}
            for name, folder in self.sites.items():
                file, values = self.datalists[name], self.of_sites[name].overrides
                listed = partial(cases_of_list, file, folder) if file.is_file() else tuple
                given = settings_of_check(settings.check, values, listed)
                calls[name] = partial(settings.check, str(folder), **given)
            found, files = checks.check_sites(self.sites, calls, settings.sites_root)
            refused = files["refused"]
            for name, summary in found.items():
                self.digests[name] = [case.digest for case in summary.sound]
                here = [path for path in refused if Path(path).is_relative_to(summary.folder)]
                seen = [case.label.seen for case in summary.sound if case.label.seen < LEAST_SEEN]
                notes = notes_on_parts(summary, self.listed[name]())
                for note in notes:
                    warnings.warn(note, DataWarning, stacklevel=2)
                self.data[name] = {
                    "cases": len(summary.sound),
                    "refused": {path: refused[path] for path in here},
                    "notes": summary.notes + notes,
                    # Masks that lie partly beside what the network sees, and the least share seen.
                    "outside": len(seen),
                    "least_seen": min(seen, default=1),
                    "field_of_view": calls[name].keywords.get("field_of_view", FIELD_OF_VIEW),
                }
        if used:
            resuming.require_same_cases(self.run_dir / "datalists", self.digests)
        for name, file in self.datalists.items():
            if file.exists() and self.listed[name]().get("training") == []:
                # Its site would answer with an error in every round, and the others would go on.
                raise DataError(f"{file} lists no training case: add some, or leave {name} out")
        if self.trained_alone is not None:
            checks.check_trained_alone(self, self.trained_alone)

    # ---- sites

    def transport(self, folder: Path, names: Sequence[str], turn: Turn) -> Transport:
        """Reaches the clients of some sites: in this process, or in several.

        Args:
            folder: of the run.
            names: of the sites.
            turn: processes and devices; without devices those of all runs.
        """
        number = min(turn.jobs, len(names))
        # Those with most files first, so that all workers have about as much to do.
        files = {name: sum(1 for _ in self.sites[name].rglob("*")) for name in names}
        largest = sorted(names, key=lambda name: -files[name])
        places = {name: place % number for place, name in enumerate(largest)}
        models = self.trained_alone
        clients, devices = {}, turn.devices or self.jobs.devices
        for name in names:
            given = {**vars(self.of_sites[name]), "device": devices[places[name] % len(devices)]}
            # A site whose file is not there says so when it looks for it.
            if models is not None and models.parent != folder:
                given["alone"] = str((models / f"{name}.pt").absolute())
            clients[name] = partial(
                bundle_client,
                self.bundle_root,
                name,
                folder / "sites" / name,
                dataset_dir=self.sites[name],
                datalist_file=self.datalists[name],
                groups=self.settings.groups,
                rounds=self.settings.rounds,
                **given,
            )
        return InProcess(clients) if number == 1 else WorkerClients(clients, places)

    # ---- a run

    def train(
        self,
        strategy: Strategy,
        turn: Turn,
        folder: Path | None = None,
        sites: Sequence[str] = (),
        resume: bool = False,
        **changes: Any,
    ) -> History:
        """Train one run; nothing is checked.

        Args:
            strategy: of the run.
            turn: what it may use.
            folder: of the run; ``None``: that of the strategy.
            sites: names of those that take part; none: all.
            resume: go on with what is there, also where the settings do not say so.
            changes: arguments of the federation in place of those of the runs.
        """
        folder = folder or self.folders[strategy.name]
        records = resuming.records_of(folder)
        # A start, the rounds and an end: of a comparison over seeds, which keeps no checkpoint. A
        # coalition's model would be lost.
        whole = not sites and len(records) == self.settings.rounds + 2
        if whole and not (folder / "checkpoints").exists():
            now = {"configuration": configuration_of(strategy)}
            resuming.check_same(folder, records[0], now)
            return History(folder, records, finished=True)
        arguments = {"guards": self.guards, "recipe": self.recipe, "observer": self}
        arguments |= self.settings.keywords()
        federation = Federation(
            strategy,
            self.transport(folder, sites or [*self.sites], turn),
            initial=self.initial,
            run_dir=folder,
            **{**arguments, **changes},
        )
        with stopping_on_signals(federation.stop), quiet():
            return federation.run(resume or self.settings.resume)

    # ---- the valuations of finished runs

    def value_runs(self, histories: Sequence[History]) -> None:
        """Make every valuation of every finished run, in their order.

        Models that are trained for coalitions of sites are common to all runs.

        Raises:
            FederationError: when a run cannot be valued, or a training was stopped.
        """
        settings, names = self.settings, list(self.sites)
        # All that decides what a coalition trains: other settings, another folder.
        decides = {key: self.config[key] for key in ("files", "sites", "data", "rounds", "device")}
        decides |= {"initial": settings.initial, "guards": config_of(self.guards)}
        decides |= marked(settings, TRAINS) | settings.compared()
        text = json.dumps(decides, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        with quiet(), torch_threads(settings.threads):
            for history in histories:
                transport = self.transport(
                    history.run_dir, names, Turn(self.jobs.workers(len(names)))
                )
                panel = Panel(transport, names, expected=settings.expected)
                run = FinishedRun(
                    history.run_dir,
                    names,
                    panel,
                    self.train_coalition,
                    self.run_dir / "valuations" / f"retrained-{digest}",
                    evaluation=self.config["files"].get(EVALUATE, ""),
                    show=show_text,
                )
                try:
                    for valuation in self.valuations:
                        value_run(valuation, run)
                finally:
                    transport.close()

    def train_coalition(self, coalition: frozenset[str], folder: Path) -> Weights:
        """The model that a coalition trains, in a federation that goes on where it was stopped.

        Args:
            coalition: names of its sites; without any, nothing is trained.
            folder: of the coalition's run.

        Raises:
            FederationError: when the training was stopped; it names the way to go on.
        """
        settings = self.settings
        if not coalition:
            with own_random_state(settings.seed):
                return self.initial()[0]
        strategy = FedAvg()
        history = self.train(
            strategy,
            Turn(self.jobs.workers(len(coalition))),
            folder,
            sorted(coalition),
            resume=True,
            # Nothing but its model is wanted.
            observer=None,
            evaluate=(),
            final=(),
            record_updates=False,
            adapt_epochs=0,
            adapt_fuse=False,
            min_clients=min(len(coalition), settings.clients_per_round or len(coalition)),
            samples={site: n for site, n in settings.samples.items() if site in coalition},
        )
        if not history.finished:
            raise FederationError("stopped; the same command with --resume True goes on")
        return strategy.weights

    # ---- what a run writes

    def run_started(self) -> None:
        """Write ``settings.json``, which the report reads, too, and digests of the sites' cases.

        A run that is refused writes neither.
        """
        settings = self.settings
        # With these of federate.json the same runs can be gone on with.
        keys = {name: getattr(settings, name) for name in KEYS if name not in NOT_AGAIN}
        for name in ("bundle_root", "sites_root"):
            keys[name] = str(Path(keys[name]).absolute())
        keys["strategies"] = [configuration_of(strategy) for strategy in self.strategies]
        if settings.check is None:
            keys["check"] = "$None"  # MONAI leaves out a plain null
        keys["guards"] = config_of(self.guards)
        config = {**self.config, "keys": keys}
        files = resuming.files_to_write(self.run_dir, self.digests, self.data)
        files[self.run_dir / resuming.SETTINGS] = json.dumps(config, indent=4, default=str).encode()
        for file, content in files.items():
            # Other runs may be about to read a file that is there already.
            if not file.exists() or file.read_bytes() != content:
                write_atomically(file, content)

    # ---- after the runs

    def _concluded(
        self, found: Mapping[str, History], failed: Mapping[str, str], stopped: bool
    ) -> list[History]:
        """Value these runs, and report them and those of previous strategies.

        Args:
            found: name -> history of each of these runs.
            failed: name -> reason of the others.
            stopped: whether a signal asked to stop.
        """
        from monai_fairfl.report import as_text, write_report_if_possible

        histories = [found[name] for name in self.names if name in found]
        if stopped:
            logger.info("stopped; the same command with --resume True goes on")
        try:
            if self.valuations and not stopped and all(one.finished for one in histories):
                self.value_runs(histories)
        finally:  # a valuation that failed does not cost the report
            previous = [name for name in resuming.compared(self.run_dir) if name not in self.names]
            runs = [self.run_dir / name for name in previous]
            runs += [history.run_dir for history in histories]
            if runs and self.settings.report:
                report = write_report_if_possible(runs, self.run_dir, failed)
                if report is not None:
                    print(f"{as_text(report)}\nReport: {self.run_dir / 'report.html'}")
        if failed:
            raise failure_of(failed, len(self.strategies))
        return histories
