# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of the strategies as columns, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Groups = Sequence[Sequence[str]]
"""Names of strategies that may be compared with each other, group by group."""

NO_VALUE = "–"


@dataclass(frozen=True)
class Column:
    """One column of the comparison.

    Args:
        title: its heading.
        values: strategy -> value; a strategy without one is absent.
        best: 1 where higher is better, -1 where lower is, 0 where neither.
        digits: decimals shown.
        extra: strategy -> what is shown after the value.
        site: the column shows one site's score.
        signed: a gain, shown with its sign.
    """

    title: str
    values: Mapping[str, float]
    best: int = 0
    digits: int = 3
    extra: Mapping[str, str] = field(default_factory=dict)
    site: bool = False
    signed: bool = False

    def text(self, strategy: str) -> str:
        """The cell of ``strategy``, without what is in ``extra``.

        >>> Column("A", {"FedAvg": 0.25}, signed=True).text("FedAvg")
        '+0.250'
        """
        if strategy not in self.values:
            return NO_VALUE
        sign = "+" if self.signed else ""
        return f"{self.values[strategy]:{sign}.{self.digits}f}"

    def winners(self, groups: Groups) -> set[str]:
        """The best of each group, with those that look the same; none where all look the same.

        >>> column = Column("Mean", {"A": 0.8, "B": 0.9, "C": 0.90001, "D": 0.95}, best=1)
        >>> sorted(column.winners([["A", "B", "C"], ["D"]]))
        ['B', 'C']
        """
        winners: set[str] = set()
        if self.best == 0:
            return winners
        for names in groups:
            shown = {}
            for name in names:
                if name in self.values:
                    shown[name] = self.best * round(self.values[name], self.digits)
            if len(set(shown.values())) < 2:
                continue
            top = max(shown.values())
            winners.update(name for name, value in shown.items() if value == top)
        return winners


def columns(report: Mapping[str, Any]) -> list[Column]:
    """The whole comparison: each site, how well and evenly the sites are served, what follows."""
    return [*site_columns(report), *fairness_columns(report), *collaboration_columns(report)]


def site_columns(report: Mapping[str, Any]) -> list[Column]:
    """The Dice of each site with its standard error, one column per site."""
    table = []
    for site in report["sites"]:
        values = {}
        errors = {}
        for name, found in report["strategies"].items():
            score = _score_of(found, site)
            if score is None:
                continue
            values[name] = score["value"]
            if score["stderr"] is not None:
                errors[name] = f"± {score['stderr']:.3f}"
        table.append(Column(site, values, best=1, extra=errors, site=True))
    return table


def fairness_columns(report: Mapping[str, Any]) -> list[Column]:
    """How well, and how evenly, the sites are served; then the mean of each group of sites."""
    table = [
        Column("Mean", _performance(report, "mean"), best=1),
        Column("Std", _performance(report, "std"), best=-1),
        Column(
            "Worst",
            _performance(report, "worst"),
            best=1,
            extra=_performance(report, "worst_client"),
        ),
        Column("Gap", _performance(report, "gap"), best=-1),
        Column("Jain index", _performance(report, "jain"), best=1, digits=4),
    ]
    for group, sites in report["groups"].items():
        means = {}
        for name, found in report["strategies"].items():
            scores = [_score_of(found, site) for site in sites]
            values = [score["value"] for score in scores if score is not None]
            if values:
                means[name] = sum(values) / len(values)
        table.append(Column(f"Mean, {group}", means, best=1))
    return table


def collaboration_columns(report: Mapping[str, Any]) -> list[Column]:
    """How a site's score follows what it reaches alone; empty without Standalone among the runs."""
    correlations = {}
    p_values = {}
    distances = {}
    is_known = False
    for name, found in report["strategies"].items():
        collaboration = found["collaboration"]
        if collaboration is None:
            continue
        is_known = True
        if collaboration["pearson"] is not None:
            correlations[name] = collaboration["pearson"]
        if collaboration["p_value"] is not None:
            p_values[name] = f"p = {collaboration['p_value']:.2g}"
        if collaboration["euclid"] is not None:
            distances[name] = collaboration["euclid"]
    if not is_known:
        return []
    return [
        Column("Pearson ×100", correlations, best=1, digits=1, extra=p_values),
        Column("Euclid (points)", distances, digits=1),
    ]


def gain_columns(report: Mapping[str, Any]) -> list[Column]:
    """What each site gains over training alone, one column per site."""
    table = []
    for site in report["sites"]:
        values = {}
        noise = {}
        for name, found in report["strategies"].items():
            gain = found["sites"].get(site, {}).get("gain")
            if gain is not None:
                values[name] = gain["value"]
                noise[name] = _noise(gain)
        table.append(Column(site, values, extra=noise, site=True, signed=True))
    return table


def comparable(report: Mapping[str, Any]) -> list[str]:
    """Strategies whose scores are of the same measurement and of all sites of their group."""
    return [name for name, found in report["strategies"].items() if found["comparable"]]


def judged_groups(report: Mapping[str, Any]) -> list[list[str]]:
    """The strategies among which a best one may be named, group by group.

    They are comparable, judged, and of the same data, split and seed.
    """
    groups = []
    for names in report["compared"]:
        judged = []
        for name in names:
            found = report["strategies"][name]
            if found["comparable"] and found["judged"]:
                judged.append(name)
        if len(judged) > 1:
            groups.append(judged)
    return groups


def _score_of(strategy: Mapping[str, Any], site: str) -> Mapping[str, Any] | None:
    """The score of a site; ``None`` where it has none, or is not of that run."""
    return strategy["sites"].get(site, {}).get("score")


def _performance(report: Mapping[str, Any], key: str) -> dict[str, Any]:
    """strategy -> one measure of its performance, where that is known."""
    values = {}
    for name, found in report["strategies"].items():
        performance = found["performance"]
        if performance is not None and performance[key] is not None:
            values[name] = performance[key]
    return values


def _noise(gain: Mapping[str, Any]) -> str:
    """The standard error of a gain, and whether the gain is within it."""
    if gain["stderr"] is None:
        return "no std. error"
    within_noise = ", within noise" if gain["within_noise"] else ""
    return f"± {gain['stderr']:.3f}{within_noise}"
