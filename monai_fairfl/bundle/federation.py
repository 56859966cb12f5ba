# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a bundle's sites on this machine: what ``configs/federate.json`` runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.checks import check_start
from monai_fairfl.bundle.initial import bundle_recipe
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.settings import Settings
from monai_fairfl.bundle.site import closing_measurements
from monai_fairfl.bundle.sites import check_groups, chosen_sites
from monai_fairfl.bundle.trainings import Jobs, deal_out, failure_of
from monai_fairfl.bundle.valuing import RunsValuer
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards.registry import guards_of
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.workers import Failed, Work, prepare
from monai_fairfl.utils.settings import one_or_several
from monai_fairfl.valuation import RunValuation

if TYPE_CHECKING:
    from monai_fairfl.bundle.comparison import Comparison

logger = logging.getLogger(__name__)


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

    # What the sites' folders decide is there after read_settings().
    names: list[str]
    runs: BundleRuns

    def __init__(
        self,
        bundle_root: str,
        sites_root: str,
        strategies: Strategy | str | Sequence[Strategy | str],
        rounds: int,
        run_dir: str,
        **given: Any,
    ):
        with configuration.errors_in_one_line():
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
                sites = chosen_sites(Path(sites_root), chosen, own, any_folder)
                given["groups"] = groups(list(sites))
            self.settings = Settings.of("a federation", given)
            self.strategies = [strategy_of(one) for one in self.settings.strategies]
            self.valuations = _checked_valuations(self.settings.valuations)
            self.guards = guards_of(self.settings.guards)
            self.jobs = Jobs.of(self.settings)
        self.run_dir = Path(run_dir)
        # Site -> digests of its cases, as the check of its files found them.
        self.digests: dict[str, list[str]] = {}

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
        federation = cls(strategies=strategies or strategy, **keys)
        if not federation.settings.seeds and federation.settings.folds is None:
            return federation
        # Here, not at the top: it is made of such federations.
        from monai_fairfl.bundle.comparison import Comparison

        with configuration.errors_in_one_line():
            return Comparison(federation)

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
        # Processes work on sites of all strategies.
        jobs = self.jobs.workers(len(self.strategies) * len(self.names), self.settings.threads)
        if jobs > 1:
            # Libraries are imported for the workers while this process checks the sites.
            prepare()
        self.digests = check_start(self.runs, self.strategies, self.valuations)
        of_runs = [valuation.name for valuation in self.valuations]
        start = self.runs.start_files(self.digests, self.strategies, of_runs)
        if jobs > 1 and len(self.strategies) > 1:
            # Here, once: several processes would write them at a time.
            start.run_started()
        if self.settings.record_updates:
            # Of each round the model that was sent, and what every site sent back.
            weights, _ = self.runs.first_model()
            size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
            models = len(self.strategies) * self.settings.rounds * (len(self.names) + 1)
            text_of_size = "The updates of all rounds take at most %.2g GB."
            logger.warning(text_of_size, models * size / 1e9)

        # Where there is a last mile, the models of those that train alone are candidates of others.
        first: dict[str, Work] = {}
        then: dict[str, Work] = {}
        for strategy in self.strategies:
            is_candidate = self.settings.adapt_epochs and isinstance(strategy, Standalone)
            turn = first if is_candidate else then
            turn[strategy.name] = partial(self.runs.run_strategy, strategy, start)
        rounds = dict.fromkeys([*first, *then], self.settings.rounds)
        found, stopped = deal_out([first, then], self.jobs.devices_of(jobs), rounds)
        failed = {}
        histories: list[History] = []
        for name in self.runs.strategies:
            result = found.get(name)
            if isinstance(result, Failed):
                failed[name] = result.reason
            elif result is not None:
                histories.append(result)
        unfinished = [history for history in histories if not history.finished]
        if stopped:
            for history in unfinished or histories[-1:]:
                done, name = len(history.rounds), history.records[0]["name"]
                words = "stopped after %d rounds of %s; the same command with --resume True goes on"
                logger.info(words, done, name)
        try:
            if self.valuations and not unfinished and not stopped:
                RunsValuer(self.runs, histories).value(self.valuations)
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
        self.digests = check_start(self.runs, self.strategies, self.valuations)

    def read_settings(self) -> None:
        """Find the sites: all that is known before the checks.

        It sets :attr:`names` and :attr:`runs`.

        Raises:
            FairFLError: naming the setting or the folder, and the fix.
        """
        given = self.settings
        sites = chosen_sites(
            Path(given.sites_root), given.site_names, given.sites, given.any_folder
        )
        self.names = list(sites)
        check_groups(given.groups, self.names)
        names = [strategy.name for strategy in self.strategies]
        alone = [each.name for each in self.strategies if isinstance(each, Standalone)]
        root = Path(given.bundle_root)
        self.runs = BundleRuns(
            settings=given,
            bundle_root=root,
            run_dir=self.run_dir,
            sites=sites,
            strategies=names,
            guards=self.guards,
            jobs=self.jobs,
            recipe=bundle_recipe(root, given, given.sites, given.full_run),
            alone=alone[0] if alone and len(names) > 1 else "",
        )

    # ---- after the runs

    def _write_report(self, histories: Sequence[History], failed: Mapping[str, str]) -> None:
        """Report these runs and those of previous strategies.

        Args:
            histories: of these runs.
            failed: name -> reason of the strategies that failed.
        """
        from monai_fairfl.report import as_text, write_report_if_possible

        runs = [self.run_dir / name for name in self.runs.previous()]
        runs += [history.run_dir for history in histories]
        if not runs:
            return
        report = write_report_if_possible(runs, self.run_dir, failed)
        if report is not None:
            print(f"{as_text(report)}\nReport: {self.run_dir / 'report.html'}")


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
