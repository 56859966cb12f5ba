# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which scores are shown, and of which runs they can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from monai_fairfl.report.collect import Number, Run

MEASUREMENTS = {"test_score": "test", "score": "validation", "global_score": "validation"}
"""Measurement -> the cases it is made on, best first: test cases were never used to choose
anything.
"""
CLOSING = ("test_score", "score")
ROUNDING = 1e-6  # by which a fraction may be outside [0, 1]


@dataclass(frozen=True)
class Shown:
    """The scores of one run: which measurement, after how many rounds of training, and site ->
    number.
    """

    measurement: str
    after_rounds: int
    numbers: Mapping[str, Number]


def shown_measurement(runs: Sequence[Run]) -> str:
    """The best measurement that every finished run has of every site that it scored at all; else of
    some sites.

    ``global_score`` where there is none.
    """
    finished = [run for run in runs if run.end is not None]
    some = [name for name in CLOSING if finished and all(_scored(run, name) for run in finished)]
    whole = [
        name
        for name in some
        if all(_scored(run, name) == _scored(run, *CLOSING) for run in finished)
    ]
    return next(iter(whole or some), "global_score")


def _scored(run: Run, *names: str) -> set[str]:
    """The sites with any of these closing scores."""
    return {site for site in run.sites if any(run.final(site, name) for name in names)}


def scores_of(run: Run, shown: str, warnings: list[str]) -> Shown:
    """The scores of ``run``: of the measurement ``shown``, else of the last round; one outside [0,
    1] is left out.
    """
    found = {site: run.final(site, shown) for site in run.sites}
    measurement, after = shown, len(run.rounds)
    if not any(found.values()):
        measurement = "global_score"
        last = {site: _so_far(run, site) for site in run.sites}
        after = max((number for numbers in last.values() for number in numbers), default=0)
        found = {site: numbers.get(after) for site, numbers in last.items()}
    known = {site: number for site, number in found.items() if number is not None}
    kept = {
        site: _fraction(number)
        for site, number in known.items()
        if -ROUNDING <= number.value <= 1 + ROUNDING
    }
    for site in sorted(set(known) - set(kept)):
        warnings.append(
            f"{run.name}: the score of {site} is not a fraction in [0, 1] and is left out"
        )
    if kept and (without := sorted(set(run.sites) - set(kept))):
        warnings.append(
            f"{run.name}: no Dice of {', '.join(without)}; its mean, deviation, worst site, gap and index are of "
            f"{len(kept)} of {len(run.sites)} sites"
        )
    return Shown(measurement, after, kept)


def _fraction(number: Number) -> Number:
    return replace(number, value=min(max(number.value, 0.0), 1.0))


def comparable(scores: Mapping[str, Shown], shown: str) -> set[str]:
    """Runs that show the common measurement; of models still in training, those that went furthest."""
    same = {
        name: found.after_rounds for name, found in scores.items() if found.measurement == shown
    }
    furthest = max(same.values(), default=0)
    return {name for name, after in same.items() if shown != "global_score" or after == furthest}


def validation_mean(run: Run) -> float | None:
    """Mean over the sites of the closing, else the last, validation score."""
    numbers = [run.final(site, "score") for site in run.sites]
    if not any(numbers):
        numbers = [max(_so_far(run, site).items(), default=(0, None))[1] for site in run.sites]
    known = [number.value for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _so_far(run: Run, site: str) -> dict[int, Number]:
    """Dice before the last round's training: what unfinished runs, with and without personal
    models, have alike.
    """
    return {number: value for number, value in run.dice(site).items() if number < len(run.rounds)}
