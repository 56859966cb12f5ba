# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From runs to the numbers of the report; everything else in this folder words or draws them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from monai_fairfl import __version__
from monai_fairfl.messages import to_json
from monai_fairfl.report.cases import paired_differences
from monai_fairfl.report.cautions import (
    differences_of_groups,
    different_structures,
    limited_reports,
    outdated_valuations,
    sites_with_empty_labels,
    sites_without_test_scores,
    sites_without_validation_scores,
    suspicious_sites,
)
from monai_fairfl.report.comparison import (
    DDOF,
    LEFT_BEHIND,
    collaboration,
    difference_of,
    gains,
    left_behind,
)
from monai_fairfl.report.credit import rules_of
from monai_fairfl.report.details import details_of
from monai_fairfl.report.events import Event, events_of, free_riding_of
from monai_fairfl.report.first_look import first_look
from monai_fairfl.report.judging import Judgement, judge
from monai_fairfl.report.last_mile import last_mile_of
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.partners import Yardstick, partners_of, repeats_of, yardstick_of
from monai_fairfl.report.results import (
    Report,
    SiteData,
    SiteResult,
    StrategyResult,
    StrategySeries,
)
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import (
    BOUNDARY,
    CLOSING,
    Scores,
    comparable,
    scores_of,
    shown_measurement,
    validation_mean,
    without_validation_score,
)
from monai_fairfl.report.series import (
    FREE_RIDER_RULE,
    Point,
    contribution_series,
    dice_series,
    free_rider_series,
    weight_series,
)
from monai_fairfl.report.similarity import similarity_of
from monai_fairfl.report.touched import often_touched, touched_of
from monai_fairfl.report.valuations import is_current
from monai_fairfl.statistics import fairness
from monai_fairfl.strategies.registry import shipped

AnyPoint = TypeVar("AnyPoint", bound=Point)

SETTINGS = ("bundle", "engine", "package", "rounds", "local_epochs", "overrides", "device")
"""Keys of ``settings.json`` that the page shows."""


def summarise(runs: Sequence[Run], together: bool = False) -> dict[str, Any]:
    """All numbers of the report.

    Tables show one measurement for all finished runs: ``test_score`` where each has one, else
    ``score``, else the last round's ``global_score``. A run without it (unfinished) shows its last
    ``global_score`` and is not compared. Runs are compared within their group only, of the same
    data, split and seed. Only full runs are judged.

    Args:
        runs: of :func:`~monai_fairfl.report.collect.load_runs`.
        together: whether all are trainings of one comparison. A site whose reports are doubted in
            one of them then counts in no mean on validation cases, so that all are over the same
            sites.

    Returns:
        A :class:`~monai_fairfl.report.results.Report` as plain JSON;
        ``report["strategies"][name]["sites"][site]`` holds a site's score, gain, contribution, and
        whether it is left behind.
    """
    # The scores of each run, and the groups of runs that may be compared.
    measurement = shown_measurement(runs)
    warnings: list[str] = []
    scores = {run.name: scores_of(run, measurement, warnings) for run in runs}
    groups = partners_of(runs, warnings)

    # Within a group, only scores of the same measurement and stage of training are comparable.
    group_of: dict[str, list[Run]] = {}
    comparable_names: set[str] = set()
    for group in groups:
        for run in group:
            group_of[run.name] = group
        scores_of_group = {run.name: scores[run.name] for run in group}
        comparable_names.update(comparable(scores_of_group, measurement))

    doubted = {}
    left_out: dict[str, set[str]] = {}
    for group in groups:
        doubted_of_group = often_touched(runs if together else group)
        without_score = without_validation_score(group)
        for run in group:
            doubted[run.name] = doubted_of_group
            left_out[run.name] = {*doubted_of_group, *without_score}

    # What each run is measured against, whether it may be judged, and its numbers.
    judgements: dict[str, Judgement] = {}
    strategies: dict[str, StrategyResult] = {}
    for run in runs:
        group = group_of[run.name]
        has_comparable_score = run.name in comparable_names
        yardstick = yardstick_of(run, group, runs, comparable_names)
        judgement = judge(run, yardstick.run, scores[run.name].mean)
        judgements[run.name] = judgement
        strategies[run.name] = _strategy_result(
            run,
            repeats=repeats_of(run, runs),
            measurement=measurement,
            scores=scores,
            yardstick=yardstick,
            fedavg=_fedavg_of(run, group, comparable_names),
            judgement=judgement,
            left_out=left_out[run.name],
            is_comparable=has_comparable_score and _scores_all_sites(scores[run.name], group),
        )

    first_standalone = _first_standalone(runs)
    free_riding: list[Event] = []
    for run in runs:
        result = strategies[run.name]
        if result.no_standalone is not None and first_standalone is not None:
            warnings.append(
                f"What {run.name} gained over training alone is not known, because "
                f"{result.no_standalone}"
            )
        of_run = list(free_riding_of(run))
        free_riding.extend(of_run)
        warnings.extend(outdated_valuations(run))
        warnings.extend(suspicious_sites(run, result.flagged, of_run))
        warnings.extend(limited_reports(run, result.touched))

    focus = _focus(runs, groups, strategies, doubted)
    compared = []
    for group in groups:
        compared.append([run.name for run in group])

    sites: set[str] = set()
    events: list[Event] = []
    for run in runs:
        sites.update(run.sites)
        events.extend(events_of(run))
    report = Report(
        version=__version__,
        measurement=measurement,
        ddof=DDOF,
        left_behind_rule=LEFT_BEHIND,
        free_rider_rule=FREE_RIDER_RULE,
        standalone=first_standalone,
        compared=compared,
        first_look=first_look(runs, judgements),
        focus=focus,
        doubted=[] if focus is None else sorted(doubted[focus]),
        sites={site: _site_data(site, runs, scores) for site in sorted(sites)},
        groups=_common_groups(runs),
        strategies=strategies,
        free_riding=free_riding,
        events=events,
        warnings=[
            *differences_of_groups(groups, scores),
            *different_structures(runs, measurement),
            *sites_without_validation_scores(groups),
            *sites_without_test_scores(runs),
            *sites_with_empty_labels(runs),
            *warnings,
        ],
    )
    return to_json(asdict(report))


