# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Everything that can be found wrong before hours of training are spent."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl import guards as guards_room
from monai_fairfl import strategies as strategies_room
from monai_fairfl import valuation as valuation_room
from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.configuration import calling_parser, errors_in_one_line
from monai_fairfl.bundle.initial import warn_of_other_training
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.shipped import is_shipped
from monai_fairfl.bundle.site import images_of_site
from monai_fairfl.data.checks import (
    Summary,
    check_cases,
    check_duplicates,
    check_label_values,
    digests_of_cases,
    sorted_out,
)
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.image_files import count_of_files
from monai_fairfl.data.layouts import folder_of_site
from monai_fairfl.errors import (
    ConfigError,
    DataError,
    DataWarning,
    FairFLError,
    did_you_mean,
    in_words,
)
from monai_fairfl.messages import CANDIDATES, MEASUREMENTS
from monai_fairfl.run import resuming
from monai_fairfl.run.ledger import count_rounds, digest_of
from monai_fairfl.run.recorded_updates import check_recorded
from monai_fairfl.run.records import names_of_guards
from monai_fairfl.run.resuming import FullRun, require_same_cases
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.utils.named_classes import load_by_path
from monai_fairfl.utils.terminal import quiet
from monai_fairfl.valuation import Retraining, RunValuation
from monai_fairfl.valuation.run import check_valuations

logger = logging.getLogger(__name__)


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
    settings, names = runs.settings, list(runs.sites)

    # The settings and the bundle's files. A site's folder is a key that its configuration must
    # have, as any other.
    FullRun.read(settings.full_run)
    runs.jobs.require_devices()
    train = configuration.train_config(runs.bundle_root, settings.overrides, settings.config)
    for additions in settings.sites.values():
        of_site = settings.for_site(additions)
        configuration.train_config(runs.bundle_root, of_site.overrides, of_site.config)
    check_strategies(strategies, names, train, settings.clients_per_round)
    check_measurements(settings.evaluate, "evaluate", in_training=True)
    check_measurements(settings.final, "final")
    if settings.adapt_fuse:
        _check_fusing(runs, strategies)

    # What the folder of the runs holds, and the model that they begin with.
    needs_updates = any(valuation.needs_updates for valuation in valuations)
    _check_run_dir(runs, strategies, settings.record_updates or needs_updates)
    for strategy in strategies:
        # A federation refuses, where it is made, what its strategy cannot do with the settings.
        runs.federation(strategy, runs.folder_of(strategy.name), names)
    if valuations:
        check_valuations(valuations, runs.bundle_root, names, settings.keywords())
    for valuation in valuations:
        # Its strategy could train all sites, too.
        if isinstance(valuation, Retraining) and valuation.strategy is not None:
            try:
                check_strategies([valuation.strategy], names, train, settings.clients_per_round)
            except ConfigError as error:
                raise ConfigError(
                    f"valuation {valuation.name} trains coalitions: {error}"
                ) from error
    if settings.initial is not None:
        warn_of_other_training(settings.initial, runs.recipe)

    # Each site's images can be read, are those of the runs that go on, and are enough.
    digests = _check_data(runs)
    if runs.used():
        require_same_cases(runs.run_dir / "datalists", digests)
    for name in names:
        file = runs.datalist_of(name)
        if file.exists() and runs.listed(name).get("training") == []:
            # Its site would answer with an error in every round, and the others would go on.
            raise DataError(
                f"{file} lists no training case, so {name} could train nothing: add cases, or "
                "leave the site out (site_names)"
            )
    if settings.adapt_epochs and runs.trained_alone is not None:
        _check_trained_alone(runs, runs.trained_alone)
    new = [each for each in strategies if not resuming.begun(runs.folder_of(each.name))]
    _check_images(runs, new)
    return digests


def _check_fusing(runs: BundleRuns, strategies: Sequence[Strategy]) -> None:
    """There are models to fuse, and the bundle's inference can run a fused one."""
    others = [strategy for strategy in strategies if not isinstance(strategy, Standalone)]
    if others and runs.trained_alone is None:
        raise ConfigError(
            "adapt_fuse fuses a site's model with the one that it trained alone, and there is none:"
            " add Standalone to the strategies, or name the folder of such models as trained_alone"
        )
    file = runs.bundle_root / configuration.INFERENCE
    if file.is_file() and "network_of" not in file.read_text():
        raise ConfigError(
            f"{file} could not run a fused model, so adapt_fuse is of no use: let its network be "
            '{"_target_": "monai_fairfl.workflow.network_of", "network_def": "@network_def", '
            '"ckpt_path": "@ckpt_path", "device": "@device"}'
        )


