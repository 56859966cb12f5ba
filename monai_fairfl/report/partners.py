# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs may be compared, and which of them have learnt enough to be judged.

Runs of the same data, the same split and the same seed are compared. Only what the runs record can
be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.collect import Run
from monai_fairfl.run import resuming
from monai_fairfl.run.resuming import FullRun, training_settings
from monai_fairfl.utils.words import count_words

CLOSING = ("test_score", "score")
"""Closing measurements, best first: test cases were never used to choose anything."""


def names_of(runs: Sequence[Run]) -> str:
    """The runs' names, separated by commas."""
    return ", ".join(run.name for run in runs)


def partners_of(runs: Sequence[Run], warnings: list[str]) -> list[list[Run]]:
    """The runs in groups: those of one group may be compared with each other, and with no others.

    A run that records less, such as one of NVIDIA FLARE, joins the one group from which it does not
    differ. Where there are several such groups it is not known to which it belongs, and it stays by
    itself.

    Args:
        runs: of the report; groups and their members are in this order.
        warnings: gets a line for what could not be checked, and one where there are several groups.
    """

    def recorded(run: Run) -> int:
        return bool(run.config.get("data")) + bool(run.split)

    groups: list[list[Run]] = []
    for run in sorted(runs, key=recorded, reverse=True):
        fitting = [g for g in groups if not any(differences(run, member) for member in g)]
        if len(fitting) == 1:
            fitting[0].append(run)
            continue
        if fitting:
            warnings.append(
                f"{run.name} is compared with no other run: what it records fits the data and "
                "splits of several"
            )
        groups.append([run])

    for group in groups:
        gaps = [gap for run in group[1:] for gap in _unchecked(run, group[0])]
        if gaps:
            warnings.append(
                f"{names_of(group)} are compared, but whether they have the same "
                f"{' and '.join(dict.fromkeys(gaps))} is not recorded"
            )
        group.sort(key=runs.index)
    groups.sort(key=lambda group: runs.index(group[0]))
    if len(groups) > 1:
        names = "; ".join(names_of(group) for group in groups)
        warnings.append(
            f"Only runs of the same data, split and seed are compared with each other: {names}"
        )
    return groups


def differences(one: Run, other: Run) -> list[str]:
    """What two runs do not share: ``"seed"``, ``"data"``, ``"split"``; empty if comparable.

    Only sites that both runs have count. What one of the runs does not record differs from nothing.
    """
    found = []
    if None not in (one.seed, other.seed) and one.seed != other.seed:
        found.append("seed")
    if _differ(one.config.get("data"), other.config.get("data")) or resuming.differ(
        one.digests, other.digests
    ):
        found.append("data")
    if _differ(one.split, other.split) or _differ(_case_counts(one), _case_counts(other)):
        found.append("split")
    return found


def _unchecked(one: Run, other: Run) -> list[str]:
    """What cannot be compared, because one of the runs does not record it."""
    found = []
    if None in (one.seed, other.seed):
        found.append("seed")
    if not _shared(one.config.get("data"), other.config.get("data")):
        found.append("data")
    if not _shared(one.split, other.split) and not _same_settings(one, other):
        found.append("split")
    return found


def _shared(one: Any, other: Any) -> set[str]:
    """The keys that two mappings by site have in common."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return set()
    return one.keys() & other.keys()


def _differ(one: Any, other: Any) -> bool:
    """Whether two mappings by site hold different values for a site that both have."""
    return any(one[site] != other[site] for site in _shared(one, other))


def _case_counts(run: Run) -> dict[str, int]:
    """Counts of each site's training cases, and of the cases behind its closing scores."""
    counts = {f"{site}, training": n for site, n in run.last_reported("cases").items()}
    for site in run.sites:
        for measurement in CLOSING:
            score = run.closing(site, measurement)
            if score is not None and score.n is not None:
                counts[f"{site}, {measurement}"] = score.n
    return counts


