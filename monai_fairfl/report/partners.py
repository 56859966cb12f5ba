# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs may be compared: those of the same data, the same split and the same seed, as far as
that is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.report.collect import Run
from monai_fairfl.run_folder.records import training_settings

CLOSING = ("score", "test_score")


def differences(one: Run, other: Run) -> list[str]:
    """What the two runs have of their own: ``"seed"``, ``"data"``, ``"split"``; empty where they
    may be compared.

    Of the sites, those count that both runs have. What one of the runs does not record differs from
    nothing.
    """
    found = []
    if None not in (one.seed, other.seed) and one.seed != other.seed:
        found.append("seed")
    if _differ(one.config.get("data"), other.config.get("data")):
        found.append("data")
    if _differ(one.split, other.split) or _differ(_cases(one), _cases(other)):
        found.append("split")
    return found


def unchecked(one: Run, other: Run) -> list[str]:
    """What of ``"seed"``, ``"data"`` and ``"split"`` cannot be compared, because one of the runs
    does not record it.
    """
    found = []
    if None in (one.seed, other.seed):
        found.append("seed")
    if not _comparable(one.config.get("data"), other.config.get("data")):
        found.append("data")
    if not _comparable(one.split, other.split) and not _same_settings(one, other):
        found.append("split")
    return found


def group_of_each(runs: Sequence[Run], warnings: list[str]) -> dict[str, int]:
    """name -> number of its group; runs of one group may be compared with each other, and with no
    others.

    A run that records less, such as one of NVIDIA FLARE, joins the one group from which it does not
    differ. Where there are several such groups it is not known to which it belongs, and it stays by
    itself.

    Args:
        runs: of the report.
        warnings: gets a line for what could not be checked.
    """
    groups: list[list[Run]] = []
    for run in sorted(runs, key=_recorded, reverse=True):
        fitting = [group for group in groups if _fits(run, group)]
        if len(fitting) == 1:
            fitting[0].append(run)
            continue
        if fitting:
            warnings.append(
                f"{run.name} is compared with no other run: what it records fits the data and splits of several"
            )
        groups.append([run])
    numbers = {}
    for number, group in enumerate(groups):
        warnings.extend(_not_recorded(group))
        for run in group:
            numbers[run.name] = number
    return {run.name: numbers[run.name] for run in runs}


def _fits(run: Run, group: Sequence[Run]) -> bool:
    return not any(differences(run, member) for member in group)


def _not_recorded(group: Sequence[Run]) -> list[str]:
    """A line that names what of the runs' data, split and seed could not be compared, if anything."""
    gaps: dict[str, None] = {}  # in their order
    for run in group[1:]:
        gaps.update(dict.fromkeys(unchecked(run, group[0])))
    if not gaps:
        return []
    names = ", ".join(run.name for run in group)
    return [
        f"{names} are compared, but whether they have the same {' and '.join(gaps)} is not recorded"
    ]


def _recorded(run: Run) -> int:
    """How much of data and split the run records."""
    return bool(run.config.get("data")) + bool(run.split)


def _cases(run: Run) -> dict[str, int]:
    """Counts that the ledger holds: each site's training cases, and the cases behind its closing
    scores.
    """
    found = {}
    for record in run.rounds:
        for site, count in (record.get("cases") or {}).items():
            if count:
                found[f"{site}, training"] = count
    for site, measurement, count in _scored(run):
        found[f"{site}, {measurement}"] = count
    return found


def _scored(run: Run) -> Iterator[tuple[str, str, int]]:
    for site in run.sites:
        for measurement in CLOSING:
            score = run.final(site, measurement)
            if score is not None and score.n is not None:
                yield site, measurement, score.n


def _comparable(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Mapping) and isinstance(other, Mapping) and not one.keys().isdisjoint(other)
    )


def _differ(one: Any, other: Any) -> bool:
    """Whether two mappings by site hold different values for a site that both have."""
    return _comparable(one, other) and any(
        one[key] != other[key] for key in one.keys() & other.keys()
    )


def _same_settings(one: Run, other: Run) -> bool:
    """Whether everything that decides the training is the same; a split that is not recorded
    follows from it.
    """
    if not (one.config.get("files") and other.config.get("files")):
        return False
    settings, others = training_settings(one.config), training_settings(other.config)
    shared = {key: settings[key] for key in ("plain", "files", "overrides")}
    return all(others[key] == value for key, value in shared.items()) and not _differ(
        settings["sites"], others["sites"]
    )
