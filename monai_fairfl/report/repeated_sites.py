# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hospitals that a comparison over seeds cannot score: why, and what to do.

Without a line about it, such a hospital would be missed by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.protocol.values import IN_TRAINING, IN_VALIDATION
from monai_fairfl.report.events import events_of
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import BOUNDARY, CASES_OF, TESTED
from monai_fairfl.utils.words import count_words

LOST = ("missing", "not finite", "dropped")
"""Kinds of events after which a closing score is not in the ledger."""


def training_words(run: Run) -> str:
    """A training of a comparison in words: ``FedCE with seed 1, fold 0``."""
    return f"{run.method} with {seed_words(run.seed, run.fold)}"


def seed_words(seed: int, fold: int | None) -> str:
    """A seed and its fold in words.

    >>> seed_words(1, None), seed_words(1, 0)
    ('seed 1', 'seed 1, fold 0')
    """
    if fold is None:
        return f"seed {seed}"
    return f"seed {seed}, fold {fold}"


def why_no_score(runs: Sequence[Run], site: str, measurement: str) -> str:
    """Why no case of a hospital has a score, as far as the runs tell, and what to do.

    Args:
        runs: the trainings that are compared.
        site: name of the hospital.
        measurement: the closing one that it lacks, such as ``"test_score"``.

    Returns:
        Words that go on after a colon, without the last full stop.
    """
    of_site = [run for run in runs if site in run.sites]
    if not of_site:
        return (
            "it took part in no training of the compared strategies. Look into log.txt of a "
            "training, then compare again in a new folder"
        )
    if any(run.closing(site, measurement) is not None for run in of_site):
        return (
            "the ledgers have its mean, but there is no table of its cases. To score it, delete "
            "the trainings in cells/ and enter the same command again"
        )
    if measurement == TESTED:
        why = _why_not_tested(of_site, site)
        if why is not None:
            return why

    for run in of_site:
        for event in events_of(run):
            is_lost = event.kind == "missing" or measurement in event.text
            if (event.site, event.round) == (site, "end") and event.kind in LOST and is_lost:
                return (
                    f"its score did not arrive at the end of {training_words(run)} "
                    f"({event.text}). Remove the cause, delete the trainings without its score in "
                    "cells/, and enter the same command again"
                )
    cases = CASES_OF[measurement]
    return (
        f"it sent no score of a {cases} case, and the ledgers do not say why. Check that it has "
        f"{cases} cases, and that their labels are not empty"
    )


def _why_not_tested(runs: Sequence[Run], site: str) -> str | None:
    """Why a hospital that answered has no score of a test case; ``None`` where it is not known."""
    for run in runs:
        validation = run.closing(site, IN_VALIDATION)
        training = run.closing(site, IN_TRAINING)
        if validation is None or training is None:
            continue
        if validation.value == validation.n and training.value == 0:
            return (
                "its evaluator scores its validation cases. Let the bundle's evaluate.json read "
                "its test cases"
            )
        return (
            f"of its {count_words(validation.n or 0, 'test case')}, it also uses "
            f"{training.value:g} in training and {validation.value:g} in validation. Give it test "
            "cases that serve for nothing else"
        )
    for run in runs:
        boundary = run.closing(site, BOUNDARY)
        if boundary is not None:
            return (
                "all its test labels are empty, and an empty label has no Dice. Correct its "
                "labels, or give it other test cases"
            )
    return None