def _strategy_result(
    run: Run,
    *,
    repeats: Sequence[str],
    measurement: str,
    scores: Mapping[str, Scores],
    yardstick: Yardstick,
    fedavg: Run | None,
    judgement: Judgement,
    left_out: Collection[str],
    is_comparable: bool,
) -> StrategyResult:
    """The results of one run.

    Args:
        run: in question.
        repeats: the runs that differ from it in seed, fold and split at most.
        measurement: the one that the tables show.
        scores: name of a run -> the scores that are shown of it.
        yardstick: against which the run is measured.
        fedavg: the FedAvg run with which it may be compared; ``None`` where there is none.
        judgement: whether verdicts are given on it.
        left_out: sites whose own reports do not count where a run is chosen.
        is_comparable: whether its scores can be compared with those of its group.
    """
    mine = scores[run.name]
    alone: Mapping[str, Number] = {}
    if yardstick.run is not None:
        alone = scores[yardstick.run.name].by_site

    performance = None
    if mine.by_site:
        performance = fairness.performance(mine.values, ddof=DDOF)

    weights = weight_series(run)
    contributions = contribution_series(run)
    free_riders = free_rider_series(run)
    series = StrategySeries(
        dice=dice_series(run),
        weights=weights.points,
        contributions=contributions,
        free_rider_scores=free_riders.points,
    )
    known = shipped().get(run.strategy)
    additive = known.additive if known else None
    estimates = known is None or additive is not None
    valuations = [valuation for valuation in run.valuations if is_current(valuation, run)]
    standalone_name = None
    if yardstick.run is not None:
        standalone_name = yardstick.run.name
    fedavg_name = None
    if fedavg is not None:
        fedavg_name = fedavg.name
    return StrategyResult(
        strategy=run.strategy,
        method=run.method,
        run=run.path.resolve().name,
        seed=run.seed,
        fold=run.fold,
        repeats=repeats,
        judged=judgement.judged,
        not_judged=judgement.why_not,
        rounds=len(run.rounds),
        planned_rounds=run.planned,
        finished=run.finished,
        ledger_head=run.head,
        chain_verified=True,
        measurement=mine.measurement,
        after_rounds=mine.after_rounds,
        performance=performance,
        collaboration=collaboration(mine.values, alone),
        layers_averaged=weights.layers,
        additive=additive,
        estimates_contributions=estimates,
        personal=run.personal,
        flagged=free_riders.flagged,
        sites=_site_results(run, measurement, scores, yardstick.run, fedavg, series, judgement),
        series=series,
        details=details_of(run),
        valuations=valuations,
        credit=rules_of(run, weights.points, contributions, estimates, valuations),
        standalone=standalone_name,
        no_standalone=yardstick.why_none,
        comparable=is_comparable,
        validation_mean=validation_mean(run, left_out),
        guards=run.start.get("guards"),
        touched=touched_of(run),
        fedavg=fedavg_name,
        similarity=similarity_of(run),
        settings={key: run.config[key] for key in SETTINGS if run.config.get(key) is not None},
    )


