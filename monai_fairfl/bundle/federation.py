# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a bundle's sites on this machine: what ``configs/federate.json`` runs."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from monai_fairfl import __version__
from monai_fairfl.bundle import configuration, preflight
from monai_fairfl.bundle.coalitions import CoalitionTraining
from monai_fairfl.bundle.comparison import (
    CONCERNS_ALL,
    RunFolders,
    failure_of,
    logged_failure,
)
from monai_fairfl.bundle.initial import bundle_recipe as bundle_recipe
from monai_fairfl.bundle.initial import digests_of_configs, initial_model, warn_of_other_training
from monai_fairfl.bundle.jobs import Jobs, modules_of_sites
from monai_fairfl.bundle.runs_display import RunsDisplay, is_shown, show_text
from monai_fairfl.bundle.settings import TRAIN, SiteSettings
from monai_fairfl.bundle.shipped import is_shipped
from monai_fairfl.bundle.site import closing_measurements
from monai_fairfl.bundle.sites import SERVER, BundleSites
from monai_fairfl.data.checks import check_cases
from monai_fairfl.errors import ConfigError, DataError, FairFLError, FederationError
from monai_fairfl.guards import DEFAULT
from monai_fairfl.guards.catalogue import Given, config_of, guards_of
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder import resuming
from monai_fairfl.run_folder.case_digests import files_to_write, require_same_cases
from monai_fairfl.run_folder.commands import command_line, folds_command, short_full_command
from monai_fairfl.run_folder.full_run import FullRun
from monai_fairfl.run_folder.ledger import digest_of
from monai_fairfl.run_folder.recording import check_recorded
from monai_fairfl.run_folder.records import config_files, names_of_guards
from monai_fairfl.run_folder.withdrawn import withdrawn_sites
from monai_fairfl.server.cross_evaluation import ServerScore
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.facts import Facts
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.server.observer import Observer
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.strategies.resolver import strategy_of
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import (
    Failed,
    Turn,
    Work,
    WorkerClients,
    WorkerPool,
    can_be_sent,
    carry_out,
    dealt_out,
)
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.random_state import own_random_state
from monai_fairfl.utils.terminal import quiet, stopping_on_signals
from monai_fairfl.utils.torch_threads import torch_threads
from monai_fairfl.valuation import FinishedRun, Panel, RunValuation
from monai_fairfl.valuation.run import check_valuations, value_run

if TYPE_CHECKING:
    from monai_fairfl.bundle.repeated import RepeatedFederation

logger = logging.getLogger(__name__)

Groups = Mapping[str, Sequence[str]]

MOST_AT_A_TIME = 256
"""So many trainings of coalitions are as good as any number of them: no machine does more."""


