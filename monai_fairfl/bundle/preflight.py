# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Everything that can be found wrong before hours of training are spent."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl import guards
from monai_fairfl import strategies as shipped
from monai_fairfl.bundle.configuration import calling_parser, errors_in_one_line
from monai_fairfl.data.checks import (
    Summary,
    check_duplicates,
    check_label_values,
    digests_of_cases,
    sorted_out,
)
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.image_files import count_of_files
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.data.sites import folder_of_site, folders_in, site_folders
from monai_fairfl.errors import ConfigError, DataError, DataWarning, FairFLError, did_you_mean
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.messages import RANGES
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.named_classes import find, load_by_path
from monai_fairfl.utils.settings import checked_mapping, one_or_several

logger = logging.getLogger(__name__)

OF_A_DESKTOP = {"thumbs.db", "desktop.ini"}
"""Files, in small letters, that Windows writes into the folders that somebody opens."""


def check_config(bundle_root: str) -> None:
    """Refuse a misspelt top-level key, or an unknown strategy, guard or valuation.

    MONAI would ignore the one and be terse on the other.

    Called from ``federate.json``'s ``initialize``; it finds the running config parser among its
    callers. Where there is none, as in a call from Python, nothing is checked.

    Args:
        bundle_root: the bundle; the top-level keys of its ``federate.json`` are the allowed ones.

    Raises:
        ConfigError: naming the key, strategy, guard or valuation, and a known one where one looks
            like it.

    >>> from monai.bundle import ConfigParser
    >>> from monai_fairfl import find_bundle
    >>> class Workflow:  # as MONAI's: its parser is found
    ...     parser = ConfigParser({"roundz": 3})
    ...     def initialize(self):
    ...         check_config(str(find_bundle("prostate_mri_segmentation")))
    >>> Workflow().initialize()
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: unknown key 'roundz' for a federation; did you mean 'rounds'?
    """
    parser = calling_parser()
    if parser is None:
        return
    known = list(json.loads((Path(bundle_root) / "configs" / "federate.json").read_text()))
    with errors_in_one_line():
        config: dict[str, Any] = parser.config  # type: ignore[assignment]
        for key in config:
            if key not in known and not key.startswith("_"):
                raise ConfigError(f"unknown key {key!r} for a federation{did_you_mean(key, known)}")
        # A text is a single name, or an expression.
        strategies = one_or_several(config.get("strategies") or [])
        for strategy in [config.get("strategy"), *strategies]:
            check_targets(strategy)
            if isinstance(strategy, str) and not strategy.startswith(("@", "$", "%")):
                strategy_of(strategy)
        _check_guards(config.get("guards"))
        for valuation in config.get("valuations") or []:
            if isinstance(valuation, Mapping):
                load_by_path(valuation.get("_target_"), "valuation")


def _check_guards(given: object) -> None:
    """Refuse a guard that cannot be found, before MONAI builds it.

    Raises:
        ConfigError: naming the guard and why.
    """
    if given is None:
        return
    if not isinstance(given, list):
        raise ConfigError(
            f"guards must be a list, or null for the default ones, got {given!r}: such as "
            '[{"_target_": "monai_fairfl.guards.NonFinite"}]'
        )
    for guard in given:
        target = guard.get("_target_") if isinstance(guard, Mapping) else guard
        if str(target).startswith(("@", "$", "%")):
            continue
        find(target, guards, guards.Guard)
        if isinstance(guard, Mapping) and target in guards.__all__:
            # MONAI finds classes by their paths only.
            raise ConfigError(
                f"unknown guard {target!r}; did you mean 'monai_fairfl.guards.{target}'?"
            )


def check_targets(component: object) -> None:
    """Refuse a strategy whose target, or the target of one of its parts, cannot be imported.

    Raises:
        ConfigError: naming the target and why.
    """
    if isinstance(component, Mapping):
        if "_target_" in component:
            _check_target(component["_target_"])
        for part in component.values():
            check_targets(part)


