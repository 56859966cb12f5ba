# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""All checks of a bundle's federation, in the order in which they are made before it trains.

Those that need no federation are in :mod:`~monai_fairfl.bundle.preflight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle import configuration, preflight
from monai_fairfl.bundle.initial import warn_of_other_training
from monai_fairfl.bundle.run_config import config_of_runs
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.shipped import is_shipped
from monai_fairfl.bundle.sites import BundleSites
from monai_fairfl.data.checks import check_cases
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.run import resuming
from monai_fairfl.run.ledger import digest_of
from monai_fairfl.run.recorded_updates import check_recorded
from monai_fairfl.run.records import names_of_guards
from monai_fairfl.run.resuming import require_same_cases
from monai_fairfl.run.training_config import FullRun
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.valuation import Retraining, RunValuation
from monai_fairfl.valuation.run import check_valuations

Check = Callable[..., Any]
"""Called with a site's folder, and with what its overrides set of the files, such as a suffix."""


def check_start(
    runs: BundleRuns,
    strategies: Sequence[Strategy],
    valuations: Sequence[RunValuation],
) -> dict[str, list[str]]:
    """Find everything that is wrong before hours of training are spent.

    Args:
        runs: of the federation.
        strategies: that are to run.
        valuations: of the finished runs.

    Returns:
        Site -> digests of its cases.

    Raises:
        FairFLError: naming the setting, the site or the file, and the fix.
    """
    sites = runs.sites
    settings = runs.settings

    # The settings and the bundle's files.
    FullRun.read(settings.full_run)
    runs.jobs.require_devices()
    train = _checked_training_config(sites)
    preflight.check_strategies(strategies, sites.names, train, settings.clients_per_round)
    preflight.check_measurements(settings.evaluate, "evaluate", in_training=True)
    preflight.check_measurements(settings.final, "final")
    if settings.adapt_fuse:
        _check_fusing(runs, strategies)

    # What the folder of the runs holds, and the model that they begin with.
    needs_updates = any(valuation.needs_updates for valuation in valuations)
    _check_run_dir(runs, strategies, settings.record_updates or needs_updates)
    for strategy in strategies:
        # A federation refuses, where it is made, what its strategy cannot do with the settings.
        runs.federation(strategy, runs.folders.folder_of(strategy), sites.names)
    check_valuations(valuations, sites.bundle_root, sites.names, settings.keywords())
    _check_retraining(runs, valuations, train)
    if settings.initial is not None:
        warn_of_other_training(settings.initial, runs.recipe())

    return _check_images(runs, strategies)


def _check_images(runs: BundleRuns, strategies: Sequence[Strategy]) -> dict[str, list[str]]:
    """Each site's images can be read, are those of the runs that go on, and are enough.

    Args:
        runs: of the federation.
        strategies: that are to run.

    Returns:
        As :func:`check_start`.
    """
    sites = runs.sites
    check = sites.settings.check
    folders = {name: sites.data_of(name) for name in sites.names}
    digests = _check_data(folders, _check_of_sites(sites, check), check, sites.bundle_root)
    if runs.folders.used():
        require_same_cases(sites.datalists, digests)
    sites.require_datalists()
    if runs.settings.adapt_epochs and runs.trained_alone is not None:
        preflight.check_trained_alone(runs.trained_alone, folders, sites.listed)
    new = []
    for strategy in strategies:
        if not resuming.begun(runs.folders.folder_of(strategy)):
            new.append(strategy)
    preflight.check_images(new, partial(sites.count_images, runs.jobs.devices[0]))
    return digests


def _check_fusing(runs: BundleRuns, strategies: Sequence[Strategy]) -> None:
    """There are models to fuse, and the bundle's inference can run a fused one."""
    others = [strategy for strategy in strategies if not isinstance(strategy, Standalone)]
    if others and runs.trained_alone is None:
        raise ConfigError(
            "adapt_fuse fuses a site's model with the one that it trained alone, and there is none:"
            " add Standalone to the strategies, or name the folder of such models as trained_alone"
        )
    file = runs.sites.bundle_root / configuration.INFERENCE
    if file.is_file() and "network_of" not in file.read_text():
        raise ConfigError(
            f"{file} could not run a fused model, so adapt_fuse is of no use: let its network be "
            '{"_target_": "monai_fairfl.workflow.network_of", "network_def": "@network_def", '
            '"ckpt_path": "@ckpt_path", "device": "@device"}'
        )


def _checked_training_config(sites: BundleSites) -> ConfigParser:
    """The training configuration of all; that of each site can be read, too."""
    settings = sites.settings
    train = configuration.train_config(sites.bundle_root, settings.overrides, settings.config)
    for name in sites.names:
        # With a folder of its own, which the configuration must know as any other key.
        of_site = settings.for_site(settings.sites.get(name, {}))
        configuration.train_config(sites.bundle_root, of_site.overrides, of_site.config)
    return train


def _check_retraining(
    runs: BundleRuns, valuations: Sequence[RunValuation], train: ConfigParser
) -> None:
    """A strategy that is to train coalitions at the end could train all sites, too."""
    per_round = runs.settings.clients_per_round
    for valuation in valuations:
        if not isinstance(valuation, Retraining) or valuation.strategy is None:
            continue
        try:
            preflight.check_strategies([valuation.strategy], runs.sites.names, train, per_round)
        except ConfigError as error:
            raise ConfigError(f"valuation {valuation.name} trains coalitions: {error}") from error


def _check_run_dir(runs: BundleRuns, strategies: Sequence[Strategy], needs_updates: bool) -> None:
    """``run_dir`` is new, or what it holds goes on with the same settings.

    The strategies must be able to train the first model, too.

    Args:
        runs: of the federation.
        strategies: that are to run.
        needs_updates: whether every round's updates must be recorded.
    """
    run_dir = runs.folders.run_dir
    resuming.check_folder(run_dir, runs.folders.names, runs.resume)
    folders = [runs.folders.folder_of(strategy) for strategy in strategies]
    resuming.check_checkpoints(folders)
    if needs_updates:
        for folder in filter(resuming.begun, folders):
            check_recorded(folder)
    weights, spec = runs.first_model()
    for strategy in strategies:
        strategy.check_model(spec, runs.settings.buffers)

    used = runs.folders.used()
    if used:
        resuming.check_training(run_dir, config_of_runs(runs), runs.sites.names)
        opening = {
            **runs.settings.compared(),
            "guards": names_of_guards(runs.guards),
            "model": digest_of(weights),
        }
        resuming.check_openings(used, opening)


def _check_data(
    folders: Mapping[str, str], check: Check | None, given: Check | None, bundle_root: Path
) -> dict[str, list[str]]:
    """Run the bundle's check on each site's folder.

    Args:
        folders: site -> its folder.
        check: of a folder; ``None``: no check.
        given: the same as the user gave it.
        bundle_root: the bundle.

    Returns:
        Site -> digests of its cases, as :func:`~monai_fairfl.bundle.preflight.check_sites`.

    Raises:
        DataError: naming the problems, and how to switch the check off in a bundle of one's own.
    """
    try:
        return preflight.check_sites(folders, check)
    except DataError as error:
        is_of_shipped = getattr(given, "func", given) is check_cases
        if is_shipped(bundle_root) or not is_of_shipped:
            raise
        file = bundle_root / configuration.FEDERATE
        raise DataError(
            f"{error}\nIf the bundle is for another organ, set check to null in {file}"
        ) from None


def _check_of_sites(sites: BundleSites, check: Check | None) -> Check | None:
    """The check of a site's folder, with what its overrides set of the files."""
    given = {}
    for name in sites.names:
        overrides = sites.settings_of(name).overrides
        given[sites.data_of(name)] = configuration.settings_of_files(overrides)
    if check is None or not any(given.values()):
        return check
    return lambda site: check(site, **given[site])
