# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs may be compared, and which of them are full runs of their bundle.

Runs of the same data, the same split and the same seed are compared. Only what the runs record can
be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from monai_fairfl.report.collect import Run
from monai_fairfl.run.resuming import training_settings

CLOSING = ("test_score", "score")
"""Closing measurements, best first: test cases were never used to choose anything."""


def names_of(runs: Sequence[Run]) -> str:
    """The runs' names, separated by commas."""
    return ", ".join(run.name for run in runs)


def partners_of(runs: Sequence[Run], warnings: list[str]) -> list[list[Run]]:
    """The runs in groups: those of one group may be compared with each other, and with no others.

    A run that records less, such as one of NVIDIA FLARE, joins the first group from which it does
    not differ.

    Args:
        runs: of the report; groups and their members are in this order.
        warnings: gets a line for what could not be checked, and one where there are several groups.
    """
    groups: list[list[Run]] = []
    for run in runs:
        fitting = [g for g in groups if not any(differences(run, member) for member in g)]
        if fitting:
            fitting[0].append(run)
        else:
            groups.append([run])
    for group in groups:
        facts = [_facts(run) for run in group]
        gaps = [fact for fact in facts[0] if not all(of_run[fact] for of_run in facts)]
        if len(group) > 1 and gaps:
            warnings.append(
                f"{names_of(group)} are compared, but whether they have the same "
                f"{' and '.join(gaps)} is not recorded"
            )
    for group in groups[1:]:
        different = {fact for a in group for b in groups[0] for fact in differences(a, b)}
        warnings.append(
            f"{names_of(group)} and {names_of(groups[0])} are not compared with each other: "
            f"another {' and another '.join(sorted(different))}"
        )
    return groups


def differences(one: Run, other: Run) -> list[str]:
    """What two runs do not share: ``"seed"``, ``"data"``, ``"split"``; empty if comparable.

    Only sites that both runs have count. What one of the runs does not record differs from nothing.
    """
    mine, theirs = _facts(one), _facts(other)
    found = []
    for fact in mine:
        known = mine[fact].keys() & theirs[fact].keys()
        if any(mine[fact][name] != theirs[fact][name] for name in known):
            found.append(fact)
    return found


def _facts(run: Run) -> dict[str, Mapping[str, Any]]:
    """What runs must share -> site, or a count of its cases -> value, as far as it is recorded."""
    split: dict[str, Any] = dict(run.split)
    split |= {f"{site}, training": n for site, n in run.last_reported("cases").items()}
    for site in run.sites:
        for measurement in CLOSING:
            score = run.closing(site, measurement)
            if score is not None and score.n is not None:
                split[f"{site}, {measurement}"] = score.n
    seed = {} if run.seed is None else {"": run.seed}
    data = {**(run.config.get("data") or {})}
    data |= {f"{site}, cases": of_site for site, of_site in run.digests.items()}
    return {"seed": seed, "data": data, "split": split}


def different_settings(group: Sequence[Run]) -> list[str]:
    """Names of the settings of the training in which the runs of a group differ.

    The folders of the data are left out: the same data may lie elsewhere.
    """
    recorded = [training_settings(run.config) for run in group if run.config]
    names = sorted(set().union(*recorded))
    return [name for name in names if any(o.get(name) != recorded[0].get(name) for o in recorded)]


def why_not_full(run: Run) -> str | None:
    """Why a training was not the bundle's full one: as many local epochs, in one schedule."""
    full, local_epochs = run.full_run, run.config.get("local_epochs")
    if full is None or local_epochs is None:
        return "no settings.json has its full_run and local_epochs, which say what is judged"
    # A learning rate that falls over the planned rounds follows one schedule only if they never
    # changed.
    planned = list(dict.fromkeys(record["planned_rounds"] for record in run.rounds))
    if len(planned) > 1:
        return f"its planned rounds were {planned}, so its learning rate followed no one schedule"
    rounds = max(planned, default=0)
    if rounds * local_epochs < full.epochs:
        return (
            f"its rounds x local epochs are {rounds} x {local_epochs}, those of a full run "
            f"{full.rounds} x {full.local_epochs}: train one in a new folder, without --quick"
        )
    if run.end is None or len(run.rounds) < rounds:
        return f"it has {len(run.rounds)} of {rounds} rounds"
    return None


def seconds_of_full_run(run: Run) -> float:
    """How long a full run takes at the pace of this shorter one; 0 where that is not known."""
    full, epochs = run.full_run, run.config.get("local_epochs")
    seconds = run.schedule.seconds.values()
    if full is None or not epochs or not seconds or len(run.rounds) * epochs >= full.epochs:
        return 0
    return median(seconds) / epochs * full.epochs
