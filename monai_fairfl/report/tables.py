# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of the strategies as columns, for the terminal and the page, and the CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from monai_fairfl.report.collect import Run
from monai_fairfl.report.scores import MEASUREMENTS
from monai_fairfl.report.series import measurement_rows
from monai_fairfl.utils.spreadsheets import csv_text

Groups = Sequence[Sequence[str]]
"""Names of strategies that may be compared with each other, group by group."""


RUN_COLUMNS = ("run", "strategy", "seed", "fold")
"""The columns of each CSV file that say which run a row is of; ``run`` is its name in the report.
"""


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
    extra: Mapping[str, str] | None = None
    site: bool = False
    signed: bool = False

    def text(self, strategy: str) -> str:
        """The cell of ``strategy``, without what is in ``extra``.

        >>> Column("A", {"FedAvg": 0.25}, signed=True).text("FedAvg")
        '+0.250'
        """
        form = f"{{:{'+' if self.signed else ''}.{self.digits}f}}"
        return form.format(self.values[strategy]) if strategy in self.values else "–"

    def winners(self, groups: Groups) -> set[str]:
        """The best of each group, ties as shown included; nobody of a group where all are alike.

        >>> column = Column("Mean", {"A": 0.8, "B": 0.9, "C": 0.90001, "D": 0.95}, best=1)
        >>> sorted(column.winners([["A", "B", "C"], ["D"]]))
        ['B', 'C']
        """
        found: set[str] = set()
        if self.best == 0:
            return found
        for names in groups:
            shown = {
                name: self.best * round(self.values[name], self.digits)
                for name in names
                if name in self.values
            }
            if len(set(shown.values())) > 1:
                top = max(shown.values())
                found.update(name for name in shown if shown[name] == top)
        return found


def columns(report: Mapping[str, Any]) -> list[Column]:
    """The comparison: one column per site, then how well and how evenly the sites are served."""
    strategies = report["strategies"]
    scores = {
        name: {s: v["score"] for s, v in found["sites"].items() if v["score"]}
        for name, found in strategies.items()
    }
    table = []
    for site in report["sites"]:
        mine = {name: found[site] for name, found in scores.items() if site in found}
        extra = {
            name: f"± {score['stderr']:.3f}"
            for name, score in mine.items()
            if score["stderr"] is not None
        }
        table.append(
            Column(
                site, {name: s["value"] for name, s in mine.items()}, best=1, extra=extra, site=True
            )
        )
    measures = {
        name: found["performance"] for name, found in strategies.items() if found["performance"]
    }
    for title, key, best in (
        ("Mean", "mean", 1),
        ("Std", "std", -1),
        ("Worst", "worst", 1),
        ("Gap", "gap", -1),
    ):
        extra = {name: p["worst_client"] for name, p in measures.items()} if key == "worst" else {}
        table.append(Column(title, _known(measures, key), best=best, extra=extra))
    table.append(Column("Jain index", _known(measures, "jain"), best=1, digits=4))
    for group, members in report["groups"].items():
        of_group = {
            name: [found[site]["value"] for site in members if site in found]
            for name, found in scores.items()
        }
        means = {name: sum(values) / len(values) for name, values in of_group.items() if values}
        table.append(Column(f"Mean, {group}", means, best=1))
    return table + collaboration_columns(report)


def gain_columns(report: Mapping[str, Any]) -> list[Column]:
    """What each site gains over training alone, one column per site."""
    table = []
    for site in report["sites"]:
        gains = {
            name: (found["sites"].get(site) or {}).get("gain")
            for name, found in report["strategies"].items()
        }
        known = {name: gain for name, gain in gains.items() if gain}
        extra = {name: _noise(gain) for name, gain in known.items()}
        table.append(Column(site, _known(known, "value"), extra=extra, site=True, signed=True))
    return table


def _noise(gain: Mapping[str, Any]) -> str:
    if gain["stderr"] is None:
        return "no std. error"
    return f"± {gain['stderr']:.3f}{', within noise' if gain['within_noise'] else ''}"