def _same_settings(one: Run, other: Run) -> bool:
    """Whether all that decides training and scores is the same; an unrecorded split follows."""
    if not (one.config.get("files") and other.config.get("files")):
        return False
    mine, theirs = training_settings(one.config), training_settings(other.config)
    sections = ("plain", "files", "scoring", "overrides")
    same = all(mine[section] == theirs[section] for section in sections)
    return same and not _differ(mine["sites"], theirs["sites"])


def settings_warnings(group: Sequence[Run], subject: str) -> list[str]:
    """A line that names the settings of the training in which the runs of a group differ.

    The folders of the data are left out: the same data may lie elsewhere.
    """
    recorded = []
    for run in group:
        if not run.config:
            continue
        sections = training_settings(run.config)
        settings: dict[str, Any] = {}
        for section in ("plain", "overrides", "files", "scoring"):
            settings |= sections[section]
        for site, overrides in sections["sites"].items():
            settings |= {f"{name} of {site}": value for name, value in overrides.items()}
        recorded.append(settings)
    different = set()
    for settings in recorded:
        for name, value in settings.items():
            if any(value != other.get(name) for other in recorded):
                different.add(name)
    if not different:
        return []
    names = ", ".join(sorted(different))
    return [f"{subject} were trained with different settings ({names}): compare them with care"]


WhyNot = tuple[str, FullRun | None]
"""Why a run is not judged, and the full run of its bundle where training that would help."""


def why_not_judged(run: Run, alone: Run | None, mean_dice: float | None) -> WhyNot | None:
    """Why no verdict may be given; ``None`` for a full run of its bundle that has learnt enough.

    Args:
        run: in question.
        alone: the run of training alone with which it is compared; ``None`` without one.
        mean_dice: mean over the sites of its Dice; ``None`` where it has none.
    """
    found = _why_not_full(run)
    if found is not None:
        return found
    if alone is not None and _why_not_full(alone) is not None:
        return f"{alone.name}, with which it is compared, is not a full run", None
    full = FullRun.read(run.config["full_run"])
    if mean_dice is None:
        return "it has no Dice", None
    if full is not None and mean_dice < full.mean_dice:
        words = f"its mean Dice is {mean_dice:.3f}, and nothing is judged below {full.mean_dice:g}"
        return words, None
    return None


def _why_not_full(run: Run) -> WhyNot | None:
    """Why the training was not the bundle's full one: as many local epochs, in one schedule."""
    if not run.config:
        return "the run has no settings.json with full_run, so a full run is not known", None
    try:
        full = FullRun.read(run.config.get("full_run"))
    except ConfigError as error:
        return f"its settings.json is wrong: {error}", None
    if full is None:
        return "its configuration has no full_run, which says which training is judged", None
    local_epochs = run.config.get("local_epochs")
    if not isinstance(local_epochs, int) or local_epochs < 1:
        return "its settings.json does not record local_epochs", None

    # A learning rate that falls over the planned rounds follows one schedule only if they never
    # changed.
    planned = run.schedule.planned
    if not planned or planned[0] is None:
        return "its planned number of rounds is not recorded", full
    if len(planned) > 1:
        later = " and then ".join(str(rounds) for rounds in planned[1:])
        why = f"it was begun with {planned[0]} rounds and resumed with {later}"
        return f"{why}: its learning rate followed two schedules", full
    epochs = planned[0] * local_epochs
    if epochs < full.epochs:
        why = (
            f"{count_words(planned[0], 'round')} of {count_words(local_epochs, 'local epoch')}, "
            f"{count_words(epochs, 'epoch')} in all; a full run of the bundle has {full.epochs} "
            f"({count_words(full.rounds, 'round')} of {full.local_epochs})"
        )
        return why, full
    if run.end is None:
        return f"it is unfinished after {len(run.rounds)} of {planned[0]} rounds", None
    if len(run.rounds) * local_epochs < full.epochs:
        return f"it ended after {len(run.rounds)} of {planned[0]} rounds", None
    return None
