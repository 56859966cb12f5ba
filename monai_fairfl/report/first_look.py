# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are not judged: what a reader must know first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monai_fairfl.report.judging import Judgement
from monai_fairfl.report.run import Run

NONE_JUDGED = (
    "This was a first look. It calls no hospital better off, worse off or left behind, and marks "
    "no number as the best."
)
SOME_JUDGED = (
    "Some runs are not judged. They call no hospital better off, worse off or left behind, and "
    "none of their numbers is marked as the best."
)

FEW_CASES = 5
"""Below so many cases an interval tells little.

By Student's t it is wider than plus and minus 1.5 standard deviations of the cases: 1.6 of four,
2.5 of three, 9 of two.
"""


@dataclass(frozen=True)
class FirstLook:
    """Runs that are not judged for the same reason.

    Args:
        strategies: the names of the runs.
        why: the reason.
        full_run: ``rounds`` and ``local_epochs`` of the full run; ``None`` where another training
            would not help, or it is not known.
    """

    strategies: list[str]
    why: str
    full_run: dict[str, int] | None


def first_look(runs: Sequence[Run], judgements: Mapping[str, Judgement]) -> list[FirstLook]:
    """The runs that are not judged; those with the same reason together.

    Args:
        runs: of the report.
        judgements: name of a run -> whether it is judged.
    """
    alike: dict[str, list[str]] = {}
    full_runs: dict[str, dict[str, int] | None] = {}
    for run in runs:
        judgement = judgements[run.name]
        why = judgement.why_not
        if why is None:
            continue
        alike.setdefault(why, []).append(run.name)
        full = judgement.full if judgement.retrain else None
        full_runs[why] = None
        if full is not None:
            full_runs[why] = {"rounds": full.rounds, "local_epochs": full.local_epochs}
    return [FirstLook(names, why, full_runs[why]) for why, names in alike.items()]


def first_look_lines(report: Mapping[str, Any]) -> list[str]:
    """What a reader must know first: that nothing is judged, and why.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.

    >>> entry = {"strategies": ["FedCE"], "why": "it has no Dice", "full_run": None}
    >>> strategies = {"FedCE": {"judged": False, "strategy": "FedCE"}}
    >>> first_look_lines({"first_look": [entry], "strategies": strategies})[1]
    'FedCE: it has no Dice.'
    """
    entries = report["first_look"]
    if not entries:
        return []
    some_judged = any(found["judged"] for found in report["strategies"].values())
    lines = [SOME_JUDGED if some_judged else NONE_JUDGED]
    for entry in entries:
        lines.append(f"{', '.join(entry['strategies'])}: {entry['why']}.")
    if any(entry["full_run"] for entry in entries):
        lines.append("For verdicts, train a full run in a new folder, without --quick.")
    methods = {found["strategy"] for found in report["strategies"].values()}
    if "Standalone" not in methods:
        lines.append("A verdict compares with training alone, so run Standalone, too.")
    return lines