def collaboration_columns(report: Mapping[str, Any]) -> list[Column]:
    """How a site's score follows what it reaches alone; empty where Standalone is not among the
    runs.
    """
    found = {
        name: s["collaboration"] for name, s in report["strategies"].items() if s["collaboration"]
    }
    if not found:
        return []
    p_values = {name: f"p = {p:.2g}" for name, p in _known(found, "p_value").items()}
    pearson = Column("Pearson ×100", _known(found, "pearson"), best=1, digits=1, extra=p_values)
    return [pearson, Column("Euclid (points)", _known(found, "euclid"), digits=1)]


def comparable(report: Mapping[str, Any]) -> list[str]:
    """Strategies whose scores are of the same measurement and of all sites of their group."""
    return [name for name, found in report["strategies"].items() if found["comparable"]]


def judged_groups(report: Mapping[str, Any]) -> list[list[str]]:
    """The strategies among which a best one may be named: comparable, judged, of the same data,
    split and seed.
    """
    groups = []
    for names in report["compared"]:
        found = {name: report["strategies"][name] for name in names}
        groups.append(
            [name for name in names if found[name]["comparable"] and found[name]["judged"]]
        )
    return [names for names in groups if len(names) > 1]


def summary_table(report: Mapping[str, Any], names: Sequence[str] | None = None) -> Table:
    """The comparison for a terminal: a column per strategy, the best of each row bold where they
    may be judged.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        names: the strategies to show; ``None``: all. The best is still the best of all.
    """
    names, shown = list(report["strategies"]) if names is None else names, columns(report)
    compared, judged = comparable(report), judged_groups(report)
    table = Table(
        "",
        title=f"Dice on {MEASUREMENTS[report['measurement']]} cases of the model each site would use",
    )
    for name in names:
        apart = name not in compared
        table.add_column(Text(name + (" *" if apart else "")), justify="right")
        if apart:
            table.caption = "* not compared: unfinished (validation Dice so far), or of fewer sites"
    for row, following in zip(shown, [*shown[1:], None]):
        winners = row.winners(judged)
        cells = [
            Text(row.text(name), style="bold green" if name in winners else "") for name in names
        ]
        table.add_row(
            Text(row.title), *cells, end_section=row.site and not (following and following.site)
        )
    return table


def blocks(report: Mapping[str, Any], width: int) -> Iterator[list[str]]:
    """The strategies in groups whose columns of :func:`summary_table` fit side by side.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        width: of the terminal, in characters.
    """
    first = used = max(len(column.title) for column in columns(report)) + 4
    block: list[str] = []
    for name in report["strategies"]:
        wide = max(len(name) + 2, 6) + 3
        if block and used + wide > width:
            yield block
            block, used = [], first
        block.append(name)
        used += wide
    yield block


def metrics_csv(runs: Sequence[Run]) -> str:
    """Every measurement of every run, one row per class; see
    :func:`~monai_fairfl.report.series.measurement_rows`.
    """
    fields = (*RUN_COLUMNS, "site", "round", "measurement", "class", "value", "stderr", "n")
    return csv_text(fields, (row for run in runs for row in measurement_rows(run)))


def contributions_csv(report: Mapping[str, Any]) -> str:
    """Contributions and aggregation weights by round; ``weight_is`` says when a weight is a mean
    over layers.
    """
    fields = (
        *RUN_COLUMNS,
        "round",
        "site",
        "contribution",
        "stderr",
        "aggregation_weight",
        "weight_is",
    )
    return csv_text(fields, _contribution_rows(report))


def _contribution_rows(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, found in report["strategies"].items():
        about = {
            "run": name,
            "strategy": found["method"],
            "seed": found["seed"],
            "fold": found["fold"],
        }
        layers = found["layers_averaged"]
        meaning = "of the whole model" if layers is None else f"mean over {layers} layers"
        rows: dict[tuple[int, str], dict[str, Any]] = {}
        for site, points in found["series"]["contributions"].items():
            for point in points:
                rows[point["round"], site] = {
                    "contribution": point["value"],
                    "stderr": point["stderr"],
                }
        for site, points in found["series"]["weights"].items():
            for point in points:
                weight = {"aggregation_weight": point["value"], "weight_is": meaning}
                rows.setdefault((point["round"], site), {}).update(weight)
        for (number, site), row in sorted(rows.items()):
            yield {**about, "round": number, "site": site, **row}


def _known(measures: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, float]:
    return {name: found[key] for name, found in measures.items() if found[key] is not None}
