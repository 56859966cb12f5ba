# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which scores the tables show, and which of them can be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from monai_fairfl.report.numbers import Number
from monai_fairfl.report.run import Run

TESTED = "test_score"
"""The closing measurement of the Dice of test cases."""

BOUNDARY = "test_hd95"
"""The closing measurement of the surface distance, where a run has it."""

CLOSING = (TESTED, "score")
"""Closing measurements, best first: test cases were never used to choose anything."""

DURING_TRAINING = "global_score"
"""What the tables show of a run without closing measurements."""

CASES_OF = {"test_score": "test", "score": "validation", "global_score": "validation"}
"""Measurement -> the cases that it is made on."""

ROUNDING = 1e-6
"""How far a fraction may lie outside [0, 1]."""


def empty_labels(scored: int | None, measured: int | None) -> int:
    """How many labels are empty: they have a surface distance, and no Dice.

    Args:
        scored: number of cases behind the Dice.
        measured: number of cases behind the surface distance.

    >>> empty_labels(2, 8), empty_labels(8, None)
    (6, 0)
    """
    return max(0, (measured or 0) - (scored or 0))


@dataclass(frozen=True)
class Scores:
    """The scores of one run, as the tables show them.

    Args:
        measurement: a key of :data:`CASES_OF`.
        after_rounds: rounds of training of the models that were scored.
        by_site: site -> Dice, a fraction in [0, 1]; sites without one are absent.
    """

    measurement: str
    after_rounds: int
    by_site: Mapping[str, Number]

    @property
    def values(self) -> dict[str, float]:
        """site -> Dice without its uncertainty."""
        return {site: number.value for site, number in self.by_site.items()}

    @property
    def mean(self) -> float | None:
        """Mean Dice over the sites; ``None`` without any."""
        values = list(self.values.values())
        return sum(values) / len(values) if values else None


def shown_measurement(runs: Sequence[Run]) -> str:
    """The measurement that the tables show: the best that all finished runs have.

    A measurement of all sites goes before one of some sites.
    """
    finished = [run for run in runs if run.finished]
    if not finished:
        return DURING_TRAINING

    of_some_sites = []
    of_all_sites = []
    for name in CLOSING:
        if all(_sites_with(run, name) for run in finished):
            of_some_sites.append(name)
            if all(_sites_with(run, name) == _sites_with(run, *CLOSING) for run in finished):
                of_all_sites.append(name)

    candidates = [*of_all_sites, *of_some_sites, DURING_TRAINING]
    return candidates[0]


def _sites_with(run: Run, *measurements: str) -> set[str]:
    """The sites that have any of these closing measurements."""
    sites = set()
    for site in run.sites:
        for name in measurements:
            if run.closing(site, name) is not None:
                sites.add(site)
    return sites


def scores_of(run: Run, measurement: str, warnings: list[str]) -> Scores:
    """The scores of ``run`` at its end, or else before its last round.

    Args:
        run: whose scores are shown.
        measurement: the closing measurement to show where the run has it.
        warnings: gets a line for a score outside [0, 1], which is left out, and for sites without
            a score.
    """
    scores = _closing_scores(run, measurement)
    if not scores.by_site:
        scores = _scores_during_training(run)

    fractions = {}
    for site, number in scores.by_site.items():
        if -ROUNDING <= number.value <= 1 + ROUNDING:
            fractions[site] = replace(number, value=min(max(number.value, 0.0), 1.0))
        else:
            warnings.append(
                f"{run.name}: the score of {site} is not a fraction in [0, 1] and is left out"
            )

    without = sorted(set(run.sites) - set(fractions))
    if fractions and without:
        warnings.append(
            f"{run.name}: no Dice of {', '.join(without)}; its mean, deviation, worst site, gap "
            f"and index are of {len(fractions)} of {len(run.sites)} sites"
        )
    return replace(scores, by_site=fractions)


def _closing_scores(run: Run, measurement: str) -> Scores:
    by_site = {}
    for site in run.sites:
        number = run.closing(site, measurement)
        if number is not None:
            by_site[site] = number
    return Scores(measurement, len(run.rounds), by_site)


def _scores_during_training(run: Run) -> Scores:
    """The newest scores during training, of the sites that have one of that time."""
    dice = {site: run.dice_before_last_round(site) for site in run.sites}
    newest = max((number for found in dice.values() for number in found), default=0)
    by_site = {}
    for site, found in dice.items():
        if newest in found:
            by_site[site] = found[newest]
    return Scores(DURING_TRAINING, newest, by_site)


def comparable(scores: Mapping[str, Scores], measurement: str) -> set[str]:
    """Names of runs whose scores can be compared.

    These show the common measurement and, where their models are still in training, have had the
    most rounds.

    Args:
        scores: name of a run -> its scores.
        measurement: the common one.
    """
    after_rounds = {
        name: found.after_rounds
        for name, found in scores.items()
        if found.measurement == measurement
    }
    if measurement != DURING_TRAINING:
        return set(after_rounds)
    most = max(after_rounds.values(), default=0)
    return {name for name, rounds in after_rounds.items() if rounds == most}


def validation_mean(run: Run, without: Collection[str] = ()) -> float | None:
    """Mean over the sites of the closing validation score, or else of each site's newest one.

    Args:
        run: in question.
        without: sites that do not count, unless nobody else is there.
    """
    sites = [site for site in run.sites if site not in without] or run.sites
    values = []
    for site in sites:
        number = run.closing(site, "score")
        if number is not None:
            values.append(number.value)

    if not values:
        for site in sites:
            dice = run.dice_before_last_round(site)
            if dice:
                values.append(dice[max(dice)].value)
    return sum(values) / len(values) if values else None


def without_validation_score(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Site -> names of the runs in which it has no closing validation score, though in others.

    Means with and without such a site are of other patients, and do not compare the runs.

    Args:
        runs: that may be compared. One without any closing validation score does not count.
    """
    sites_of = {run.name: _sites_with(run, "score") for run in runs}
    scored = {name: sites for name, sites in sites_of.items() if sites}
    found: dict[str, list[str]] = {}
    for name, sites in scored.items():
        for site in sorted(set().union(*scored.values()) - sites):
            found.setdefault(site, []).append(name)
    return found


def dice_words(measurement: str) -> str:
    """How a measurement is called in a sentence.

    >>> dice_words("test_score"), dice_words("global_score")
    ('test Dice', 'validation Dice')
    """
    return f"{CASES_OF[measurement]} Dice"