def _check_run_dir(runs: BundleRuns, strategies: Sequence[Strategy], needs_updates: bool) -> None:
    """``run_dir`` is new, or what it holds goes on with the same settings.

    The strategies must be able to train the first model, too.

    Args:
        runs: of the federation.
        strategies: that are to run.
        needs_updates: whether every round's updates must be recorded.
    """
    settings = runs.settings
    resuming.check_folder(runs.run_dir, runs.strategies, settings.resume)
    resuming.check_checkpoints([runs.folder_of(name) for name in runs.strategies])
    weights, spec = runs.first_model()
    for strategy in strategies:
        folder = runs.folder_of(strategy.name)
        if needs_updates and resuming.begun(folder):
            check_recorded(folder)
        if settings.adapt_epochs and not isinstance(strategy, Standalone):
            _require_last_mile_to_come(folder, settings.rounds)
        strategy.check_model(spec, settings.buffers)

    used = runs.used()
    if used:
        resuming.check_training(runs.run_dir, runs.config(), list(runs.sites))
        guards = names_of_guards(runs.guards)
        opening = {**settings.compared(), "guards": guards, "model": digest_of(weights)}
        resuming.check_openings(used, opening)


def _require_last_mile_to_come(folder: Path, rounds: int) -> None:
    """Refuse a last mile of a run that has ended without one: it would not take place."""
    if not resuming.ended(folder):
        return
    records = resuming.records_of(folder)
    had_one = any(set(CANDIDATES) & set(models) for models in records[-1]["scores"].values())
    if count_rounds(records) >= rounds and not had_one:
        raise ConfigError(
            f"{folder} has ended without a last mile, and adapt_epochs (--adapt) adds none to it: "
            f"choose another run_dir {resuming.FOR_TRAIN}"
        )


def _check_data(runs: BundleRuns) -> dict[str, list[str]]:
    """Run the bundle's check on each site's folder, with what its overrides set of the files.

    Returns:
        Site -> digests of its cases, as :func:`check_sites`.

    Raises:
        DataError: naming the problems, and how to switch the check off in a bundle of one's own.
    """
    check = runs.settings.check
    if check is None:
        return {}

    def of_site(name: str, folder: Path) -> Any:
        overrides = runs.settings_of(name).overrides
        return check(str(folder), **configuration.settings_of_files(overrides))

    try:
        return check_sites(runs.sites, of_site)
    except DataError as error:
        is_of_shipped = getattr(check, "func", check) is check_cases
        if is_shipped(runs.bundle_root) or not is_of_shipped:
            raise
        file = runs.bundle_root / configuration.FEDERATE
        raise DataError(
            f"{error}\nIf the bundle is for another organ, set check to null in {file}"
        ) from None


def _check_trained_alone(runs: BundleRuns, models: Path) -> None:
    """Refuse models trained alone that have seen what validates or tests in a run.

    They are compared by the data lists of the run that trained these models, where they are there.
    A run of several strategies has them in the folder above.
    """
    seen = []
    for name in runs.sites:
        places = [folder / "datalists" / f"{name}.json" for folder in models.parents[:2]]
        lists = [file for file in places if file.is_file()]
        if not lists:
            continue
        cases = cases_of_list(lists[0], runs.sites[name], ("training",))
        trained = {case["image"] for case in cases}
        parts = runs.listed(name)
        for part, word in (("validation", "validation"), ("testing", "test")):
            images = [case["image"] for case in parts.get(part, ())]
            number = sum(image in trained for image in images)
            if number:
                seen.append(f"{name}: {number} of {len(images)} {word} cases")
    if seen:
        raise ConfigError(
            f"the models of {models} were trained on cases that validate or test "
            f"in this run ({'; '.join(seen)}), so their scores would be too high: train "
            "Standalone with the split of this run, such as its split_seed, or leave "
            "trained_alone out"
        )


def _check_images(runs: BundleRuns, strategies: Sequence[Strategy]) -> None:
    """Refuse a strategy whose measurement needs more images than enough of the sites have.

    A site with fewer measures nothing, and counts as the mean of the others: that is a warning.
    Where too few sites can measure anything, the strategy cannot work.
    """
    counts: dict[str, dict[str, int]] = {}
    for strategy in strategies:
        needed = strategy.images_needed
        if needed is None:
            continue
        if needed.data not in counts:
            counts[needed.data] = _count_images(runs, needed.data)
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


def _count_images(runs: BundleRuns, data: str) -> dict[str, int]:
    """Site -> different images of its ``"validation"`` or ``"training"`` that pass the network.

    They are counted as a run of these settings would. Nothing is written beside the run: a data
    list that does not exist yet is made elsewhere, from the same seed.
    """
    counts = {}
    with TemporaryDirectory() as folder, quiet():
        for name in runs.sites:
            datalist = runs.run_datalist(name)
            if not datalist.exists():
                datalist = Path(folder) / f"{name}.json"
            try:
                device = runs.jobs.devices[0]
                client = runs.client_maker(name, Path(folder), device, datalist)()
                counts[name] = images_of_site(client, name, data)
            except Exception as error:  # whatever a site's bundle raises
                raise ConfigError(
                    f"site {name!r}: its {data} images cannot be read: {in_words(error)}"
                ) from error
    return counts


