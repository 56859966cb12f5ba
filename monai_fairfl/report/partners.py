# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs may be compared: those of the same data, the same split and the same seed.

Only what the runs record can be checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import CLOSING
from monai_fairfl.run import resuming
from monai_fairfl.run.training_config import training_settings


@dataclass(frozen=True)
class Yardstick:
    """The Standalone run against which another run is measured.

    Args:
        run: the Standalone run; ``None`` where there is none.
        why_none: the reason for that; ``None`` for Standalone itself, too.
    """

    run: Run | None = None
    why_none: str | None = None


def partners_of(runs: Sequence[Run], warnings: list[str]) -> list[list[Run]]:
    """The runs in groups: those of one group may be compared with each other, and with no others.

    A run that records less, such as one of NVIDIA FLARE, joins the one group from which it does not
    differ. Where there are several such groups it is not known to which it belongs, and it stays by
    itself.

    Args:
        runs: of the report; groups and their members are in this order.
        warnings: gets a line for what could not be checked, and one where there are several groups.
    """
    groups: list[list[Run]] = []
    for run in sorted(runs, key=_amount_recorded, reverse=True):
        fitting = [group for group in groups if _fits(run, group)]
        if len(fitting) == 1:
            fitting[0].append(run)
            continue
        if fitting:
            warnings.append(
                f"{run.name} is compared with no other run: what it records fits the data and "
                f"splits of several"
            )
        groups.append([run])

    for group in groups:
        warnings.extend(_unchecked_of_group(group))
    groups = _in_order(groups, runs)
    if len(groups) > 1:
        names = "; ".join(names_of(group) for group in groups)
        warnings.append(
            f"Only runs of the same data, split and seed are compared with each other: {names}"
        )
    return groups


def yardstick_of(
    run: Run, group: Sequence[Run], runs: Sequence[Run], comparable: Collection[str]
) -> Yardstick:
    """The Standalone run against which ``run`` is measured, or the reason why there is none.

    Args:
        run: in question.
        group: the runs with which it may be compared.
        runs: all runs of the report.
        comparable: names of the runs whose scores can be compared with those of their group.
    """
    if run.is_standalone:
        return Yardstick()
    alone = [other for other in runs if other.is_standalone]
    if not alone:
        return Yardstick(why_none="Standalone was not run")

    alone_in_group = [other for other in alone if other in group]
    if not alone_in_group:
        other = alone[0]
        differing = differences(run, other)
        if not differing:
            why_none = f"it is not recorded whether {other.name} is of its data and split"
        else:
            why_none = f"{other.name} has another {' and another '.join(differing)}"
        return Yardstick(why_none=why_none)

    usable = [other for other in alone_in_group if other.name in comparable]
    if not usable or run.name not in comparable:
        return Yardstick(why_none=f"{alone_in_group[0].name} has no comparable score")
    return Yardstick(usable[0])


def repeats_of(run: Run, runs: Sequence[Run]) -> list[str]:
    """Names of the trainings that differ from ``run`` in seed, fold and split at most.

    The run itself is one of them. A mean over seeds is over these.

    Args:
        run: in question.
        runs: all runs of the report.
    """
    return [other.name for other in runs if other is run or _is_repeat(run, other)]


def names_of(runs: Sequence[Run]) -> str:
    """The runs' names, separated by commas."""
    return ", ".join(run.name for run in runs)


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


def unchecked(one: Run, other: Run) -> list[str]:
    """What cannot be compared, because one of the runs does not record it.

    Of ``"seed"``, ``"data"`` and ``"split"``.
    """
    found = []
    if None in (one.seed, other.seed):
        found.append("seed")
    if not _share_sites(one.config.get("data"), other.config.get("data")):
        found.append("data")
    if not _share_sites(one.split, other.split) and not _same_settings(one, other):
        found.append("split")
    return found


def _fits(run: Run, group: Sequence[Run]) -> bool:
    return not any(differences(run, member) for member in group)


def _amount_recorded(run: Run) -> int:
    """How much of data and split the run records."""
    return bool(run.config.get("data")) + bool(run.split)


def _unchecked_of_group(group: Sequence[Run]) -> list[str]:
    """A line that names what could not be compared within a group, if anything."""
    gaps: list[str] = []
    for run in group[1:]:
        for gap in unchecked(run, group[0]):
            if gap not in gaps:
                gaps.append(gap)
    if not gaps:
        return []
    return [
        f"{names_of(group)} are compared, but whether they have the same {' and '.join(gaps)} is "
        f"not recorded"
    ]


def _in_order(groups: Sequence[list[Run]], runs: Sequence[Run]) -> list[list[Run]]:
    """The groups by their first member, and their members, in the order of ``runs``."""
    position = {run.name: number for number, run in enumerate(runs)}
    ordered = [sorted(group, key=lambda run: position[run.name]) for group in groups]
    return sorted(ordered, key=lambda group: position[group[0].name])


def _case_counts(run: Run) -> dict[str, int]:
    """Counts of cases that the ledger holds, by site and kind.

    These are each site's training cases, and the cases behind its closing scores.
    """
    counts = {}
    for record in run.rounds:
        for site, count in record["cases"].items():
            if count:
                counts[f"{site}, training"] = count
    for site in run.sites:
        for measurement in CLOSING:
            score = run.closing(site, measurement)
            if score is not None and score.n is not None:
                counts[f"{site}, {measurement}"] = score.n
    return counts


def _is_repeat(one: Run, other: Run) -> bool:
    """Whether two runs train the same method in the same way, as far as they record it."""
    for fact in ("method", "finished", "last_round", "sites"):
        if getattr(one, fact) != getattr(other, fact):
            return False
    if "data" in differences(one, other):
        return False
    if not (one.config and other.config):
        return True
    return _training(one) == _training(other)


def _training(run: Run) -> dict[str, Any]:
    """What decides how the sites of a run train, without their data and the fold."""
    settings = training_settings(run.config)
    del settings["data"]
    for name in ("split_fold", "split_seed"):
        settings["overrides"].pop(name, None)
    return settings


def _share_sites(one: Any, other: Any) -> bool:
    """Whether both are mappings by site that have a site in common."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    return not one.keys().isdisjoint(other)


def _differ(one: Any, other: Any) -> bool:
    """Whether two mappings by site hold different values for a site that both have."""
    if not _share_sites(one, other):
        return False
    return any(one[site] != other[site] for site in one.keys() & other.keys())


def _same_settings(one: Run, other: Run) -> bool:
    """Whether everything that decides the training and the scores is the same.

    A split that is not recorded follows from it.
    """
    if not (one.config.get("files") and other.config.get("files")):
        return False
    settings = training_settings(one.config)
    other_settings = training_settings(other.config)
    for section in ("plain", "files", "scoring", "overrides"):
        if settings[section] != other_settings[section]:
            return False
    return not _differ(settings["sites"], other_settings["sites"])
