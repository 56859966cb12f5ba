# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
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

# Okabe and Ito's colours for all kinds of sight (jfly.uni-koeln.de/color), yellow left out: too
# faint on white
PALETTE = [
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#444444",
    *qualitative.Dark24,
]
DASHES = ["solid", "dash", "dot", "dashdot"]
PANEL, ABOVE, BETWEEN, BELOW = (
    210,
    40,
    86,
    84,
)  # heights in pixels: titles above, axis and one line of legend below
LINE, ENTRY, LETTER, PAGE = (
    30,
    50,
    8,
    1050,
)  # of the legend in pixels: a line's height, an entry, a letter, the width
ROW, COLUMN = 26, 84  # a cell of a heat map, in pixels
FONT = {
    "family": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif",
    "size": 12,
}


def small_multiples(
    series: Mapping[str, Mapping[str, Any]],
    sites: Sequence[str],
    y: str,
    x: str = "round",
    bands: bool = False,
) -> dict[str, Any] | None:
    """One panel per strategy that has points, one line per site; ``None`` when none has.

    Plotly reads names as its own markup, so they are escaped here once more than the page does.

    Args:
        series: strategy -> site -> points ``{"round", "value"}``.
        sites: every site of the report; its place in this list is its colour.
        y: title of the shared y axis.
        x: title of the x axes.
        bands: draw value plus and minus one standard error, ``"stderr"`` of the points.

    Returns:
        Plotly's figure as plain JSON.
    """
    series = {name: found for name, found in series.items() if any(found.values())}
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
    named: set[str] = set()
    for panel, found in enumerate(series.values()):
        for number, site in enumerate(sites):
            points = found.get(site) or []
            traces, known = _traces(site, points, number, bands), site in named
            named |= {site} if points else set()
            for trace in traces:
                trace.showlegend = trace.showlegend and bool(points) and not known
                figure.add_trace(trace, panel // across + 1, panel % across + 1)
    below = BELOW + LINE * (_lines_of_legend(sites) - 1)
    figure.update_layout(
        template="plotly_white", height=ABOVE + inner + below, margin={"l": 60, "r": 16, "t": ABOVE, "b": below},
        font=FONT,
        legend={"orientation": "h", "yanchor": "top", "y": -50 / inner, "x": 0, "font": {"size": 13}},
    )  # fmt: skip
    figure.update_annotations(font_size=14)
    last = max(
        point["round"] for found in series.values() for points in found.values() for point in points
    )
    whole = 1 if last < 8 else None  # else plotly puts ticks at half rounds, too
    axis = {"title_font_size": 13, "linecolor": "#b9c2cc", "automargin": False}
    figure.update_xaxes(
        title_text=x,
        title_standoff=4,
        rangemode="tozero",
        tickformat="d",
        nticks=8,
        dtick=whole,
        **axis,
    )
    figure.update_yaxes(exponentformat="power")
    figure.update_yaxes(title_text=html.escape(y, quote=False), col=1, **axis)
    return json.loads(figure.to_json())


def _lines_of_legend(names: Sequence[str]) -> int:
    """How many lines the entries take on a page of the usual width; all are as wide as the longest."""
    across = max(1, PAGE // (ENTRY + LETTER * max(map(len, names), default=0)))
    return max(1, math.ceil(len(names) / across))


def bars(values: Mapping[str, Mapping[str, float]], sites: Sequence[str], y: str) -> dict[str, Any]:
    """Groups of bars: a group for each site, a colour for each name.

    Args:
        values: name -> site -> value.
        sites: from left to right.
        y: title of the axis.

    Returns:
        Plotly's figure as plain JSON.
    """
    figure = go.Figure()
    labels = [html.escape(site, quote=False) for site in sites]
    for number, (name, found) in enumerate(values.items()):
        figure.add_bar(
            x=labels, y=[found.get(site) for site in sites], name=html.escape(name, quote=False),
            marker_color=PALETTE[number % len(PALETTE)], hovertemplate="%{x}: %{y:.3f}",
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white", font=FONT, height=PANEL + BELOW + 24 * len(values), barmode="group", showlegend=True,
        margin={"l": 60, "r": 16, "t": 16, "b": 8}, legend={"yanchor": "bottom", "y": 1, "x": 0, "font": {"size": 13}},
    )  # fmt: skip
    figure.update_yaxes(title_text=html.escape(y, quote=False), rangemode="tozero")
    return json.loads(figure.to_json())


def heat_map(
    values: Mapping[str, Mapping[str, float | None]], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Sites across, classes or layers down, the value in each cell; values of both signs get two
    colours around 0.

    Args:
        values: site -> class or layer -> value.
        labels: class or layer -> how it is called, from top to bottom.

    Returns:
        Plotly's figure as plain JSON.
    """
    sites = [html.escape(site, quote=False) for site in values]
    rows = [html.escape(label, quote=False) for label in labels.values()]
    cells = [[found.get(key) for found in values.values()] for key in labels]
    known = [value for row in cells for value in row if value is not None]
    signed = (
        {"colorscale": "RdBu", "zmid": 0} if min(known, default=0) < 0 else {"colorscale": "Blues"}
    )
    figure = go.Figure(
        go.Heatmap(
            z=cells, x=list(range(len(sites))), y=list(range(len(rows))), xgap=2, ygap=2, **signed,
            text=[[f"{site}, {row}" for site in sites] for row in rows], texttemplate="%{z:.3f}",
            hovertemplate="%{text}: %{z:.5g}<extra></extra>", colorbar={"thickness": 12, "outlinewidth": 0},
        )
    )  # fmt: skip
    figure.update_layout(
        template="plotly_white", font=FONT, margin={"l": 8, "r": 8, "t": 34, "b": 8}, height=60 + ROW * len(rows),
        width=120 + COLUMN * len(sites) + 7 * max((len(label) for label in labels.values()), default=0),
    )  # fmt: skip
    axis = {"showgrid": False, "zeroline": False, "automargin": True, "tickmode": "array"}
    figure.update_xaxes(side="top", tickvals=list(range(len(sites))), ticktext=sites, **axis)
    figure.update_yaxes(
        autorange="reversed", tickvals=list(range(len(rows))), ticktext=rows, **axis
    )
    return json.loads(figure.to_json())


def _traces(
    site: str, points: Sequence[Mapping[str, Any]], number: int, bands: bool
) -> list[go.Scatter]:
    colour, name = PALETTE[number % len(PALETTE)], html.escape(site, quote=False)
    x, y = [point["round"] for point in points], [point["value"] for point in points]
    line = {"color": colour, "width": 2, "dash": DASHES[number // len(PALETTE) % len(DASHES)]}
    hover = f"{name}<br>%{{x}}: %{{y:.4g}}<extra></extra>"
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