def _check_target(target: object) -> None:
    """Refuse a ``_target_`` that cannot be imported."""
    package, _, name = str(target).rpartition(".")
    try:
        load_by_path(target, "strategy")
    except ConfigError as error:
        # A shipped name without its path, or with another one of this package.
        ours = not package or package.partition(".")[0] == "monai_fairfl"
        if not (ours and name in shipped.__all__):
            raise
        raise ConfigError(
            f"unknown strategy {target!r}; did you mean 'monai_fairfl.strategies.{name}'?"
        ) from error


def site_names(
    sites_root: Path,
    chosen: str | Sequence[str] | None,
    sites: Mapping[str, Mapping[str, Any]],
    any_folder: bool = False,
) -> list[str]:
    """The sites that take part, sorted.

    Args:
        sites_root: one folder per site.
        chosen: names of those that take part, or the name of a single one; ``None``: all.
        sites: site -> its additions.
        any_folder: as of :func:`data_folders`.

    Raises:
        ConfigError: when the folder is missing or empty, none is chosen or one twice, or a chosen
            or configured site has no data there.
    """
    elsewhere = [name for name, additions in sites.items() if "dataset_dir" in additions]
    known = sorted({*data_folders(sites_root, any_folder), *elsewhere})
    if not known and not sites_root.is_dir():
        fault = "is a file" if sites_root.exists() else "does not exist"
        raise ConfigError(
            f"sites_root {sites_root} {fault}: give the folder that holds one folder per hospital"
        )
    if not known:
        raise ConfigError(
            f"sites_root {sites_root} holds no site: give it one folder per hospital "
            "(SITE/CaseNN.nii.gz, or another layout of docs/data.md)"
        )
    names = known
    if chosen is not None:
        names = _chosen_names(chosen)
    for name in [*names, *sites]:
        if name not in known:
            raise ConfigError(
                f"site {name!r} has no folder in {sites_root}{did_you_mean(name, known)}"
            )
    return sorted(safe_name(name, "the name of the hospital's folder") for name in names)


def _chosen_names(chosen: str | Sequence[str]) -> list[str]:
    """The names of ``site_names``: at least one, each once."""
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    if not names:
        raise ConfigError("site_names names no site: leave it out for all sites, or name some")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"site_names must hold names in quotes, got {name!r}")
        # It would train and weigh twice.
        if names.count(name) > 1:
            raise ConfigError(f"site_names names {name!r} twice: name each site once")
    return names


