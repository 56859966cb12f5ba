# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Mean Dice on validation cases over seeds and folds, by which the strategy of the rows is chosen.

Some folds and hospitals are harder than others. So the means of all strategies are over the same
seeds, folds and hospitals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TypeAlias

from monai_fairfl.report.repeated_sites import seed_words
from monai_fairfl.report.run import Run

Pair: TypeAlias = tuple[int, int | None]
"""A seed and its fold."""


@dataclass(frozen=True)
class Validation:
    """What the strategies reached on validation cases.

    Args:
        means: strategy -> mean Dice, a fraction in [0, 1]; empty where nothing is common to all.
        left_out: what does not count and why, in a sentence; empty where everything counts.
    """

    means: dict[str, float]
    left_out: str


def validation_over_seeds(
    runs: Sequence[Run], methods: Sequence[str], doubted: Collection[str] = ()
) -> Validation:
    """Mean over the seeds and folds, of each the mean over the hospitals.

    Only seeds and folds count in which every strategy has a validation score, and only hospitals
    with one in all of these trainings. A score is the closing one, or the newest during training
    where no run has a closing one.

    Args:
        runs: the finished trainings.
        methods: the strategies that are compared.
        doubted: hospitals that do not count, unless nobody else is there.
    """
    compared = [run for run in runs if run.method in methods]
    scores = _scores(compared)
    scored = [run for run in compared if scores[run.name]]
    pairs = _common_pairs(scored, methods)
    counted = [run for run in scored if _pair(run) in pairs]
    sites = _common_sites(counted, scores)
    if not sites:
        words = ""
        if scored:
            words = "No hospital has a validation score of all strategies in any seed and fold."
        return Validation({}, words)

    trusted = [site for site in sites if site not in doubted] or sites
    means = {}
    for name in methods:
        of_trainings = []
        for run in counted:
            if run.method == name:
                of_trainings.append(mean(scores[run.name][site] for site in trusted))
        means[name] = mean(of_trainings)

    # Doubted hospitals are named elsewhere.
    left_out = {seed_words(run) for run in compared if _pair(run) not in pairs}
    for run in counted:
        left_out.update(site for site in run.sites if site not in sites and site not in doubted)
    words = ""
    if left_out:
        words = f"These means leave out {'; '.join(sorted(left_out))}: a score is missing."
    return Validation(means, words)


def _pair(run: Run) -> Pair:
    return run.seed, run.fold


def _scores(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Name of a run -> hospital -> its Dice on validation cases."""
    closing: dict[str, dict[str, float]] = {}
    for run in runs:
        of_run = closing.setdefault(run.name, {})
        for site in run.sites:
            number = run.closing(site, "score")
            if number is not None:
                of_run[site] = number.value
    if any(closing.values()):
        return closing

    newest: dict[str, dict[str, float]] = {}
    for run in runs:
        of_run = newest.setdefault(run.name, {})
        for site in run.sites:
            dice = run.dice_before_last_round(site)
            if dice:
                of_run[site] = dice[max(dice)].value
    return newest


def _common_pairs(runs: Sequence[Run], methods: Sequence[str]) -> set[Pair]:
    """The seeds and folds that all strategies have."""
    methods_of: dict[Pair, set[str]] = {}
    for run in runs:
        methods_of.setdefault(_pair(run), set()).add(run.method)
    return {pair for pair, found in methods_of.items() if found == set(methods)}


def _common_sites(runs: Sequence[Run], scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The hospitals that have a score in all runs, sorted."""
    sites: set[str] = set()
    for run in runs:
        sites.update(scores[run.name])
    for run in runs:
        sites.intersection_update(scores[run.name])
    return sorted(sites)
