# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison over seeds as the report of one training: the same rows, with better intervals.

Each strategy is one entry in place of its trainings. A site's score is the mean over its cases, of
each the mean over the seeds. Its difference from another strategy has the bootstrap interval over
seeds and cases of :mod:`monai_fairfl.statistics.paired`, and is never narrower than Student's
interval over the cases. Of one seed it is that one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import to_json
from monai_fairfl.report.comparison import Difference, Gain, difference_of, left_behind
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.touched import Touched
from monai_fairfl.statistics.paired import CaseScore, compare_paired

ByCase = Mapping[str, float]
"""Case -> its score, the mean over the seeds."""


def report_over_seeds(
    report: Mapping[str, Any],
    scores: Sequence[CaseScore],
    methods: Sequence[str],
    validation_means: Mapping[str, float],
) -> dict[str, Any]:
    """A report with one entry for each strategy, of all its trainings.

    Args:
        report: of all trainings, what :func:`~monai_fairfl.report.summary.summarise` returned.
        scores: of every case, in the closing measurement of the report.
        methods: the strategies that are compared, in their order.
        validation_means: strategy -> mean Dice on validation cases, over the same trainings and
            hospitals for all.

    Returns:
        The same keys; ``"strategies"`` has the entries, and ``"runs"`` the trainings. Hospitals
        without a score stay in it.
    """
    runs = report["strategies"]
    trained = {run["method"] for run in runs.values()}
    methods = [name for name in methods if name in trained]
    standalone = _first_of(runs, methods, "Standalone")
    fedavg = _first_of(runs, methods, "FedAvg")
    sites = sorted(report["sites"])
    scores = _of_common_cases(scores, methods)
    cases: dict[str, dict[str, ByCase]] = {}
    for name in methods:
        cases[name] = {site: _by_case(scores, name, site) for site in sites}
    differences = {site: _differences(scores, cases, methods, site) for site in sites}

    strategies = {}
    for name in methods:
        baseline = fedavg
        if name in (fedavg, standalone):
            baseline = None
        references = (standalone, baseline)
        entry = _entry(runs, name, cases[name], references, cases, differences)
        for site, result in entry["sites"].items():
            result["gain_of_seeds"] = _by_seed(scores, name, standalone, site)
        strategies[name] = {**entry, "validation_mean": validation_means.get(name)}
    focus = _focus(strategies)
    return {
        **report,
        "strategies": strategies,
        "runs": runs,
        "standalone": standalone,
        "compared": [list(methods)],
        "focus": focus,
    }


def _of_common_cases(scores: Sequence[CaseScore], methods: Sequence[str]) -> list[CaseScore]:
    """The scores of the cases that every method tested with every seed, as in the tables.

    A hospital's Dice, that of training alone and their difference are then of the same cases.
    """
    tested: dict[tuple[str, str], set[tuple[str, int]]] = {}
    trained = set()
    for score in scores:
        if score.strategy in methods:
            trained.add((score.strategy, score.seed))
            of_case = tested.setdefault((score.site, score.case), set())
            of_case.add((score.strategy, score.seed))
    return [score for score in scores if tested.get((score.site, score.case)) == trained]


def _first_of(runs: Mapping[str, Any], methods: Sequence[str], strategy: str) -> str | None:
    """The first method of this class; ``None`` without one."""
    for name in methods:
        for run in runs.values():
            if run["method"] == name and run["strategy"] == strategy:
                return name
    return None


def _by_case(scores: Sequence[CaseScore], method: str, site: str) -> ByCase:
    """The site's cases with their mean score over the seeds."""
    found: dict[str, list[float]] = {}
    for score in scores:
        if score.strategy == method and score.site == site:
            found.setdefault(score.case, []).append(score.value)
    return {case: mean(values) for case, values in found.items()}


def _by_seed(
    scores: Sequence[CaseScore], method: str, standalone: str | None, site: str
) -> list[float]:
    """What a method gains at a site over training alone with each seed: means over its cases."""
    means = []
    for name in (method, standalone):
        of_seeds: dict[int, list[float]] = {}
        for score in scores:
            if (score.strategy, score.site) == (name, site):
                of_seeds.setdefault(score.seed, []).append(score.value)
        means.append({seed: mean(values) for seed, values in of_seeds.items()})
    joined, alone = means
    return [joined[seed] - alone[seed] for seed in sorted(joined.keys() & alone.keys())]


def _number(by_case: ByCase) -> Number | None:
    """Mean over the cases, with its standard error."""
    values = list(by_case.values())
    if not values:
        return None
    stderr = None
    if len(values) > 1:
        stderr = stdev(values) / math.sqrt(len(values))
    return Number(mean(values), stderr, len(values))


