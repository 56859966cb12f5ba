# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Everything that can be found wrong before hours of training are spent."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.settings import KEYS
from monai_fairfl.data.checks import Summary, notes_on_sites, sorted_out
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.image_files import count_of_files
from monai_fairfl.errors import ConfigError, DataError, DataWarning, FairFLError, did_you_mean
from monai_fairfl.messages import CANDIDATES, MEASUREMENTS
from monai_fairfl.run import digest_of, resuming
from monai_fairfl.run.recorded_updates import check_recorded
from monai_fairfl.run.records import names_of_guards
from monai_fairfl.server import RunSettings
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.utils.tensors import own_random_state

if TYPE_CHECKING:
    from monai_fairfl.bundle.federation import BundleFederation

logger = logging.getLogger(__name__)


def check_run_dir(runs: BundleFederation) -> list[Path]:
    """Refuse a ``run_dir`` that is used, and does not go on with the same settings.

    The strategies must be able to train the first model, too.

    Args:
        runs: the federation.

    Returns:
        Folders that hold a run which goes on, or with which the new runs are compared: also those
        of a comparison that are not to run now.

    Raises:
        FairFLError: naming the setting or the folder, and the fix.
    """
    settings = runs.settings
    resuming.check_folder(runs.run_dir, runs.names, settings.resume)
    resuming.check_checkpoints(run for run in runs.folders.values() if not resuming.ended(run))
    values_updates = any(valuation.needs_updates for valuation in runs.valuations)
    with own_random_state(settings.seed):
        weights, spec = runs.initial()
    for strategy in runs.strategies:
        folder = runs.folders[strategy.name]
        records = resuming.records_of(folder)
        if records and (settings.record_updates or values_updates):
            check_recorded(folder)
        if settings.adapt_epochs and records and records[-1]["kind"] == "end":
            adapted = any(CANDIDATES[0] in models for models in records[-1]["scores"].values())
            if not adapted and not isinstance(strategy, Standalone):
                raise ConfigError(f"{folder} has ended without a last mile: name another run_dir")
        strategy.check_model(spec, settings.buffers)
    if settings.record_updates:
        # Of each round the model that was sent, and what every site sent back.
        models = len(runs.names) * settings.rounds * (len(runs.sites) + 1)
        size = models * sum(tensor.nbytes for tensor in weights.values())
        logger.warning("The updates of all rounds take at most %.2g GB.", size / 1e9)

    used = [runs.run_dir]
    if not resuming.records_of(runs.run_dir):
        used = [runs.run_dir / name for name in resuming.compared(runs.run_dir, runs.names)]
    if used:
        resuming.check_training(runs.run_dir, runs.config, list(runs.sites))
        guards = names_of_guards(runs.guards)
        opening = {**settings.compared(), "guards": guards, "model": digest_of(weights)}
        resuming.check_openings(used, opening)
    return used


def check_trained_alone(runs: BundleFederation, models: Path) -> None:
    """Refuse models trained alone that have seen what validates or tests in a run.

    They are compared by the data lists of the run that trained these models, where they are there.
    A run of several strategies has them in the folder above.
    """
    for name, folder in runs.sites.items():
        places = [parent / "datalists" / f"{name}.json" for parent in models.parents[:2]]
        lists = [file for file in places if file.is_file()]
        if not lists:
            continue
        trained = {case["image"] for case in cases_of_list(lists[0], folder, ("training",))}
        parts = runs.listed[name]()
        judging = [*parts.get("validation", ()), *parts.get("testing", ())]
        if seen := len(trained.intersection(case["image"] for case in judging)):
            raise ConfigError(
                f"{models} were trained on {seen} cases of {name} that validate or test here: "
                "train Standalone with this split_seed"
            )


# ---- what needs no federation


