# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hospitals that a comparison over seeds cannot score: why, and what to do.

Without a line about it, such a hospital would be missed by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.report.events import events_of
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import CASES_OF

LOST = ("missing", "not finite", "dropped")
"""Kinds of events after which a closing score is not in the ledger."""

AGAIN = "delete these trainings in cells/, and enter the same command again"


def seed_words(run: Run) -> str:
    """The seed and the fold of a training in words: ``seed 1, fold 0``."""
    if run.fold is None:
        return f"seed {run.seed}"
    return f"seed {run.seed}, fold {run.fold}"


def why_no_score(runs: Sequence[Run], site: str, measurement: str) -> str:
    """Why no case of a hospital has a score, as far as the runs tell.

    Args:
        runs: the trainings that are compared.
        site: name of the hospital.
        measurement: the closing one that it lacks, such as ``"test_score"``.

    Returns:
        Words that go on after a colon, without the last full stop.
    """
    of_site = [run for run in runs if site in run.sites]
    if not of_site:
        return "it took part in no training of the compared strategies"
    if any(run.closing(site, measurement) is not None for run in of_site):
        return f"the ledgers have its mean, but there is no table of its cases: {AGAIN}"
    for run in of_site:
        for event in events_of(run):
            is_lost = event.kind == "missing" or measurement in event.text
            if (event.site, event.round) == (site, "end") and event.kind in LOST and is_lost:
                return (
                    f"its score did not arrive at the end of {run.method} with {seed_words(run)} "
                    f"({event.text}). Remove the cause, {AGAIN}"
                )
    return f"it sent no score of a {CASES_OF[measurement]} case"
