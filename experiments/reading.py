# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Committed results: read, pooled over folds, and put into tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from study import HERE, Study

from monai_fairfl.statistics.fairness import performance
from monai_fairfl.statistics.intervals import Interval, bootstrap_site_mean

__all__ = [
    "NotFinished",
    "Results",
    "by_fold",
    "cases",
    "closing",
    "dice_table",
    "difference",
    "interval_of",
    "joined",
    "markdown",
    "measurement",
    "over_folds",
    "read",
    "shares",
    "shown_name",
    "site_means",
    "words",
]

Result = Mapping[str, Any]
SHOWN_NAMES = {"qFedAvg": "loss-weighted"}
"""A strategy's name in the studies -> its name in tables and figures, where that is another one."""
LAST = 10
"""Rounds over whose mean a method's weights are judged: single rounds of some methods are noisy."""


def shown_name(strategy: str) -> str:
    """The name of a strategy in tables and figures.

    The studies call ``QFedAvg(form="loss_weighted")`` ``qFedAvg``, as FedISM's authors do. It takes
    the plain average with weights by loss, and not q-FedAvg's step: readers see a name that says
    so.

    >>> shown_name("qFedAvg"), shown_name("FedAvg")
    ('loss-weighted', 'FedAvg')
    """
    return SHOWN_NAMES.get(strategy, strategy)


class NotFinished(Exception):
    """A result that a table needs is not there yet; says which."""


class Results(dict[str, list[dict[str, Any]]]):
    """strategy -> results of all folds; of those strategies that all folds are there of."""

    def __missing__(self, strategy: str) -> list[dict[str, Any]]:
        raise NotFinished(f"runs of {strategy}")


def read(study: str, setting: str = "") -> Results:
    """A study's results in its order.

    Raises:
        NotFinished: there is none; also when a strategy is asked for that is not complete.
    """
    which = Study.read(study)
    paths: dict[str, list[Path]] = {}
    for cell in which.cells():
        if cell.setting == setting:
            paths.setdefault(cell.strategy, []).append(which.path(cell))
    done = {
        strategy: found for strategy, found in paths.items() if all(path.exists() for path in found)
    }
    if not done:
        raise NotFinished(f"runs of {study} {setting}".rstrip())
    return Results(
        {name: [json.loads(path.read_text()) for path in found] for name, found in done.items()}
    )


def joined(*names: str) -> Results:
    """Results of studies that differ in their folds only: of those strategies that all of them
    have.
    """
    first, *others = (read(name) for name in names)
    common = [strategy for strategy in first if all(strategy in other for other in others)]
    return Results(
        {
            strategy: sum((other[strategy] for other in others), first[strategy])
            for strategy in common
        }
    )


def measurement(name: str) -> dict[str, Any]:
    """What an experiment measured itself, beside or without trainings."""
    path = HERE / "results" / f"{name}.json"
    if not path.exists():
        raise NotFinished("the measurement itself")
    return dict(json.loads(path.read_text()))


def cases(
    results: Iterable[Result], column: str = "dice", model: str = "test"
) -> dict[str, dict[str, float]]:
    """site -> case -> score over all folds, of the model that the site would use; unlabelled
    structures left out.

    Raises:
        ValueError: a case was tested in two folds.
    """
    pooled: dict[str, dict[str, float]] = {}
    for result in results:
        tests = result.get(model) or result["test"]
        for site, scores in tests[column].items():
            names = tests["cases"].get(site) or tests["cases"]["all"]
            if len(set(names)) < len(names):
                raise ValueError(f"{result['strategy']}: {site} has several cases of one name")
            mine = {
                name: score for name, score in zip(names, scores, strict=True) if score is not None
            }
            twice = set(mine) & set(pooled.setdefault(site, {}))
            if twice:
                raise ValueError(
                    f"{result['strategy']}: {site} tested {sorted(twice)} in two folds"
                )
            pooled[site] |= mine
    return {site: found for site, found in sorted(pooled.items()) if found}