def _differences(
    scores: Sequence[CaseScore],
    cases: Mapping[str, Mapping[str, ByCase]],
    methods: Sequence[str],
    site: str,
) -> dict[tuple[str, str], Difference]:
    """Strategy and reference -> their difference at one site."""
    found: dict[tuple[str, str], Difference] = {}
    of_site = [score for score in scores if score.site == site]
    try:
        compared = compare_paired(of_site, methods)
    except ConfigError:  # no case of this site is common to two strategies
        return found
    for pair in compared.pairs:
        one = cases[pair.strategy][site]
        other = cases[pair.reference][site]
        common = sorted(one.keys() & other.keys())
        pairs = [one[case] - other[case] for case in common]
        over_cases = difference_of(_mean_of(one, common), _mean_of(other, common), pairs)
        estimate, low, high = pair.difference
        difference = over_cases
        if not math.isnan(low) and not math.isnan(high):
            # Of one case the interval is over the seeds alone, and gives no verdict.
            within_noise = None
            if over_cases.low is not None and over_cases.high is not None:
                # The bootstrap of few cases is too narrow, and other seeds make nothing certain.
                low = min(low, over_cases.low)
                high = max(high, over_cases.high)
                within_noise = low <= 0 <= high
            stderr, n = over_cases.stderr, over_cases.n
            difference = Difference(estimate, stderr, n, low, high, within_noise, paired=True)
        found[pair.strategy, pair.reference] = difference
        found[pair.reference, pair.strategy] = _turned(difference)
    return found


def _mean_of(by_case: ByCase, cases: Sequence[str]) -> Number:
    return Number(mean(by_case[case] for case in cases))


def _turned(difference: Difference) -> Difference:
    """The same difference the other way round."""
    low = None if difference.high is None else -difference.high
    high = None if difference.low is None else -difference.low
    turned = {**asdict(difference), "value": -difference.value, "low": low, "high": high}
    return Difference(**turned)


def _entry(
    runs: Mapping[str, Any],
    name: str,
    by_site: Mapping[str, ByCase],
    references: tuple[str | None, str | None],
    cases: Mapping[str, Mapping[str, ByCase]],
    differences: Mapping[str, Mapping[tuple[str, str], Difference]],
) -> dict[str, Any]:
    """One strategy in place of its trainings.

    Args:
        runs: all trainings.
        name: of the strategy.
        by_site: its cases.
        references: Standalone and FedAvg, where they are compared with it.
        cases: of all strategies.
        differences: site -> strategy and reference -> difference.
    """
    mine = [run for run in runs.values() if run["method"] == name]
    standalone, fedavg = references
    alone = [run for run in runs.values() if run["method"] == standalone]
    judged = all(run["judged"] for run in [*mine, *alone])
    numbers = {}
    for site, by_case in by_site.items():
        number = _number(by_case)
        if number is not None:
            numbers[site] = number

    sites = {}
    for site, first in mine[0]["sites"].items():
        gain = None
        against_fedavg = None
        difference = differences.get(site, {}).get((name, str(standalone)))
        if difference is not None and standalone is not None:
            reached_alone = _number(cases[standalone][site])
            if reached_alone is not None:
                gain = Gain(**asdict(difference), alone=reached_alone.value)
        if fedavg is not None:
            against_fedavg = differences.get(site, {}).get((name, fedavg))
        verdict = None
        if judged and name != standalone:
            verdict = left_behind(site, numbers, gain)
        sites[site] = {
            **first,
            "score": _plain(numbers.get(site)),
            "gain": _plain(gain),
            "left_behind": _plain(verdict),
            "against_fedavg": _plain(against_fedavg),
            # These are of single trainings.
            "aggregation_weight": None,
            "last_mile": None,
            "boundary": None,
        }
    compared_with = standalone
    if name == standalone:
        compared_with = None
    return {
        **mine[0],
        "judged": judged,
        "sites": sites,
        "standalone": compared_with,
        "fedavg": fedavg,
        "valuations": [],
        "touched": _touched(mine),
        "rounds_of_trainings": sum(run["rounds"] for run in mine),
        "comparable": len(numbers) == len(sites),
    }


def _touched(trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What guards and limits did with each site, in the rounds of all trainings."""
    found: dict[str, Any] = {}
    for run in trainings:
        for site, touched in run["touched"].items():
            of_site = found.setdefault(site, asdict(Touched()))
            of_site["limited"] += touched["limited"]
            for what in ("refused", "changed", "lowered", "raised"):
                for guard, rounds in touched[what].items():
                    of_site[what].setdefault(guard, []).extend(rounds)
    return found


def _plain(found: Any) -> Any:
    return None if found is None else to_json(asdict(found))


def _focus(strategies: Mapping[str, Any]) -> str | None:
    """The federated strategy that validates best."""
    best = None
    best_mean = -math.inf
    for name, found in strategies.items():
        if found["strategy"] == "Standalone":
            continue
        mean_dice = found["validation_mean"]
        if best is None or (mean_dice is not None and mean_dice > best_mean):
            best = name
            best_mean = -math.inf if mean_dice is None else mean_dice
    return best