# ---- what needs no federation


def check_config(bundle_root: str) -> None:
    """Refuse a misspelt top-level key, or an unknown class of a strategy, guard or valuation.

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
    known = list(configuration.read_keys(Path(bundle_root) / configuration.FEDERATE))
    with errors_in_one_line():
        config: dict[str, Any] = parser.config  # type: ignore[assignment]
        for key in config:
            if key not in known and not key.startswith("_"):
                raise ConfigError(f"unknown key {key!r} for a federation{did_you_mean(key, known)}")
        guards_given = config.get("guards")
        if guards_given is not None and not isinstance(guards_given, list):
            raise ConfigError(
                "guards must be a list, or null for the default ones, such as "
                f"['NonFinite', 'TooLong'], got {guards_given!r}"
            )
        check_targets([config.get("strategy"), config.get("strategies")], strategies_room)
        check_targets(guards_given, guards_room)
        check_targets(config.get("valuations"), valuation_room)


def check_targets(component: object, package: Any) -> None:
    """Refuse a component with a ``_target_``, its own or of a part, that cannot be imported.

    Args:
        component: of a configuration, or a list of such.
        package: whose classes may be meant by a name without its path, or with a misspelt one.

    Raises:
        ConfigError: naming the target, and the one that looks most like it or why.
    """
    if isinstance(component, (list, tuple)):
        for one in component:
            check_targets(one, package)
    if not isinstance(component, Mapping):
        return
    target = component.get("_target_")
    if target is not None and not str(target).startswith(("@", "$", "%")):
        try:
            load_by_path(target, "class")
        except ConfigError as error:
            path, _, name = str(target).rpartition(".")
            # Another package's path is as its author gave it.
            if path and path.partition(".")[0] != "monai_fairfl":
                raise
            known = [f"{package.__name__}.{each}" for each in package.__all__]
            meant = did_you_mean(f"{package.__name__}.{name}", known)
            raise ConfigError(f"unknown class {target!r}{meant}") from error
    check_targets(list(component.values()), package)


def check_measurements(names: Iterable[str], asking: str, in_training: bool = False) -> None:
    """Refuse a measurement that no client knows, before every client does.

    Args:
        names: of the measurements.
        asking: who asks for them, such as a strategy's name.
        in_training: whether they are asked for together with a round's training.

    Raises:
        ConfigError: naming the measurement and a known one that looks like it, or that it cannot be
            measured with the training.

    >>> check_measurements(["global_scor"], "evaluate")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: evaluate requires 'global_scor', which no client measures: ...
    """
    known = [name for name, entry in MEASUREMENTS.items() if entry.function]
    known.append("train_loss")
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{asking} requires {name!r}, which no client measures: correct the name, or "
                "import the module that adds it to MEASUREMENTS with the strategy, or under "
                f"federate.json's imports{did_you_mean(name, known)}"
            )
        if in_training and MEASUREMENTS[name].needs == "present":
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
            if MEASUREMENTS[name].data == "validation":
                scores.append(name)
        if scores and "validate#evaluator" not in train:
            raise ConfigError(
                f"{strategy.name} needs {scores}, and train.json has no validate#evaluator to "
                "measure them"
            )


def check_sites(
    sites: Mapping[str, Path], check: Callable[[str, Path], Any]
) -> dict[str, list[str]]:
    """Check every site's data and report all problems of all sites at once.

    What a look at all sites shows, such as an image that two of them have, is a warning.

    Args:
        sites: name -> folder.
        check: is called with both.

    Returns:
        Site -> digests of its cases, where its check is :func:`~monai_fairfl.data.check_cases`.

    Raises:
        DataError: naming each site, file and fix.
    """
    problems = []
    inspections = {}
    for name, folder in sites.items():
        try:
            found = check(name, folder)
        except FairFLError as error:
            problems.append(f"site {name!r}: {error}")
            continue
        if isinstance(found, Summary):
            inspections[name] = found.inspection
    if problems:
        raise DataError("\n".join(problems))

    roots = [folder_of_site(folder) for folder in sites.values()]
    files = sorted_out(roots, inspections.values())
    if inspections:
        logger.info("the sites' folders: %s", count_of_files(files))

    # The check of a site has named the copies within it.
    named = set()
    for name, inspection in inspections.items():
        named.update(check_duplicates({name: inspection}))
    for note in [*check_duplicates(inspections), *check_label_values(inspections)]:
        if note not in named:
            warnings.warn(note, DataWarning, stacklevel=2)
    return {name: digests_of_cases(inspection) for name, inspection in inspections.items()}