def site_means(pooled: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """site -> mean of its cases.

    >>> site_means({"A": {"c1": 0.25, "c2": 0.75}})
    {'A': 0.5}
    """
    return {site: float(np.mean(list(scores.values()))) for site, scores in pooled.items()}


def interval_of(pooled: Mapping[str, Mapping[str, float]]) -> Interval:
    """The mean over sites, with its bootstrap interval over cases."""
    return bootstrap_site_mean({site: list(scores.values()) for site, scores in pooled.items()})


def difference(
    one: Iterable[Result], other: Iterable[Result], sites: Sequence[str] | None = None
) -> Interval:
    """Mean over sites of the gain in Dice of ``one`` over ``other``, case by case, with its
    bootstrap interval.
    """
    return bootstrap_site_mean(
        {site: list(gains.values()) for site, gains in _gains(one, other, sites).items()}
    )


def by_fold(
    one: Sequence[Result], other: Sequence[Result], sites: Sequence[str] | None = None
) -> str:
    """The same gain in each fold: how far one training differs from the next."""
    pairs = zip(one, other, strict=True)
    means = [site_means(_gains([first], [second], sites)).values() for first, second in pairs]
    return ", ".join(f"{np.mean(list(of)):+.3f}" for of in means)


def _gains(
    one: Iterable[Result], other: Iterable[Result], sites: Sequence[str] | None
) -> dict[str, dict[str, float]]:
    first, second = cases(one), cases(other)
    return {
        site: {c: score - second[site][c] for c, score in first[site].items()}
        for site in sites or first
    }


def shares(result: Result, of: str = "contributions") -> dict[str, float]:
    """site -> its share of the contributions: their mean over the last ten rounds, negative ones 0,
    summing to one.

    A method without contributions has its weights for them; ``of="aggregation"`` takes these of
    any.
    """
    known = _known(result[of] or result["aggregation"])
    last = {
        site: np.mean([v for v in values[-LAST:] if v is not None])
        for site, values in known.items()
    }
    kept = {site: max(float(value), 0.0) for site, value in last.items()}
    total = sum(kept.values())
    return {site: value / total if total else 1 / len(kept) for site, value in kept.items()}


def _known(found: Mapping[str, Sequence[float | None]]) -> Mapping[str, Sequence[float | None]]:
    return {site: values for site, values in found.items() if any(v is not None for v in values)}


def closing(result: Result, name: str, model: str = "own") -> dict[str, float]:
    """site -> a closing measurement, such as ``"sharpness"``."""
    return {site: found[model][name] for site, found in result["closing"].items()}


def over_folds(
    values: Sequence[Any], statistic: Callable[[Sequence[Any]], float], seed: int = 0
) -> Interval:
    """A statistic of all folds, and its percentile interval over folds drawn with replacement (2000
    times).

    Few folds give a rough interval: of three there are ten different draws.

    >>> over_folds([1.0, 2.0, 3.0], lambda found: sum(found) / len(found)).estimate
    2.0
    """
    rng = np.random.default_rng(seed)
    draws = [tuple(sorted(rng.integers(len(values), size=len(values)))) for _ in range(2000)]
    found = {draw: statistic([values[i] for i in draw]) for draw in sorted(set(draws))}
    drawn = [found[draw] for draw in draws]
    low, high = (
        np.nanquantile(drawn, [0.025, 0.975])
        if np.isfinite(drawn).any()
        else (float("nan"), float("nan"))
    )
    return Interval(statistic(values), float(low), float(high))


def words(interval: Interval, digits: int = 3, signed: bool = False) -> str:
    """For a cell of a table.

    >>> words(Interval(0.5, 0.25, 0.75)), words(Interval(0.5, 0.25, 0.75), 2, signed=True)
    ('0.500 (0.250 to 0.750)', '+0.50 (+0.25 to +0.75)')
    """
    if np.isnan(interval.estimate):
        return "–"
    form = f"{{:{'+' if signed else ''}.{digits}f}}"
    text = form.format(interval.estimate)
    return (
        text
        if np.isnan(interval.low)
        else f"{text} ({form.format(interval.low)} to {form.format(interval.high)})"
    )


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table.

    >>> print(markdown(["site", "Dice"], [["A", "0.5"]]))
    | site | Dice |
    | --- | --- |
    | A | 0.5 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def dice_table(results: Results, structures: Sequence[str] = (), baseline: str = "FedAvg") -> str:
    """A strategy's Dice at every site, mean with interval, std over sites, worst site, gain over a
    baseline.
    """
    parts = structures or ("dice",)
    first = {part: cases(next(iter(results.values())), part) for part in parts}
    heads = [
        f"{part + ', ' if structures else ''}{site} ({len(first[part][site])})"
        for part in parts
        for site in first[part]
    ]
    rows = []
    for strategy, found in results.items():
        pooled = cases(found)
        means = [
            f"{mean:.3f}" for part in parts for mean in site_means(cases(found, part)).values()
        ]
        summary, interval = performance(site_means(pooled)), interval_of(pooled)
        gain = (
            words(difference(found, results[baseline]), signed=True)
            if strategy != baseline
            else "–"
        )
        ends = f"{interval.low:.3f} to {interval.high:.3f}"
        worst = f"{summary.worst:.3f} ({summary.worst_client})"
        folds = by_fold(found, results[baseline]) if strategy != baseline else "–"
        rows.append(
            [
                shown_name(strategy),
                *means,
                f"**{summary.mean:.3f}**",
                ends,
                f"{summary.std:.3f}",
                worst,
                gain,
                folds,
            ]
        )
    head = [
        "strategy",
        *heads,
        "mean",
        "95 % interval",
        "std",
        "worst site",
        f"gain over {baseline}",
        "fold by fold",
    ]
    return markdown(head, rows)
