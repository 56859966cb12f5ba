# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison over seeds: one HTML file that works offline, with its plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.figures import Figure, bars, intervals, small_multiples
from monai_fairfl.report.page import functions_of_rows, has_jinja
from monai_fairfl.report.plots import BY_ROUND
from monai_fairfl.report.repeated_tables import (
    metric_words,
    pairs_table,
    remarks_of,
    sites_table,
    strategies_table,
)
from monai_fairfl.report.templates import filled
from monai_fairfl.report.verdicts import RULE

TEMPLATE = "comparison.html.jinja"

INTERVAL = (
    "The interval is a paired bootstrap over seeds, then over cases within the hospital. It is "
    "never narrower than that over the cases alone (Student's t), which it is with one seed. With "
    "few seeds it is too narrow."
)


def render_comparison(comparison: Mapping[str, Any]) -> str:
    """The comparison as one HTML file.

    Style and drawings are inside, and the file's own policy forbids loading more.

    Args:
        comparison: what :func:`~monai_fairfl.report.repeated.write_comparison` returns.

    Raises:
        ConfigError: when jinja2 is not installed.
    """
    if not has_jinja():
        raise ConfigError(
            "comparison.html needs jinja2; all other files are written without it: "
            'pip install "monai_fairfl[report]"'
        )
    sections = []
    for metric, found in comparison["metrics"].items():
        of_pairs = {}
        for pair in found["pairs"]:
            of_pairs[f"{pair['strategy']} less {pair['reference']}"] = pair["difference"]
        by_site = {each["strategy"]: each["by_site"] for each in found["strategies"]}
        words = metric_words(metric)
        sections.append(
            {
                "title": words,
                "tables": [
                    strategies_table(metric, found),
                    pairs_table(metric, found),
                    sites_table(metric, found),
                ],
                "figures": [
                    intervals(of_pairs, f"Difference of {words}"),
                    bars(by_site, list(found["cases"]), words),
                ],
            }
        )

    decision = comparison.get("decision")
    changes = comparison.get("changes")
    hospitals = decision["hospitals"].values() if decision else ()
    values = {
        "plan": comparison["plan"],
        "sections": sections,
        "remarks": remarks_of(comparison),
        "decision": decision,
        "contributions": _contributions(decision),
        "changes": changes,
        "first_look": comparison.get("first_look", []),
        "by_round": _by_round(comparison),
        "rule": RULE,
        "interval": INTERVAL,
    }
    return filled(TEMPLATE, {**values, **functions_of_rows(hospitals, changes)})


def _contributions(decision: Mapping[str, Any] | None) -> Figure | None:
    """A row for each hospital: its contribution with its range; ``None`` where none is known."""
    if decision is None:
        return None
    rows = {}
    ranges = set()
    for site, found in decision["contributions"]["sites"].items():
        if found["value"] is None:
            continue
        rows[site] = {"estimate": found["value"], "low": found["least"], "high": found["most"]}
        if found["range_of"]:
            ranges.add(found["range_of"])
    if not rows:
        return None
    title = decision["contributions"]["source"]
    if ranges:
        title = f"{title}, with the range over {' or '.join(sorted(ranges))}"
    return intervals(rows, title)


def _by_round(comparison: Mapping[str, Any]) -> dict[str, Figure]:
    """Title -> the means and bands of one quantity by round."""
    figures = {}
    sites = set(comparison["metrics"][comparison["main"]]["cases"])
    for of_strategies in comparison.get("series", {}).values():
        for of_sites in of_strategies.values():
            sites.update(of_sites)
    for key, (title, x) in BY_ROUND.items():
        series = comparison.get("series", {}).get(key, {})
        drawn = small_multiples(series, sorted(sites), y=title, x=x)
        if drawn is not None:
            figures[f"{title} by round"] = drawn
    return figures
