# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The report's plots: small multiples, one panel per strategy, one colour per site everywhere."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

__all__ = ["PALETTE", "contribution_figure", "dice_figure", "small_multiples", "weight_figure"]

# Okabe and Ito's colours for all kinds of sight (jfly.uni-koeln.de/color), yellow left out: too faint on white
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", *qualitative.Dark24]
DASHES = ["solid", "dash", "dot", "dashdot"]
PANEL, ABOVE, BETWEEN, BELOW = 210, 40, 86, 84  # heights in pixels: titles above, axis and legend below


def dice_figure(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Validation Dice of each site by rounds finished."""
    return small_multiples(report, "dice", "Validation Dice", "rounds finished", bands=False)


def weight_figure(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Aggregation weights by round."""
    return small_multiples(report, "weights", "Aggregation weight", "round", bands=False)


def contribution_figure(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Contributions by round, with a band of one standard error where there is one."""
    return small_multiples(report, "contributions", "Contribution", "round", bands=True)


def small_multiples(report: Mapping[str, Any], key: str, y: str, x: str, bands: bool) -> dict[str, Any] | None:
    """One panel per strategy that has points of ``key``, one line per site; ``None`` when none has.

    Plotly reads names as its own markup, so they are escaped here once more than the page does.

    Args:
        report: of :func:`~monai_fairfl.report.write_report`.
        key: of ``report["strategies"][name]["series"]``.
        y: title of the shared y axis.
        x: title of the x axes.
        bands: draw value plus and minus one standard error.

    Returns:
        Plotly's figure as plain JSON.
    """
    series = {name: found["series"][key] for name, found in report["strategies"].items()}
    series = {name: sites for name, sites in series.items() if any(sites.values())}
    if not series:
        return None
    across = 2 if len(series) == 4 else min(3, len(series))
    down = math.ceil(len(series) / across)
    inner = down * PANEL + (down - 1) * BETWEEN
    titles = [html.escape(name, quote=False) for name in series]
    figure = make_subplots(
        down,
        across,
        shared_yaxes="all",
        subplot_titles=titles,
        horizontal_spacing=0.03,
        vertical_spacing=BETWEEN / inner,
    )
    for panel, sites in enumerate(series.values()):
        for number, site in enumerate(report["sites"]):
            points = sites.get(site) or []
            for trace in _traces(site, points, number, bands):
                trace.showlegend = trace.showlegend and panel == 0
                figure.add_trace(trace, panel // across + 1, panel % across + 1)
    figure.update_layout(
        template="plotly_white", height=ABOVE + inner + BELOW, margin={"l": 60, "r": 16, "t": ABOVE, "b": BELOW},
        font={"family": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif", "size": 12},
        legend={"orientation": "h", "yanchor": "top", "y": -50 / inner, "x": 0, "font": {"size": 13}},
    )  # fmt: skip
    figure.update_annotations(font_size=14)
    axis = {"title_font_size": 13, "linecolor": "#b9c2cc", "automargin": False}
    figure.update_xaxes(title_text=x, title_standoff=4, rangemode="tozero", tickformat="d", nticks=8, **axis)
    figure.update_yaxes(title_text=y, col=1, **axis)
    return json.loads(figure.to_json())


def _traces(site: str, points: Sequence[Mapping[str, Any]], number: int, bands: bool) -> list[go.Scatter]:
    colour, name = PALETTE[number % len(PALETTE)], html.escape(site, quote=False)
    x, y = [point["round"] for point in points], [point["value"] for point in points]
    line = {"color": colour, "width": 2, "dash": DASHES[number // len(PALETTE) % len(DASHES)]}
    hover = f"{name}<br>%{{x}}: %{{y:.3f}}<extra></extra>"
    known = [point for point in points if bands and point.get("stderr") is not None]
    traces = [
        go.Scatter(
            x=x, y=y, name=name, legendgroup=name, mode="lines+markers", line=line, marker={"size": 5},
            hovertemplate=hover, showlegend=True,
        )
    ]  # fmt: skip
    if known:
        upper = [point["value"] + point["stderr"] for point in known]
        lower = [point["value"] - point["stderr"] for point in known]
        around = [point["round"] for point in known]
        traces.insert(0, go.Scatter(
            x=around + around[::-1], y=upper + lower[::-1], fill="toself", fillcolor=colour, opacity=0.15,
            line={"width": 0}, mode="lines", hoverinfo="skip", legendgroup=name, showlegend=False,
        ))  # fmt: skip
    return traces
