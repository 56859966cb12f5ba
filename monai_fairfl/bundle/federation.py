# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a bundle's sites on this machine: what ``configs/federate.json`` runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from monai_fairfl.bundle import configuration, preflight
from monai_fairfl.bundle.dealing import deal_out, display_of
from monai_fairfl.bundle.jobs import Jobs
from monai_fairfl.bundle.run_config import StartFiles, text_of_config
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.settings import TRAIN, SiteSettings
from monai_fairfl.bundle.several_runs import (
    RunFolders,
    failure_of,
    log_stop,
    models_trained_alone,
    outcomes,
)
from monai_fairfl.bundle.site import closing_measurements
from monai_fairfl.bundle.sites import BundleSites
from monai_fairfl.bundle.start_checks import check_start
from monai_fairfl.bundle.valuing import RunsValuer
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards.registry import Given, guards_of
from monai_fairfl.server.federation import History
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.workers import Failed, Work, at_a_time, prepare
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.settings import checked_mapping, one_or_several
from monai_fairfl.utils.terminal import print_replacing
from monai_fairfl.valuation import RunValuation

if TYPE_CHECKING:
    from monai_fairfl.bundle.repeated import RepeatedFederation

logger = logging.getLogger(__name__)

Groups = Mapping[str, Sequence[str]]


