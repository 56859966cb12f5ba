# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which plots the page has; :mod:`~monai_fairfl.report.figures` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.report.details import heat_maps, label_of, line_plots
from monai_fairfl.report.figures import bars, heat_map, small_multiples
from monai_fairfl.report.valuations import bars_of


def plots(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows as plots, each as plain JSON for plotly.js.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.

    Returns:
        ``"figures"``, ``None`` for one without points; ``"line_plots"`` and ``"heat_maps"`` of the
        strategies' own quantities; ``"valued"``, by strategy.
    """
    sites = list(report["sites"])
    figures = {
        "dice": small_multiples(
            _series(report, "dice"), sites, y="Validation Dice", x="rounds finished"
        ),
        "weights": small_multiples(_series(report, "weights"), sites, y="Aggregation weight"),
        "contributions": small_multiples(
            _series(report, "contributions"), sites, y="Contribution", bands=True
        ),
        "free-riders": small_multiples(
            _series(report, "free_rider_scores"), sites, y="Free-rider score"
        ),
    }

    lines = []
    for drawn in line_plots(report):
        lines.append((drawn, small_multiples(drawn.found, sites, y=drawn.quantity.axis)))

    maps = []
    for drawn in heat_maps(report):
        for name, found in drawn.found.items():
            labels = {key: label_of(key, drawn.quantity) for key in found["keys"]}
            maps.append((name, drawn, found["round"], heat_map(found["sites"], labels)))

    valued = {}
    for name, found in report["strategies"].items():
        if found["valuations"]:
            valued[name] = bars(bars_of(found), list(found["sites"]), y="Share")
    return {"figures": figures, "line_plots": lines, "heat_maps": maps, "valued": valued}


def _series(report: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Strategy -> one of its series by round."""
    return {name: found["series"][key] for name, found in report["strategies"].items()}