def _site_results(
    run: Run,
    measurement: str,
    scores: Mapping[str, Scores],
    standalone: Run | None,
    fedavg: Run | None,
    series: StrategySeries,
    judgement: Judgement,
) -> dict[str, SiteResult]:
    """site -> what the run gives it.

    Args:
        run: in question.
        measurement: the one that the tables show.
        scores: name of a run -> the scores that are shown of it.
        standalone: the run of training alone against which it is measured.
        fedavg: the FedAvg run with which it may be compared.
        series: its numbers by round.
        judgement: whether verdicts are given on it.
    """
    mine = scores[run.name]
    alone: Mapping[str, Number] = {}
    pairs: Mapping[str, Sequence[float]] = {}
    if standalone is not None:
        alone = scores[standalone.name].by_site
        pairs = _pairs(run, standalone, scores)
    gain_of = gains(mine.by_site, alone, pairs)

    averaged: Mapping[str, Number] = {}
    pairs_with_fedavg: Mapping[str, Sequence[float]] = {}
    if fedavg is not None:
        averaged = scores[fedavg.name].by_site
        pairs_with_fedavg = _pairs(run, fedavg, scores)

    verdicts_given = judgement.judged and not run.is_standalone
    results = {}
    for site in run.sites:
        gain = gain_of.get(site)
        score = mine.by_site.get(site)
        verdict = None
        if verdicts_given:
            verdict = left_behind(site, mine.by_site, gain)
        against_fedavg = None
        if score is not None and site in averaged:
            against_fedavg = difference_of(score, averaged[site], pairs_with_fedavg.get(site))
        results[site] = SiteResult(
            score=score,
            global_model=run.closing(site, measurement, model="global"),
            gain=gain,
            contribution=_newest(series.contributions, site),
            aggregation_weight=_newest(series.weights, site),
            left_behind=verdict,
            last_mile=last_mile_of(run, site, measurement, score),
            against_fedavg=against_fedavg,
            boundary=run.closing(site, BOUNDARY),
        )
    return results


def _pairs(run: Run, other: Run, scores: Mapping[str, Scores]) -> Mapping[str, Sequence[float]]:
    """site -> differences case by case, where both runs show the same closing measurement."""
    measurement = scores[run.name].measurement
    if measurement not in CLOSING or scores[other.name].measurement != measurement:
        return {}
    return paired_differences(run, other, measurement)


def _fedavg_of(run: Run, group: Sequence[Run], comparable: Collection[str]) -> Run | None:
    """The FedAvg run with which ``run`` may be compared; ``None`` for itself and Standalone."""
    if run.is_standalone or run.strategy == "FedAvg" or run.name not in comparable:
        return None
    for other in group:
        if other.strategy == "FedAvg" and other.name in comparable:
            return other
    return None


def _newest(series: Mapping[str, Sequence[AnyPoint]], site: str) -> AnyPoint | None:
    """The last point of a site; ``None`` where it has none."""
    points = series.get(site)
    return points[-1] if points else None


def _scores_all_sites(scores: Scores, group: Sequence[Run]) -> bool:
    """Whether every site of any run of the group has a score."""
    sites = {site for run in group for site in run.sites}
    return set(scores.by_site) == sites


def _first_standalone(runs: Sequence[Run]) -> str | None:
    """Name of the first Standalone run; ``None`` without one."""
    for run in runs:
        if run.is_standalone:
            return run.name
    return None


def _common_groups(runs: Sequence[Run]) -> dict[str, Any]:
    """Group -> its sites; empty where runs have different groups, whose means would mix sites."""
    groups = [run.groups for run in runs]
    return groups[0] if all(other == groups[0] for other in groups) else {}


def _focus(
    runs: Sequence[Run],
    groups: Sequence[Sequence[Run]],
    strategies: Mapping[str, StrategyResult],
    doubted: Mapping[str, Collection[str]],
) -> str | None:
    """The federated run that the report is about.

    Runs with a score of every site go first: means over other sites are of other patients. Then
    finished runs do. Of several groups it is the first that has Standalone, else the first: the
    best of several seeds would be chosen by chance. Of these runs it is the one with the best mean
    on validation cases, whose model one would use. It is never chosen on test cases.

    Where guards or limits often refused what a site sent, guarded runs go first: the others took
    the same in unseen. That site's own validation does not count, since it may be false.
    """
    candidates = [run for run in runs if not run.is_standalone]
    of_all_sites = [run for run in candidates if strategies[run.name].comparable]
    if of_all_sites:
        candidates = of_all_sites
    finished = [run for run in candidates if run.finished]
    if finished:
        candidates = finished

    with_standalone = []
    without = []
    for group in groups:
        members = [run for run in group if run in candidates]
        if any(strategies[run.name].standalone is not None for run in members):
            with_standalone.append(members)
        elif members:
            without.append(members)
    eligible = [*with_standalone, *without]
    if not eligible:
        return None

    def preference(run: Run) -> tuple[bool, float]:
        found = strategies[run.name]
        attacked = bool(doubted[run.name])
        mean = found.validation_mean
        return attacked and bool(found.guards), -math.inf if mean is None else mean

    return max(eligible[0], key=preference).name


def _site_data(site: str, runs: Sequence[Run], scores: Mapping[str, Scores]) -> SiteData:
    """Counts of the site's cases and images."""
    scored = []
    for of_run in scores.values():
        number = of_run.by_site.get(site)
        if number is not None and number.n is not None:
            scored.append(number.n)
    return SiteData(
        cases=_only(run.last_reported("cases").get(site) for run in runs),
        images=_only(run.last_reported("samples").get(site) for run in runs),
        scored=min(scored, default=None),
    )


def _only(counts: Iterable[int | None]) -> int | None:
    """The count that all runs with one agree on; ``None`` where they differ."""
    different = set(counts) - {None}
    return different.pop() if len(different) == 1 else None
