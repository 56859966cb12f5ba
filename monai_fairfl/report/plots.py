# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which plots the page has; :mod:`~monai_fairfl.report.figures` draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from monai_fairfl.report.contributions import contributor_of
from monai_fairfl.report.details import label_of, quantities_of
from monai_fairfl.report.figures import Figure, bars, heat_map, small_multiples
from monai_fairfl.report.quantities import Quantity
from monai_fairfl.report.valuations import bars_of

BY_ROUND = {
    # The models that a site received: 0 before the first round, the last after all rounds.
    "dice": ("Validation Dice", "rounds finished"),
    "weights": ("Aggregation weight", "round"),
    "contributions": ("Contribution", "round"),
}
"""Series of a site -> title of its drawing, and what its numbers of rounds count."""


def plots(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows as plots.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.

    Returns:
        ``"figures"``, ``None`` for one without points; ``"line_plots"`` and ``"heat_maps"`` of the
        strategies' own quantities; ``"valued"``, by strategy.
    """
    sites = list(report["sites"])
    series = series_by_round(report)
    figures = {
        "free-riders": small_multiples(
            series_of(report, "free_rider_scores"), sites, y="Free-rider score"
        ),
        "similarity": _similarity(report),
        "credit": _credit(report),
    }
    for key, (title, x) in BY_ROUND.items():
        figures[key] = small_multiples(series[key], sites, y=title, x=x)

    # Strategies that share a quantity share a figure of its rounds.
    shared: dict[tuple[str, str], tuple[Quantity, dict[str, Any]]] = {}
    for strategy, name, quantity, found in quantities_of(report, "by_round"):
        _, by_strategy = shared.setdefault((name, quantity.meaning), (quantity, {}))
        by_strategy[strategy] = found
    lines = []
    for quantity, by_strategy in shared.values():
        lines.append((quantity, small_multiples(by_strategy, sites, y=quantity.axis)))

    maps = []
    for strategy, _, quantity, found in quantities_of(report, "last_round"):
        labels = {key: label_of(key, quantity) for key in found["keys"]}
        title = f"{quantity.title}, {strategy}, round {found['round']}"
        figure = heat_map(found["sites"], labels, title)
        maps.append((strategy, quantity, found["round"], figure))

    valued = {}
    for name, found in report["strategies"].items():
        if found["valuations"]:
            valued[name] = bars(bars_of(found), list(found["sites"]), f"Shares of worth, {name}")
    return {"figures": figures, "line_plots": lines, "heat_maps": maps, "valued": valued}


def over_trainings(runs: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """Several seeds or folds as one series: the mean, and a band from the least to the most.

    Args:
        runs: of each training, site -> points ``{"round", "value"}``.

    Returns:
        site -> points with ``"least"`` and ``"most"``, of the rounds that every training has.

    >>> one = {"elm": [{"round": 0, "value": 0.25}, {"round": 1, "value": 0.5}]}
    >>> over_trainings([one, {"elm": [{"round": 0, "value": 0.75}]}])
    {'elm': [{'round': 0, 'value': 0.5, 'least': 0.25, 'most': 0.75}]}
    """
    values: dict[str, dict[int, list[float]]] = {}
    for by_site in runs:
        for site, points in by_site.items():
            for point in points:
                values.setdefault(site, {}).setdefault(point["round"], []).append(point["value"])
    series: dict[str, Any] = {}
    for site, by_round in values.items():
        series[site] = []
        for number, found in sorted(by_round.items()):
            if len(found) == len(runs):
                point = {"round": number, "value": mean(found)}
                series[site].append({**point, "least": min(found), "most": max(found)})
    return series


def series_by_round(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The series of :data:`BY_ROUND`; contributions of the strategies that estimate some."""
    return {
        "dice": series_of(report, "dice"),
        "weights": series_of(report, "weights"),
        "contributions": series_of(report, "contributions", only="estimates_contributions"),
    }


def series_of(report: Mapping[str, Any], key: str, only: str | None = None) -> dict[str, Any]:
    """Strategy -> one of its series by round; trainings that differ by seed or fold are one.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        key: of the series.
        only: a key of a strategy's results that must hold; ``None``: all strategies.
    """
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, found in report["strategies"].items():
        if only is not None and not found[only]:
            continue
        same = (found["method"], *found["repeats"])
        alike.setdefault(same, []).append(name)

    series: dict[str, Any] = {}
    for (method, *_), names in alike.items():
        runs = [report["strategies"][name] for name in names]
        trainings = {(str(run["seed"]), str(run["fold"])) for run in runs}
        points = [run["series"][key] for run in runs]
        if len(names) < 2 or len(trainings) < len(names):
            series.update(zip(names, points))
            continue
        series[f"{method}, {len(names)} trainings"] = over_trainings(points)
    return series


def _similarity(report: Mapping[str, Any]) -> Figure | None:
    """The map of the strategy that the report is about."""
    name = report["focus"]
    found = None if name is None else report["strategies"][name]["similarity"]
    if found is None:
        return None
    values = {}
    for site, row in zip(found["sites"], found["cosines"]):
        values[site] = dict(zip(found["sites"], row))
    labels = {site: site for site in found["sites"]}
    return heat_map(values, labels, f"Mean cosine of the sites' updates, {name}")


def _credit(report: Mapping[str, Any]) -> Figure | None:
    """Share of the images beside the share of the contributions, of the same strategy."""
    name = contributor_of(report, report["focus"])
    if name is None:
        return None
    rules = {}
    for rule in report["strategies"][name]["credit"]:
        if rule["shares"]:
            rules[rule["name"]] = rule["shares"]
    if not rules:
        return None
    return bars(rules, list(report["strategies"][name]["sites"]), f"Shares by rule, {name}")