def check_config() -> None:
    """Refuse a misspelt top-level key of the running configuration, which MONAI would ignore.

    Called from ``federate.json``'s ``initialize``. Where no configuration runs, as in a call from
    Python, nothing is checked.

    Raises:
        ConfigError: naming the key, and a known one that looks like it.

    >>> from monai.bundle import ConfigParser
    >>> class Workflow:  # as MONAI's: its parser is found
    ...     parser = ConfigParser({"roundz": 3})
    ...     def initialize(self):
    ...         check_config()
    >>> Workflow().initialize()
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: unknown key 'roundz' for a federation; did you mean 'rounds'?
    """
    parser, _ = configuration.calling()
    known = ["imports", "federation", "initialize", "run", *KEYS]
    with configuration.errors_in_one_line():
        for key in parser.get() if parser is not None else ():
            if key not in known and not key.startswith("_"):
                raise ConfigError(f"unknown key {key!r} for a federation{did_you_mean(key, known)}")


def check_strategies(
    strategies: Sequence[Strategy],
    sites: Sequence[str],
    train: ConfigParser,
    settings: RunSettings,
) -> None:
    """Refuse strategies that these sites cannot train.

    There may be too few or too many sites, a measurement that no client knows, or no evaluator.

    Args:
        strategies: that are to run.
        sites: that take part.
        train: the training configuration.
        settings: of the runs; what they measure is checked, too.

    Raises:
        ConfigError: naming the strategy, what it needs and what there is.
    """
    asked = {strategy.name: sorted(strategy.requires) for strategy in strategies}
    known = ["train_loss", *[name for name, entry in MEASUREMENTS.items() if entry.function]]
    for who, needed in {**asked, "evaluate": settings.evaluate, "final": settings.final}.items():
        for name in needed:
            if name not in known:
                raise ConfigError(f"{who}: no client measures {name!r}{did_you_mean(name, known)}")
    in_round = min(len(sites), settings.clients_per_round or len(sites))
    for strategy in strategies:
        if not strategy.min_clients <= in_round <= strategy.max_clients:
            raise ConfigError(
                f"{strategy.name} takes {strategy.min_clients} to {strategy.max_clients} sites "
                f"in a round, got {in_round} of {list(sites)}: change them, or clients_per_round"
            )
        scores = [each for each in asked[strategy.name] if MEASUREMENTS[each].data == "validation"]
        if scores and "validate#evaluator" not in train:
            raise ConfigError(f"{strategy.name} needs {scores} of a validate#evaluator")


def check_sites(
    sites: Mapping[str, Path], calls: Mapping[str, Callable[[], Any]], root: str | Path
) -> tuple[dict[str, Summary], dict[str, Any]]:
    """Check every site's data and report all problems of all sites at once.

    What a look at all sites shows, such as an image that two of them have, is a warning.

    Args:
        sites: name -> folder.
        calls: name -> its check.
        root: the folder whose files are counted beside those of sites elsewhere.

    Returns:
        Site -> what was found, where its check is :func:`~monai_fairfl.data.check_cases`; and
        what became of the files of these, see :func:`~monai_fairfl.data.checks.sorted_out`.

    Raises:
        DataError: naming each site, file and fix.
    """
    problems = []
    summaries = {}
    for name, check in calls.items():
        try:
            found = check()
            if isinstance(found, Summary):
                summaries[name] = found
        except FairFLError as error:
            problems.append(f"site {name!r}: {error}")
    if problems:
        raise DataError("\n".join(problems))

    # A data list is no folder, and where each site has its own, there may be none of all.
    roots = [path for path in (Path(root), *sites.values()) if summaries and path.is_dir()]
    files = sorted_out(roots, summaries.values())
    if summaries:
        logger.info("%s: %s", root, count_of_files(files))
    # The check of a site has named the copies within it.
    named = [n for name in summaries for n in notes_on_sites({name: summaries[name]})]
    for note in notes_on_sites(summaries):
        if note not in named:
            warnings.warn(note, DataWarning, stacklevel=2)
    return summaries, files