class BundleFederation:
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
        sites: site -> its own plain values, which replace those of ``overrides``. ``"config"`` is
            a list of configuration files in place of ``config``; ``"dataset_dir"`` is a folder of
            data elsewhere than ``sites_root/<site>``.
        site_names: the sites that take part, or a single one; ``None``: all in ``sites_root``.
        any_folder: whether every folder in ``sites_root`` is a site, whatever it holds, because the
            bundle lists its own files. ``False``: only a folder whose layout is known is one.
        overrides: plain values that replace those of ``config``, for every site and for the initial
            model.
        config: files of the training configuration, relative to the bundle. A later file replaces
            values of those before it, so overlays come after ``train.json``.
        check: a function that is called with each site's folder before anything is trained;
            ``None``: no check.
        device: the device of the training, such as ``"cpu"`` or ``"cuda:0"``.
        amp: whether GPUs train with automatic mixed precision.
        local_epochs: epochs that each site trains in each round.
        jobs: how many strategies, or sites of one strategy, train at a time, see
            :class:`~monai_fairfl.bundle.jobs.Jobs`. 1: one after the other in this process; more:
            in that many worker processes; ``None`` or ``"auto"``: as many as cores and memory
            allow. On CPUs, the number changes no bit of what is trained and recorded.
        devices: the devices that the worker processes take in turn, in place of ``device``.
        resume: continue the run in ``run_dir``, which must have the same overrides, local epochs
            and data. A comparison may grow: earlier strategies that are not named stay in its
            report and configuration. ``False``: a used ``run_dir`` is refused.
        initial: a ``state_dict`` file with the initial model; ``None``: it is built under the seed.
        report: whether ``report.html`` and ``report.json`` are written at the end.
        valuations: valuations of each finished run, see ``docs/valuation.md``.
        full_run: the training with which the bundle was measured, see
            :class:`~monai_fairfl.run.training_config.FullRun`; ``"bundle"``: that of the
            bundle's ``federate.json``. The report gives no verdict on a shorter run, and with
            ``None`` on none.
        share_cases: whether the report writes each case's score into ``cases.csv``.
        groups: name of a group -> its sites, or a function that makes this mapping of the names of
            all sites. A site's configuration finds the name of its group under the key ``group``,
            and the report shows the mean of each group.
        guards: checks of every exchange's updates, in order: guards, their names, or
            configurations with ``_target_``. ``None``: the default guards; an empty list: none.
            All strategies have the same guards.
        trained_alone: a folder with a file ``SITE.pt`` for each site, the model that it trained
            alone, which is a candidate of the last mile. ``None``: the models of a
            :class:`~monai_fairfl.strategies.Standalone` among ``strategies``, which then runs
            first.
        federation: fields of :class:`~monai_fairfl.server.settings.RunSettings`, such as ``seed``
            and ``min_clients``.

    Raises:
        ConfigError: if a strategy, a guard, ``jobs`` or a device is unknown or out of range.
            :meth:`run` checks all else before it trains.

    >>> from monai_fairfl import find_bundle
    >>> bundle = str(find_bundle("prostate_mri_segmentation"))
    >>> strategies = ["FedAvg", "FedCE('sum')"]
    >>> federation = BundleFederation(bundle, "DATA", strategies, rounds=2, run_dir="runs/two")
    >>> [strategy.name for strategy in federation.strategies]  # federation.run() trains both
    ['FedAvg', 'FedCE-sum']
    """

    # What the sites' folders and the bundle's files decide is there after read_settings().
    names: list[str]
    settings: RunSettings
    bundle_sites: BundleSites
    runs: BundleRuns

    def __init__(
        self,
        bundle_root: str,
        sites_root: str,
        strategies: Strategy | str | Sequence[Strategy | str],
        rounds: int,
        run_dir: str,
        sites: Mapping[str, Mapping[str, Any]] | None = None,
        site_names: str | Sequence[str] | None = None,
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
        valuations: RunValuation | Sequence[RunValuation] | None = (),
        groups: Groups | Callable[[Sequence[str]], Groups] | None = None,
        full_run: Mapping[str, Any] | None | Literal["bundle"] = "bundle",
        share_cases: bool = False,
        guards: Given = None,
        jobs: int | str | None = 1,
        devices: Sequence[str] | None = None,
        trained_alone: str | None = None,
        **federation: Any,
    ):
        self.bundle_root = Path(bundle_root)
        self.sites_root = Path(sites_root)
        self.run_dir = Path(run_dir)
        self.rounds = rounds
        self.site_names = site_names
        self.any_folder = any_folder
        self.check = check
        self.resume = resume
        self.initial = initial
        self.report = report
        self.groups = groups
        self.full_run = (
            configuration.full_run_of(self.bundle_root) if full_run == "bundle" else full_run
        )
        self.share_cases = share_cases
        with configuration.errors_in_one_line():
            for switch in ("any_folder", "resume", "report", "share_cases"):
                check_value(switch, getattr(self, switch), "bool")
            self.sites = _additions_of(sites)
            self.valuations = _checked_valuations(valuations)
            self.site_settings = SiteSettings(config, overrides or {}, local_epochs, device, amp)
            self.strategies = _resolved(strategies)
            self.guards = guards_of(guards)
            self.jobs = Jobs(jobs, devices or [self.site_settings.device])
            if trained_alone is not None and not federation.get("adapt_epochs"):
                raise ConfigError(
                    f"trained_alone names candidates of the last mile ({trained_alone}), which "
                    "adapt_epochs switches on: give adapt_epochs, such as 10, or leave "
                    "trained_alone out"
                )
        self.federation = federation
        self.folders = RunFolders(self.run_dir, self.strategies)
        self.trained_alone = models_trained_alone(self.strategies, self.folders, trained_alone)
        # Site -> digests of its cases, as the check of its files found them.
        self.digests: dict[str, list[str]] = {}

    @classmethod
    def from_config(cls, **arguments: Any) -> BundleFederation | RepeatedFederation:
        """Make the federation that the running configuration describes by its top-level keys.

        ``federate.json`` names this method as the ``_target_`` of its federation. Every top-level
        key that is an argument of this class, or a field of
        :class:`~monai_fairfl.server.settings.RunSettings`, is read from the configuration, so that
        ``federate.json`` need not refer to each. If ``strategies`` is empty, ``strategy`` counts.

        Args:
            arguments: values in place of the keys of the same names.

        Returns:
            The federation. If the key ``seeds`` or ``folds`` is set, a comparison, which trains a
            federation for each strategy, seed and fold.

        Raises:
            ConfigError: if no configuration is running, or its keys do not go together.
        """
        parser = configuration.calling_parser()
        if parser is None:
            raise ConfigError(
                "BundleFederation.from_config reads the configuration that is running, and there "
                "is none: in Python use BundleFederation(...)"
            )
        if any(configuration.parsed_value(parser, key) for key in ("seeds", "folds")):
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
        self.read_settings()
        jobs = self._processes()
        if jobs > 1:
            # Libraries are imported for the workers while this process checks the sites.
            prepare()
        self._check()
        start = self._start_files()
        found, stopped = self._run_each(jobs, start)
        histories, failed = outcomes(found, self.folders.names)
        if stopped:
            log_stop(histories)
        try:
            finished = all(history.finished for history in histories)
            if self.valuations and finished and not stopped:
                self._value(histories, start)
        finally:  # a valuation that failed does not cost the report
            if self.report:
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
        self._check()

    def read_settings(self) -> None:
        """Find the sites and read the settings of the runs: all that is known before the checks.

        It sets :attr:`names`, :attr:`settings`, :attr:`bundle_sites` and :attr:`runs`.

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
            self.run_dir / "datalists",
            self.any_folder,
        )
        self.runs = BundleRuns(
            sites=self.bundle_sites,
            folders=self.folders,
            jobs=self.jobs,
            guards=self.guards,
            initial=self.initial,
            full_run=self.full_run,
            trained_alone=self.trained_alone,
            resume=self.resume,
        )

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
        """Find everything that is wrong, see :func:`~monai_fairfl.bundle.start_checks.check_start`.

        Raises:
            FairFLError: naming the setting, the site or the file, and the fix.
        """
        self.digests = check_start(self.runs, self.strategies, self.valuations, self.check)

    def _start_files(self) -> StartFiles:
        """What is written before anything else of the runs."""
        valuations = [valuation.name for valuation in self.valuations]
        text = text_of_config(self.runs, valuations, self.share_cases)
        return StartFiles(self.run_dir, self.bundle_sites.datalists, self.digests, text)

    # ---- the runs

    def _processes(self) -> int:
        """How many processes work at a time: on sites of all strategies."""
        return self.jobs.workers(len(self.strategies) * len(self.names), self.settings.threads)

    def _run_each(self, jobs: int, start: StartFiles) -> tuple[dict[str, History | Failed], bool]:
        """Run the strategies, several at a time where there are processes for it.

        Of several, one whose own run fails does not stop the others. What concerns all of them
        does: a disk that is full, an engine that was stopped, or an error before the run has begun,
        which is of its settings or its folder.

        Args:
            jobs: processes that work at a time.
            start: is written when the first run begins.

        Returns:
            Name of each strategy that ran -> its history, or why it failed; and whether a signal
            asked to stop.
        """
        found: dict[str, History | Failed] = {}
        stopped = False
        runs: dict[str, Work] = {}
        for strategy in self.strategies:
            runs[strategy.name] = partial(self.runs.run_strategy, strategy, start.write)
        beside = at_a_time(runs, jobs)
        if beside > 1:
            # Once, here: several processes would write it at a time.
            start.write()
        with display_of(list(runs), self.rounds, beside) as display:
            for strategies in self._in_turn():
                pieces = {strategy.name: runs[strategy.name] for strategy in strategies}
                results, stopped = deal_out(pieces, self.jobs.devices_of(jobs), display)
                found.update(results)
                if stopped:
                    break
        return found, stopped

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

    # ---- after the runs

    def _value(self, histories: Sequence[History], start: StartFiles) -> None:
        """Make every valuation of every finished run."""
        done = {history.run_dir for history in histories}
        finished = {}
        for strategy in self.strategies:
            folder = self.folders.folder_of(strategy)
            if folder in done:
                finished[strategy.name] = folder
        valuer = RunsValuer(self.runs, finished, start.write)
        valuer.value(self.valuations, histories)

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
            print_replacing(f"{as_text(report)}\nReport: {self.run_dir / 'report.html'}")


def _resolved(given: Strategy | str | Sequence[Strategy | str]) -> list[Strategy]:
    """The strategies that were given, one or several."""
    return [strategy_of(strategy) for strategy in one_or_several(given)]


def _additions_of(given: Any) -> dict[str, dict[str, Any]]:
    """Site -> its own settings, as the key ``sites`` has them."""
    additions = {}
    for name, values in checked_mapping("sites", given).items():
        additions[name] = checked_mapping(f"sites: {name!r}", values)
    return additions


def _checked_valuations(given: Any) -> list[RunValuation]:
    """The valuations that were given, one or several."""
    found = [] if given is None else one_or_several(given)
    for valuation in found:
        if not isinstance(valuation, RunValuation):
            raise ConfigError(
                "valuations must be a list such as "
                '[{"_target_": "monai_fairfl.valuation.Reconstruction", "method": "exact"}], '
                f"got {valuation!r}"
            )
    return found
