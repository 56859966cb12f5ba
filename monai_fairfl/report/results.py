# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What ``report.json`` holds: the fields are its keys, in their order.

:mod:`~monai_fairfl.report.summary` fills these in from the runs. What words and draws them reads
the plain JSON, so that it can be done again from the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monai_fairfl.report.comparison import Collaboration, Difference, Gain, LeftBehind
from monai_fairfl.report.credit import Rule
from monai_fairfl.report.events import Event
from monai_fairfl.report.first_look import FirstLook
from monai_fairfl.report.last_mile import LastMile
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.series import EstimatedPoint, Point
from monai_fairfl.report.similarity import Similarity
from monai_fairfl.report.touched import Touched
from monai_fairfl.statistics.fairness import Performance


@dataclass(frozen=True)
class SiteResult:
    """What one strategy gives one site; ``None`` where it is not known.

    Args:
        score: Dice of the model that the site would use.
        global_model: Dice of the global model, in the same measurement.
        gain: over training alone.
        contribution: the newest.
        aggregation_weight: the newest.
        left_behind: whether it is below the others or alone; ``None`` where the run is not judged,
            too.
        last_mile: what its own training at the end brought; ``None`` where there was none.
        against_fedavg: its score less that of FedAvg; ``None`` for FedAvg and Standalone, too.
        boundary: 95th percentile of the surface distance on its test cases, mm; ``None`` where the
            run did not measure it.
    """

    score: Number | None
    global_model: Number | None
    gain: Gain | None
    contribution: EstimatedPoint | None
    aggregation_weight: Point | None
    left_behind: LeftBehind | None
    last_mile: LastMile | None
    against_fedavg: Difference | None
    boundary: Number | None


@dataclass(frozen=True)
class StrategySeries:
    """What is drawn by round: site -> points, one for each round in which it has a number."""

    dice: Mapping[str, Sequence[EstimatedPoint]]
    weights: Mapping[str, Sequence[Point]]
    contributions: Mapping[str, Sequence[EstimatedPoint]]
    free_rider_scores: Mapping[str, Sequence[Point]]


@dataclass(frozen=True)
class StrategyResult:
    """One run.

    Args:
        strategy: class of its strategy.
        method: the strategy's name with its arguments.
        run: name of its folder.
        seed: of the run.
        fold: of a cross-validation.
        repeats: names of the runs that differ from it in seed, fold and split at most, its own
            included.
        judged: whether verdicts are given on it.
        not_judged: why not.
        rounds: finished ones.
        planned_rounds: those that it was meant to have.
        finished: whether it has closing measurements.
        ledger_head: SHA-256 of the ledger's last line.
        chain_verified: always true; a broken chain is an error.
        measurement: the one whose scores are shown.
        after_rounds: rounds of training of the models that were scored.
        performance: how well, and how evenly, the sites are served.
        collaboration: how the scores follow what the sites reach alone.
        layers_averaged: how many layers a weight is the mean of, where a method weighs each.
        additive: whether the strategy's contributions of several sites can be added up, as shares
            can; ``None`` where nobody knows.
        estimates_contributions: whether contributions are more than the weights; true of a strategy
            that is not shipped, which may estimate anything.
        personal: whether each site trains a model of its own beside the global one.
        flagged: site -> round in which its free-rider score was first flagged.
        sites: site -> its result.
        series: by round.
        details: the strategy's own quantities, see :mod:`~monai_fairfl.report.details`.
        valuations: made of the run afterwards.
        credit: what each site gets under several rules, see :mod:`~monai_fairfl.report.credit`.
        standalone: name of the run against which it is measured.
        no_standalone: why there is none.
        comparable: its scores are of the common measurement and of all sites of its group.
        validation_mean: mean over the sites of the Dice on validation cases, without those whose
            reports its group's guards and limits often refused or limited, and without those that a
            run of its group has no such score of.
        guards: names of the guards of the run; ``None`` where its ledger does not say.
        touched: site -> what guards and limits did with it.
        fedavg: name of the FedAvg run of the same data, split and seed; ``None`` for itself.
        similarity: how alike the sites' updates are; ``None`` where the ledger does not say.
        settings: of its training, as its ``settings.json`` records them.
    """

    strategy: str
    method: str
    run: str
    seed: Any
    fold: Any
    repeats: Sequence[str]
    judged: bool
    not_judged: str | None
    rounds: int
    planned_rounds: int | None
    finished: bool
    ledger_head: str
    chain_verified: bool
    measurement: str
    after_rounds: int
    performance: Performance | None
    collaboration: Collaboration | None
    layers_averaged: int | None
    additive: bool | None
    estimates_contributions: bool
    personal: bool
    flagged: Mapping[str, int]
    sites: Mapping[str, SiteResult]
    series: StrategySeries
    details: Mapping[str, Any]
    valuations: Sequence[Mapping[str, Any]]
    credit: Sequence[Rule]
    standalone: str | None
    no_standalone: str | None
    comparable: bool
    validation_mean: float | None
    guards: Sequence[str] | None
    touched: Mapping[str, Touched]
    fedavg: str | None
    similarity: Similarity | None
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class SiteData:
    """A site's data; ``None`` where its runs differ or do not record it.

    Args:
        cases: of its training.
        images: of one epoch.
        scored: cases behind its Dice, the fewest of all runs.
    """

    cases: int | None
    images: int | None
    scored: int | None


@dataclass(frozen=True)
class Report:
    """All numbers of the report.

    Args:
        version: of this package.
        measurement: the one that the tables show.
        ddof: n - ddof is the denominator of a standard deviation over n sites.
        left_behind_rule: when a site is called left behind.
        free_rider_rule: when a site is flagged.
        standalone: name of the first Standalone run.
        compared: names of the runs in groups that may be compared.
        first_look: runs that are not judged, and why.
        focus: name of the run that the sentences are about.
        doubted: sites whose own reports had no part in that choice.
        sites: site -> its data.
        groups: group -> its sites, where all runs have the same groups.
        strategies: name of a run -> its results.
        free_riding: verdicts of guards on updates that no training of the site made.
        events: absences, guards and notes.
        warnings: what a reader must know before comparing.
    """

    version: str
    measurement: str
    ddof: int
    left_behind_rule: str
    free_rider_rule: str
    standalone: str | None
    compared: Sequence[Sequence[str]]
    first_look: Sequence[FirstLook]
    focus: str | None
    doubted: Sequence[str]
    sites: Mapping[str, SiteData]
    groups: Mapping[str, Sequence[str]]
    strategies: Mapping[str, StrategyResult]
    free_riding: Sequence[Event]
    events: Sequence[Event]
    warnings: Sequence[str]


def is_comparison(report: Mapping[str, Any]) -> bool:
    """Whether a report is on a comparison over seeds or folds.

    Its ``"strategies"`` are then means over trainings, and ``"runs"`` has these trainings: see
    :func:`~monai_fairfl.report.repeated_hospitals.report_over_seeds`.

    Args:
        report: as ``report.json`` has it.
    """
    return "runs" in report


def trainings_of(report: Mapping[str, Any], name: str) -> Sequence[str]:
    """The names of the trainings behind a strategy's results; of a single run its own.

    Args:
        report: as ``report.json`` has it.
        name: of one of its strategies.
    """
    if not is_comparison(report):
        return [name]
    names: Sequence[str] = report["strategies"][name]["repeats"]
    return names


def runs_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name -> results of each training: of a comparison those behind its strategies.

    Args:
        report: as ``report.json`` has it.
    """
    runs: Mapping[str, Any] = report["runs" if is_comparison(report) else "strategies"]
    return runs