class BundleFederation:
    """Runs one strategy, or several, over the same sites, splits and seeds; then reports.

    Of several, one that fails does not stop the others: the report names it and why, :meth:`run`
    raises at the end.

    Args:
        bundle_root: the bundle; every site runs its ``configs/train.json``.
        sites_root: one folder per site, or NVFlare's data lists; see ``docs/data.md``.
        strategies: one or more strategies, or texts that name them, such as ``FedCE('sum')``, see
            :mod:`monai_fairfl.strategies.resolver`; several write to ``run_dir/<name>`` each.
        rounds: rounds of each.
        run_dir: everything is written here.
        sites: site -> additions to ``overrides`` (plain values; ``"config"``: config files in place
            of train.json; ``"dataset_dir"``: data elsewhere than ``sites_root/<site>``).
        site_names: the sites that take part; ``None``: all of ``sites_root``.
        any_folder: every folder of ``sites_root`` is a site, whatever it holds, since the bundle
            lists its own files; else those whose layout is known.
        overrides: plain values that replace those of ``config``, for every site and for the initial
            model.
        config: the training configuration, files relative to the bundle; overlays come after
            ``train.json``.
        check: called with each site's folder before anything is trained; ``None``: no check.
        device: for training, such as ``"cpu"`` or ``"cuda:0"``.
        amp: automatic mixed precision.
        local_epochs: epochs of local training per round.
        jobs: strategies, or sites of one, that work at a time, see
            :class:`~monai_fairfl.bundle.jobs.Jobs`: 1: one after the other in this process; more:
            in so many worker processes; ``None`` or ``"auto"``: as many as cores and memory allow.
            What is trained and recorded is the same to the bit.
        devices: in place of ``device``, dealt out to the worker processes in turn.
        resume: continue what ``run_dir`` holds; refused where overrides, local epochs or data are
            others. A comparison may grow: previous strategies that are not named stay in its report
            and configuration. Without it a used ``run_dir`` is refused.
        initial: a ``state_dict`` file to begin from; ``None``: built under the seed.
        report: write ``report.html`` and ``report.json`` at the end.
        valuations: made of each finished run, see ``docs/valuation.md``.
        full_run: the training at which the bundle was measured, see
            :class:`~monai_fairfl.run_folder.full_run.FullRun`; ``"bundle"``: as the bundle's
            ``federate.json`` has it. The report judges no shorter one, and none with ``None``.
        share_cases: let the report write each case's score into ``cases.csv``.
        groups: name -> sites, or a function from all sites' names to these. A site's configuration
            finds the name of its group under the key ``group``, and the report shows the mean of
            each.
        guards: checks of every exchange's updates, in order: guards, their names, or
            configurations with ``_target_``; ``None``: the default ones, an empty list: none. The
            runs of a comparison share them.
        trained_alone: folder with the model ``SITE.pt`` that each site trained alone, a candidate
            of the last mile; ``None``: that of a :class:`~monai_fairfl.strategies.Standalone` in
            the same comparison, which then runs before the others.
        server_data: a folder of images and labels of the server's own, as a site's: with
            ``cross_evaluators`` of ``"server"`` it scores models on their validation part.
        federation: fields of :class:`~monai_fairfl.server.settings.RunSettings`, such as ``seed``
            and ``min_clients``.

    >>> from monai_fairfl import find_bundle
    >>> bundle = str(find_bundle("prostate_mri_segmentation"))
    >>> strategies = ["FedAvg", "FedCE('sum')"]
    >>> federation = BundleFederation(bundle, "DATA", strategies, rounds=2, run_dir="runs/two")
    >>> [strategy.name for strategy in federation.strategies]  # federation.run() trains both
    ['FedAvg', 'FedCE-sum']
    """

    def __init__(
        self,
        bundle_root: str,
        sites_root: str,
        strategies: Strategy | str | Sequence[Strategy | str],
        rounds: int,
        run_dir: str,
        sites: Mapping[str, Mapping[str, Any]] | None = None,
        site_names: Sequence[str] | None = None,
        any_folder: bool = False,
        overrides: Mapping[str, Any] | None = None,
        config: Sequence[str] = TRAIN,
        check: Callable[[str], Any] | None = None,
        device: str = "cpu",
        amp: bool = False,
        local_epochs: int = 1,
        resume: bool = False,
        initial: str | None = None,
        report: bool = True,
        valuations: Sequence[RunValuation] = (),
        groups: Groups | Callable[[Sequence[str]], Groups] | None = None,
        full_run: Mapping[str, Any] | None | Literal["bundle"] = "bundle",
        share_cases: bool = False,
        guards: Given = None,
        jobs: int | str | None = 1,
        devices: Sequence[str] | None = None,
        trained_alone: str | None = None,
        server_data: str | None = None,
        **federation: Any,
    ):
        self.bundle_root = Path(bundle_root)
        self.sites_root = Path(sites_root)
        self.run_dir = Path(run_dir)
        self.rounds = rounds
        self.sites = {name: dict(additions or {}) for name, additions in (sites or {}).items()}
        self.site_names = site_names
        self.any_folder = any_folder
        self.site_settings = SiteSettings(config, overrides or {}, local_epochs, device, amp)
        self.check = check
        self.resume = resume
        self.initial = initial
        self.report = report
        self.valuations = list(valuations)
        self.groups = groups
        self.full_run = (
            configuration.full_run_of(self.bundle_root) if full_run == "bundle" else full_run
        )
        self.share_cases = share_cases
        with configuration.errors_in_one_line():
            self.strategies = _resolved(strategies)
            self.guards = guards_of(guards)
            self.jobs = Jobs(jobs, devices or [self.site_settings.device])
        self.server_data = server_data
        self.federation = federation
        self.folders = RunFolders(self.run_dir, self.strategies)
        self.trained_alone = self._trained_alone(trained_alone)
        # Site -> digests of its cases, as the check of its files found them.
        self.digests: dict[str, list[str]] = {}
        # The worker processes while run() runs; None where all work is done in this one.
        self._pool: WorkerPool | None = None
        # Whether strategies and coalitions may be trained in processes of their own.
        self._can_be_dealt_out = False

    @classmethod
    def from_config(cls, **arguments: Any) -> BundleFederation | RepeatedFederation:
        """The federation that the running configuration describes, by its top-level keys.

        ``federate.json`` names it as the ``_target_`` of its federation, so that it need not hand
        over each key by a reference: every key that is an argument of this class or a field of
        :class:`~monai_fairfl.server.settings.RunSettings` is one. The key ``strategy`` counts where
        ``strategies`` is empty. Where ``seeds`` or ``folds`` is given, the result is a comparison
        over them, which trains such a federation for each strategy, seed and fold.

        Args:
            arguments: in place of the keys of those names.

        Raises:
            ConfigError: when no configuration is running, or its keys do not go together.
        """
        parser = configuration.calling_parser()
        if parser is None:
            raise ConfigError(
                "BundleFederation.from_config reads the configuration that is running, and there "
                "is none: in Python use BundleFederation(...)"
            )
        if any(key in parser and parser.get_parsed_content(key) for key in ("seeds", "folds")):
            # Here, not at the top: it is made of such federations.
            from monai_fairfl.bundle.repeated import RepeatedFederation

            with configuration.errors_in_one_line():
                return RepeatedFederation.from_parser(parser)
        names = [entry.name for entry in fields(RunSettings)]
        for argument in inspect.signature(cls).parameters.values():
            if argument.kind is not argument.VAR_KEYWORD:
                names.append(argument.name)
        given = dict(arguments)
        for name in names:
            if name in parser and name not in arguments:
                given[name] = parser.get_parsed_content(name)
        if not given.get("strategies"):
            given["strategies"] = parser.get_parsed_content("strategy")
        return cls(**given)

    def run(self) -> list[History]:
        """Check everything, run every strategy, write the report.

        Raises:
            FairFLError: what the checks found; or, of one strategy, what ended it.
            FederationError: naming every strategy of several that failed and why, after the others
                have run.
        """
        with configuration.errors_in_one_line():
            return self.run_with()

    def run_with(self, pool: WorkerPool | None = None) -> list[History]:
        """As :meth:`run`, but that an error is always raised.

        Args:
            pool: of worker processes that are there already; ``None``: those that ``jobs`` asks for
                are started.
        """
        self._stopped = False
        self.read_settings()
        # They import their libraries while this process checks the sites.
        with self._workers(pool):
            self._check()
            self._config_text = self._text_of_config()
            histories, failed = self._run_each()
            try:
                finished = all(history.finished for history in histories)
                if self.valuations and finished and not self._stopped:
                    self._value(histories)
            finally:  # a valuation that failed does not cost the report
                if self.report:
                    self._write_report(histories, failed)
        if failed:
            raise failure_of(failed, len(self.strategies))
        return histories

    # ---- before anything is trained

    def check_settings(self) -> None:
        """Find what is wrong with settings, folders and data, as :meth:`run` does before it trains.

        Raises:
            FairFLError: naming the setting, the site or the file, and the fix.
        """
        self.read_settings()
        self._check()

    def read_settings(self) -> None:
        """Find the sites (``names``, ``bundle_sites``) and read the runs' ``settings``.

        Raises:
            FairFLError: naming the setting or the folder, and the fix.
        """
        self.names = preflight.site_names(
            self.sites_root, self.site_names, self.sites, self.any_folder
        )
        self.settings = self._run_settings()
        self.bundle_sites = BundleSites(
            self.bundle_root,
            self.sites_root,
            self.names,
            self.sites,
            self.site_settings,
            self.settings,
            self._datalists,
            self.any_folder,
        )

    @property
    def _datalists(self) -> Path:
        """The folder of the lists that say which case trains, validates and tests."""
        return self.run_dir / "datalists"

    def _run_settings(self) -> RunSettings:
        """The settings of every run, which the bundle's own measurements close."""
        given = {
            "rounds": self.rounds,
            "groups": preflight.check_groups(self.groups, self.names),
            **self.federation,
        }
        if given.get("final") is None:
            given["final"] = closing_measurements(self.bundle_root)
        return RunSettings.of("a federation", given)

    def _check(self) -> None:
        """Find everything that is wrong before hours of training are spent.

        Raises:
            FairFLError: naming the setting, the site or the file, and the fix.
        """
        FullRun.read(self.full_run)
        self.jobs.require_devices()
        train = configuration.train_config(
            self.bundle_root, self.site_settings.overrides, self.site_settings.config
        )
        for name in self.names:
            of_site = self.bundle_sites.settings_of(name)
            configuration.train_config(self.bundle_root, of_site.overrides, of_site.config)
        preflight.check_strategies(
            self.strategies, self.names, train, self.settings.clients_per_round
        )
        preflight.check_measurements(self.settings.evaluate, "evaluate", in_training=True)
        preflight.check_measurements(self.settings.final, "final")
        if self.server_data is not None:
            self._check_data({SERVER: self.server_data}, self.check)
        self._check_run_dir()
        check_valuations(self.valuations, self.bundle_root, self.names, self.settings.keywords())
        if self.initial is not None:
            warn_of_other_training(self.initial, self._recipe())
        folders = {name: self.bundle_sites.data_of(name) for name in self.names}
        self.digests = self._check_data(folders, self._site_check())
        used = self.folders.used()
        if used:
            require_same_cases(self._datalists, self.digests)
        for folder in used:
            # Nothing new is recorded of a site that withdrew.
            for site in withdrawn_sites(folder):
                self.digests.pop(site, None)
        if self.settings.adapt_epochs and self.trained_alone is not None:
            preflight.check_trained_alone(self.trained_alone, folders, self.bundle_sites.listed)
        new = [
            strategy
            for strategy in self.strategies
            if not resuming.begun(self.folders.folder_of(strategy))
        ]
        preflight.check_images(new, partial(self.bundle_sites.count_images, self.jobs.device_of(0)))

    def _check_run_dir(self) -> None:
        """``run_dir`` is new, or what it holds goes on with the same settings.

        The strategies must be able to train the first model, too.
        """
        resuming.check_folder(self.run_dir, self.folders.names, self.resume)
        folders = [self.folders.folder_of(strategy) for strategy in self.strategies]
        resuming.check_checkpoints(folders)
        needs_updates = any(valuation.needs_updates for valuation in self.valuations)
        if self.settings.record_updates or needs_updates:
            for folder in filter(resuming.begun, folders):
                check_recorded(folder)
        weights, spec = self._first_model()
        for strategy in self.strategies:
            strategy.check_model(spec, self.settings.buffers)

        used = self.folders.used()
        if used:
            resuming.check_formats(used)
            resuming.check_training(self.run_dir, self._config(), self.names)
            opening = {
                **self.settings.compared(),
                "guards": names_of_guards(self.guards),
                "model": digest_of(weights),
            }
            resuming.check_openings(used, opening)

    def _check_data(
        self, folders: Mapping[str, str], check: Callable[[str], Any] | None
    ) -> dict[str, list[str]]:
        """Run the bundle's check on each site's folder.

        Returns:
            Site -> digests of its cases, as :func:`~monai_fairfl.bundle.preflight.check_sites`.

        Raises:
            DataError: naming the problems, and how to switch the check off in a bundle of one's
                own.
        """
        try:
            return preflight.check_sites(folders, check)
        except DataError as error:
            is_of_shipped = getattr(self.check, "func", self.check) is check_cases
            if is_shipped(self.bundle_root) or not is_of_shipped:
                raise
            file = self.bundle_root / configuration.FEDERATE
            raise DataError(
                f"{error}\nIf the bundle is for another organ, set check to null in {file}"
            ) from None

    def _site_check(self) -> Callable[[str], Any] | None:
        """The check of a site's folder, with what its overrides set of the files."""
        check = self.check
        given = {}
        for name in self.names:
            overrides = self.bundle_sites.settings_of(name).overrides
            given[self.bundle_sites.data_of(name)] = configuration.settings_of_files(overrides)
        if check is None or not any(given.values()):
            return check
        return lambda site: check(site, **given[site])

    # ---- the runs

    def _run_each(self) -> tuple[list[History], dict[str, str]]:
        """Run the strategies, several at a time where there are processes for it.

        Of several, one whose own run fails does not stop the others. What concerns all of them
        does: a disk that is full, an engine that was stopped, or an error before the run has begun,
        which is of its settings or its folder.

        Returns:
            The histories of the runs; and name -> reason of those that failed.
        """
        found: dict[str, History | Failed] = {}
        with self._display([strategy.name for strategy in self.strategies]) as display:
            for strategies in self._in_turn():
                works = []
                for strategy in strategies:
                    works.append(Work(strategy.name, self._with(strategy).run_strategy))
                self._stopped = not self._carry_out(works, found, display)
                if self._stopped:
                    break

        histories: list[History] = []
        failed: dict[str, str] = {}
        for name in self.folders.names:
            result = found.get(name)
            if isinstance(result, Failed):
                failed[name] = result.reason
            elif result is not None:
                histories.append(result)
        if self._stopped:
            unfinished = [history for history in histories if not history.finished]
            for history in unfinished or histories[-1:]:
                logger.info(
                    "stopped after %d rounds of %s; the same command with --resume True goes on",
                    len(history.rounds),
                    history.records[0]["name"],
                )
        return histories, failed

    def _in_turn(self) -> list[list[Strategy]]:
        """The strategies in groups, of which each waits for the one before.

        Where there is a last mile, the models of those that train alone are candidates of others.
        """
        alone: list[Strategy] = []
        together: list[Strategy] = []
        for strategy in self.strategies:
            if self.settings.adapt_epochs and isinstance(strategy, Standalone):
                alone.append(strategy)
            else:
                together.append(strategy)
        return [group for group in (alone, together) if group]

    @contextmanager
    def _display(self, titles: Sequence[str]) -> Iterator[RunsDisplay | None]:
        """One display of the trainings of these titles; ``None`` where each shows itself."""
        several = self._pool is not None and len(titles) > 1 and self._can_be_dealt_out
        if not several and not is_shown():
            yield None
            return
        at_a_time = 1
        if several:
            # Once, here: several processes would write it at a time.
            self._write_config()
            at_a_time = self._processes()
        kinds = {title: title for title in titles}
        with quiet(), RunsDisplay(kinds, self.rounds, at_a_time=at_a_time) as display:
            yield display

    def _carry_out(
        self, works: Sequence[Work], found: dict[str, Any], display: RunsDisplay | None
    ) -> bool:
        """Deal out trainings.

        Args:
            works: the trainings.
            found: gets the result of each under its title.
            display: of all runs; ``None``: each shows itself.

        Returns:
            Whether nobody asked to stop.
        """
        common: dict[str, Any] = {
            "pool": self._pool,
            "most": len(self.names),
            "together": self._can_be_dealt_out,
            "device_of": self.jobs.device_of,
        }
        if display is None:
            return carry_out(works, ended=found.__setitem__, **common)

        def ended(title: str, result: Any) -> None:
            found[title] = result
            if isinstance(result, Failed):
                display.run_ended(title, result.reason)
            elif not isinstance(result, History) or result.finished:
                display.run_ended(title)

        return carry_out(works, rounds_done=display.round_done, ended=ended, **common)

    def _processes(self) -> int:
        """How many processes work."""
        return 1 if self._pool is None else len(self._pool)

    def _with(self, *strategies: Strategy) -> BundleFederation:
        """This federation with some of its strategies, for a process that trains one run of it.

        It has what that needs, and nothing that a process could not be sent.
        """
        one = copy.copy(self)
        one.strategies = list(strategies)
        one.check = None
        one.groups = None
        one.valuations = []
        one._pool = None
        return one

    def run_strategy(self, turn: Turn) -> History | Failed:
        """Run the only strategy, of which the comparison may have more; nothing is checked again.

        Args:
            turn: what this run may use.
        """
        [strategy] = self.strategies
        self._take(turn)
        self._has_begun = False
        with self._workers(turn.pool):
            try:
                return self._run_one(strategy)
            except CONCERNS_ALL:
                raise
            except Exception as error:
                before_the_run = isinstance(error, FairFLError) and not self._has_begun
                if len(self.folders.names) == 1 or before_the_run:
                    raise
                return Failed(logged_failure(strategy.name, error))

    def _take(self, turn: Turn) -> None:
        """Work with what a turn allows."""
        self.jobs = Jobs(turn.jobs, turn.devices)
        # What a process that ended has left is gone on with.
        self.resume = self.resume or turn.again

    def _run_one(self, strategy: Strategy) -> History:
        folder = self.folders.folder_of(strategy)
        resume = self.resume and resuming.begun(folder)
        observer = _AtStart(self._begin)
        federation = self._federation(strategy, folder, self.names, observer=observer)
        with stopping_on_signals(federation.stop), quiet():
            return federation.run(resume)

    def _begin(self) -> None:
        """Note that the run has begun, and write ``config.json`` before anything else."""
        self._has_begun = True
        self._write_config()

    def _federation(
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
            "recipe": self._recipe(),
            "server_score": self._server_score(folder),
            **self.settings.keywords(),
            **changes,
        }
        transport = self._transport(folder, names)
        return Federation(
            strategy, transport, initial=self._initial_model, run_dir=folder, **arguments
        )

    def _write_config(self) -> None:
        """Write ``config.json`` and the digests of the sites' cases.

        Where they are there already, other runs may be about to read them.
        """
        for digest_file, content in files_to_write(self._datalists, self.digests).items():
            write_atomically(digest_file, content)
        file = self.run_dir / "config.json"
        if not file.exists() or file.read_bytes() != self._config_text:
            write_atomically(file, self._config_text)

    def _text_of_config(self) -> bytes:
        """The content of ``config.json``: what trains, and what the report needs."""
        config = {
            **self._config(),
            "valuations": [valuation.name for valuation in self.valuations],
            "full_run": self.full_run,
            "trained_with": self._measured_settings(),
            "own_overrides": configuration.own_overrides(
                self.bundle_root, self.site_settings.overrides
            ),
            "share_cases": self.share_cases,
            "command": command_line(),
            "full_command": short_full_command(),
            "folds_command": folds_command(),
        }
        return json.dumps(config, indent=4, default=str).encode()

    def _measured_settings(self) -> dict[str, Any]:
        """What the training uses of the settings with which the bundle was measured."""
        settings = self.site_settings
        return configuration.measured_settings(
            self.bundle_root, settings.overrides, settings.config, self.full_run
        )

    def _config(self) -> dict[str, Any]:
        """What was asked for, and the hashes of the bundle's files."""
        config = {
            "package": __version__,
            "bundle": self.bundle_root.absolute().name,
            "files": digests_of_configs(
                self.bundle_root,
                config_files({"config": self.site_settings.config, "sites": self.sites}),
            ),
            "strategies": [*self.folders.previous(), *self.folders.names],
            "sites": {name: self.sites.get(name, {}) for name in self.names},
            "data": {name: self.bundle_sites.data_of(name) for name in self.names},
            "config": self.site_settings.config,
            "overrides": self.site_settings.overrides,
            "rounds": self.rounds,
            "local_epochs": self.site_settings.local_epochs,
            "device": self._devices(),
            "amp": self.site_settings.amp,
            "federation": self._config_of_federation(),
        }
        if self.server_data is not None:
            config["server_data"] = str(Path(self.server_data).absolute())
        return config

    def _config_of_federation(self) -> dict[str, Any]:
        """The settings of the runs, and the guards where other ones were given."""
        config = self.settings.keywords()
        del config["rounds"]
        if self.guards is not DEFAULT:
            config["guards"] = config_of(self.guards)
        return config

    def _initial_model(self) -> tuple[Weights, ModelSpec]:
        """The model that every run begins with; runs under the caller's seed."""
        settings = self.site_settings
        return initial_model(self.bundle_root, settings.overrides, self.initial, settings.config)

    def _first_model(self) -> tuple[Weights, ModelSpec]:
        """The same under the run's seed."""
        with own_random_state(self.settings.seed):
            return self._initial_model()

    def _recipe(self) -> ModelRecipe | None:
        settings = self.site_settings
        return bundle_recipe(
            self.bundle_root,
            settings.overrides,
            settings.config,
            self.sites,
            local_epochs=settings.local_epochs,
            full_run=self.full_run,
        )

    # ---- the sites

    @contextmanager
    def _workers(self, lent: WorkerPool | None = None) -> Iterator[None]:
        """Inside, there are worker processes, if several strategies or sites are to work at a time.

        Args:
            lent: those that are there already, in place of new ones.
        """
        if lent is not None:
            self._pool = lent
            try:
                yield
            finally:
                self._pool = None
            return
        runs = self._most_runs()
        number = self.jobs.workers(runs * len(self.names), self.settings.threads)
        if number == 1:
            yield
            return
        logger.info("%d processes work at a time", number)
        at_once = number
        if runs > 1 and len(self.strategies) > 1:
            # The others begin when valuations need them.
            at_once = len(self.strategies)
        with WorkerPool(number, modules_of_sites(self.strategies), at_once) as self._pool:
            try:
                yield
            finally:
                self._pool = None

    def _most_runs(self) -> int:
        """How many federations could run at a time: those of the strategies, or of coalitions."""
        self._can_be_dealt_out = can_be_sent(self._with(*self.strategies).run_strategy)
        if not self._can_be_dealt_out:
            return 1
        runs = max(1, len(self.strategies))
        for valuation in self.valuations:
            trainings = islice(valuation.trainings(self.names), MOST_AT_A_TIME)
            runs = max(runs, len(list(trainings)))
        return runs

    def _transport(self, folder: Path, names: Sequence[str]) -> Transport:
        """Reaches the clients of some sites.

        Args:
            folder: of the run.
            names: of the sites.
        """
        cases = {name: self.bundle_sites.cases[name] for name in names}
        places = dealt_out(cases, self._processes())
        clients = {}
        for name in names:
            device = self.jobs.device_of(places[name])
            alone = self._model_trained_alone(name, folder)
            clients[name] = self.bundle_sites.client_maker(name, folder, device, alone=alone)
        if self._pool is None:
            return InProcess(clients)
        return WorkerClients(self._pool, clients, places)

    def _trained_alone(self, given: str | None) -> Path | None:
        """The folder of the models that sites trained alone; ``None``: nobody did.

        Args:
            given: by the user.
        """
        if given is not None:
            return Path(given)
        for strategy in self.strategies:
            if isinstance(strategy, Standalone) and len(self.strategies) > 1:
                return self.folders.folder_of(strategy) / "models"
        return None

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

    def _server_score(self, folder: Path) -> ServerScore | None:
        """What scores a model on the server's own images, where it has some."""
        if self.server_data is None:
            return None
        return self.bundle_sites.server_score(self.server_data, folder)

    def _devices(self) -> str | list[str]:
        """The devices as the configuration shows them: the only one by its name."""
        devices = list(dict.fromkeys(self.jobs.devices))
        return devices[0] if len(devices) == 1 else devices

    # ---- after the runs

    def _value(self, histories: Sequence[History]) -> None:
        """Run every valuation of every finished run.

        Models that are trained for coalitions are common to all runs.
        """
        done = {history.run_dir for history in histories}
        finished = {}
        for strategy in self.strategies:
            folder = self.folders.folder_of(strategy)
            if folder in done:
                finished[strategy.name] = folder
        train = self._coalition_training(finished)
        train_ahead = partial(self._train_ahead, finished)
        retrained = self.run_dir / "valuations" / f"retrained-{self._digest_of_training()}"
        with quiet(), torch_threads(self.settings.threads):
            for history in histories:
                transport = self._transport(history.run_dir, self.names)
                panel = Panel(
                    transport,
                    self.names,
                    expected=self.settings.expected({}),
                    facts=Facts(records=history.records),
                )
                run = FinishedRun(
                    history.run_dir,
                    self.names,
                    panel,
                    train,
                    retrained,
                    train_ahead,
                    digests_of_configs(self.bundle_root).get("evaluate.json", ""),
                    show_text,
                )
                try:
                    for valuation in self.valuations:
                        value_run(valuation, run)
                finally:
                    panel.close()

    def _coalition_training(self, finished: Mapping[str, Path]) -> CoalitionTraining:
        """Trains a coalition's model.

        Args:
            finished: name of a strategy -> folder of its finished run of all sites.
        """
        return CoalitionTraining(
            sites=self.names,
            settings=self.settings,
            finished=finished,
            first_model=lambda: self._first_model()[0],
            federation=self._federation,
        )

    def _train_ahead(
        self,
        finished: Mapping[str, Path],
        coalitions: Mapping[frozenset[str], Path],
        strategy: Strategy | None,
    ) -> None:
        """Train several coalitions at a time, where there are processes for it.

        Without them each is trained when its model is asked for. The models are the same.

        Args:
            finished: as :meth:`_coalition_training`.
            coalitions: to train -> folder of each.
            strategy: with which they train; ``None``: FedAvg.

        Raises:
            FederationError: when the training was stopped, or a coalition's failed.
        """
        if self._pool is None or not self._can_be_dealt_out:
            return
        train = self._coalition_training(finished)
        works = []
        for coalition, folder in coalitions.items():
            if train.needs_training(coalition, strategy):
                given = (finished, coalition, strategy, folder)
                works.append(Work(folder.name, partial(self._with().train_coalition, *given)))
        if len(works) < 2:
            return
        found: dict[str, Any] = {}
        with self._display([work.title for work in works]) as display:
            nobody_stopped = self._carry_out(works, found, display)
        if not nobody_stopped:
            raise FederationError("stopped; the same command with --resume True goes on")
        for title, result in found.items():
            if isinstance(result, Failed):
                raise FederationError(f"coalition {title}: {result.reason}; use --resume True")

    def train_coalition(
        self,
        finished: Mapping[str, Path],
        coalition: frozenset[str],
        strategy: Strategy | None,
        folder: Path,
        turn: Turn,
    ) -> None:
        """Train one coalition to its end, so that its model is there when somebody asks for it.

        Args:
            finished: as :meth:`_coalition_training`.
            coalition: names of its sites.
            strategy: with which they train; ``None``: FedAvg.
            folder: of the coalition's run.
            turn: what this training may use.
        """
        self._take(turn)
        with self._workers(turn.pool):
            self._coalition_training(finished)(coalition, strategy, folder)

    def _digest_of_training(self) -> str:
        """A digest of all that decides what a coalition trains: other settings, another folder."""
        config = self._config()
        del config["package"]
        config["strategies"] = None
        config["initial"] = self.initial
        config["files"].pop("federate.json", None)
        config["federation"] = self.settings.compared()
        config["guards"] = self._config_of_federation().get("guards")
        text = json.dumps(config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _write_report(self, histories: Sequence[History], failed: Mapping[str, str]) -> None:
        """Report these runs and those of previous strategies.

        Args:
            histories: of these runs.
            failed: name -> reason of the strategies that failed.
        """
        from monai_fairfl.report import as_text, write_report_if_possible

        runs = [self.run_dir / name for name in self.folders.previous()]
        runs += [history.run_dir for history in histories]
        if not runs:
            return
        report = write_report_if_possible(runs, self.run_dir, failed)
        if report is not None:
            print(f"{as_text(report)}\nReport: {self.run_dir / 'report.html'}")


def _resolved(given: Strategy | str | Sequence[Strategy | str]) -> list[Strategy]:
    """The strategies that were given, one or several."""
    if isinstance(given, (Strategy, str)):
        given = [given]
    return [strategy_of(strategy) for strategy in given]


class _AtStart(Observer):
    """Calls a function when a run starts, before anything of it is written."""

    def __init__(self, start: Callable[[], None]):
        self.start = start

    def run_started(self) -> None:
        self.start()