def data_folders(sites_root: Path, any_folder: bool = False) -> dict[str, Path]:
    """Where each site's data is: what its ``dataset_dir`` must be.

    An empty folder is a site too, whose data did not arrive: its check reports that, instead of a
    federation without it. So is one that holds no more than what a desktop has left there.

    Args:
        sites_root: one folder per site.
        any_folder: every folder is a site, whatever it holds, since the bundle lists its own files;
            else those whose layout is known.
    """
    if not sites_root.is_dir():
        return {}
    folders = folders_in(sites_root)
    if any_folder:
        return {path.name: path for path in folders}
    found = dict(site_folders(sites_root, must=False))
    if any(path.is_file() for path in found.values()):
        return found  # data lists: a folder beside them is no site
    for path in folders:
        if _is_empty(path):
            found[path.name] = path
    return found


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or only hidden files and those that a desktop writes."""
    for path in folder.iterdir():
        if not path.name.startswith(".") and path.name.lower() not in OF_A_DESKTOP:
            return False
    return True


def check_groups(
    groups: (
        Mapping[str, Sequence[str]] | Callable[[Sequence[str]], Mapping[str, Sequence[str]]] | None
    ),
    sites: Sequence[str],
) -> dict[str, list[str]]:
    """The groups of sites that were asked for.

    Args:
        groups: name -> sites, or a function from all sites to these.
        sites: that take part.

    Raises:
        ConfigError: when a group is no list, or names a site that does not take part, or one that
            is named already.

    >>> check_groups(lambda sites: {"corrupted": sites[:1]}, ["elm", "oak"])
    {'corrupted': ['elm']}
    """
    found = checked_mapping("groups", groups(list(sites)) if callable(groups) else groups)
    group_of: dict[str, str] = {}
    for name, members in found.items():
        if isinstance(members, str) or not isinstance(members, Iterable):
            raise ConfigError(f"groups: {name!r} must be a list of sites, got {members!r}")
        for site in members:
            if site not in sites:
                raise ConfigError(
                    f"group {name!r} names {site!r}, which does not take part; the sites are "
                    f"{list(sites)}"
                )
            if site in group_of:
                # Within a group, it would count twice in the mean.
                raise ConfigError(
                    f"{site!r} is in the groups {group_of[site]!r} and {name!r}; name it once"
                )
            group_of[site] = name
    return {name: list(members) for name, members in found.items()}


def check_measurements(names: Iterable[str], asking: str, in_training: bool = False) -> None:
    """Refuse a measurement that no client knows or that has no range, before every client does.

    Args:
        names: of the measurements.
        asking: who asks for them, such as a strategy's name.
        in_training: whether they are asked for together with a round's training.

    Raises:
        ConfigError: naming the measurement, and a known one that looks like it, or where its range
            belongs, or that it cannot be measured with the training.

    >>> check_measurements(["global_scor"], "evaluate")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: evaluate requires 'global_scor', which no client measures: ...
    """
    known = [*MEASUREMENTS, "train_loss"]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{asking} requires {name!r}, which no client measures: correct the name, or "
                "import the module that adds it to MEASUREMENTS with the strategy, or under "
                f"federate.json's imports{did_you_mean(name, known)}"
            )
        if name not in RANGES:
            raise ConfigError(
                f"{asking} requires {name!r}, which has no range: declare it where it is added to "
                f"MEASUREMENTS, as in RANGES[{name!r}] = Range('Dice', 0, 1), both from "
                "monai_fairfl.messages"
            )
        if in_training and name in MEASUREMENTS and MEASUREMENTS[name].needs == "present":
            raise ConfigError(
                f"{asking} requires {name!r}, which compares the model that a site has just "
                "trained with an average: there is none yet when a round's training is asked for. "
                "Leave it out; FedLWR measures it in an exchange of its own"
            )


def check_strategies(
    strategies: Sequence[Strategy],
    sites: Sequence[str],
    train: ConfigParser,
    per_round: int | None = None,
) -> None:
    """Refuse strategies that these sites cannot train.

    There may be too few or too many sites, a measurement that no client knows, or no evaluator.

    Args:
        strategies: that are to run.
        sites: that take part.
        train: the training configuration.
        per_round: sites drawn for each round; ``None``: all.

    Raises:
        ConfigError: naming the strategy, what it needs and what there is.
    """
    names = [strategy.name for strategy in strategies]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"strategies must be one or more different ones, got {names}")
    for strategy in strategies:
        if len(sites) < strategy.min_clients:
            raise ConfigError(
                f"{strategy.name} needs at least {strategy.min_clients} sites, found {len(sites)} "
                f"{list(sites)}: add sites, or use FedAvg or Standalone"
            )
        in_round = min(len(sites), per_round or len(sites))
        if not strategy.min_clients <= in_round <= strategy.max_clients:
            raise ConfigError(
                f"{strategy.name} takes {strategy.min_clients} to {strategy.max_clients} sites in "
                f"a round, and clients_per_round is now {in_round}: change it"
            )
        check_measurements(sorted(strategy.requires), strategy.name)
        scores = []
        for name in sorted(strategy.requires):
            if name in MEASUREMENTS and MEASUREMENTS[name].data == "validation":
                scores.append(name)
        if scores and "validate#evaluator" not in train:
            raise ConfigError(
                f"{strategy.name} needs {scores}, and train.json has no validate#evaluator to "
                "measure them"
            )


def check_images(strategies: Sequence[Strategy], count: Callable[[str], Mapping[str, int]]) -> None:
    """Refuse a strategy whose measurement needs more images than enough of the sites have.

    A site with fewer measures nothing, and counts as the mean of the others: that is a warning.
    Where too few sites can measure anything, the strategy cannot work.

    Args:
        strategies: that are to run.
        count: ``"validation"`` or ``"training"`` -> site -> different images; called only where a
            strategy needs it.

    Raises:
        ConfigError: naming the strategy, each site with its number of images, and the fix.
    """
    counts: dict[str, Mapping[str, int]] = {}
    for strategy in strategies:
        needed = strategy.images_needed
        if needed is None:
            continue
        if needed.data not in counts:
            counts[needed.data] = count(needed.data)
        images = counts[needed.data]
        few = {site: number for site, number in images.items() if number < needed.least}
        if not few:
            continue
        listed = ", ".join(f"{site} has {number}" for site, number in few.items())
        found = (
            f"{strategy.name} needs at least {needed.least} different {needed.data} images of a "
            f"site, and {listed}"
        )
        if len(images) - len(few) < strategy.min_clients:
            raise ConfigError(f"{found}: add {needed.data} cases, {needed.instead}")
        logger.warning(
            "%s: such a site measures nothing, and counts as the mean of the others", found
        )


def check_trained_alone(
    models: Path,
    folders: Mapping[str, str],
    listed: Callable[[str], Mapping[str, Sequence[CaseFiles]]],
) -> None:
    """Refuse models trained alone that have seen what validates or tests in a run.

    They are compared by the data lists of the run that trained these models, where they are there.

    Args:
        models: the folder of the models.
        folders: site -> its images and labels.
        listed: site -> its cases in the run, by part.

    Raises:
        ConfigError: naming each site, how many of its cases its model has seen, and the fix.
    """
    seen = []
    for name, folder in folders.items():
        file = _datalist_of_run(models.parent, name)
        if file is None:
            continue
        trained = {case["image"] for case in cases_of_list(file, Path(folder), ("training",))}
        parts = listed(name)
        counts = []
        for part, word in (("validation", "validation"), ("testing", "test")):
            images = [case["image"] for case in parts.get(part, ())]
            number = sum(image in trained for image in images)
            if number:
                counts.append(f"{number} of {len(images)} {word} cases")
        if counts:
            seen.append(f"{name}: {' and '.join(counts)}")
    if seen:
        raise ConfigError(
            f"the models of {models} were trained on cases that validate or test "
            f"in this run ({'; '.join(seen)}), so their scores would be too high: train "
            "Standalone with the split of this run, such as its split_seed, or leave "
            "trained_alone out"
        )


def _datalist_of_run(run: Path, site: str) -> Path | None:
    """The data list of a site in a run; a run of several strategies has it in the folder above."""
    for folder in (run, run.parent):
        file = folder / "datalists" / f"{site}.json"
        if file.is_file():
            return file
    return None


def check_sites(
    folders: Mapping[str, str], check: Callable[[str], Any] | None
) -> dict[str, list[str]]:
    """Check every site's data and report all problems of all sites at once.

    What a look at all sites shows, such as an image that two of them have, is a warning.

    Returns:
        Site -> digests of its cases, where its check is :func:`~monai_fairfl.data.check_cases`.

    Raises:
        DataError: naming each site, file and fix.
    """
    problems = []
    inspections = {}
    for name, folder in folders.items():
        try:
            found = None if check is None else check(folder)
        except FairFLError as error:
            problems.append(f"site {name!r}: {error}")
            continue
        if isinstance(found, Summary):
            inspections[name] = found.inspection
    if problems:
        raise DataError("\n".join(problems))

    roots = [folder_of_site(Path(folder)) for folder in folders.values()]
    files = sorted_out(roots, inspections.values())
    if inspections:
        words = count_of_files(files["used"], len(files["refused"]), files["not_images"])
        logger.info("the sites' folders: %s", words)

    # The check of a site has named the copies within it.
    named = set()
    for name, inspection in inspections.items():
        named.update(check_duplicates({name: inspection}))
    for note in [*check_duplicates(inspections), *check_label_values(inspections)]:
        if note not in named:
            warnings.warn(note, DataWarning, stacklevel=2)
    return {name: digests_of_cases(inspection) for name, inspection in inspections.items()}
