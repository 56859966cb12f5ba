# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How the report's plots are drawn: small multiples, bars and heat maps, by plotly.

A site has one colour everywhere. Plotly reads names as its own markup, so they are escaped here
once more than the page does.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

# The colours of Okabe and Ito (jfly.uni-koeln.de/color), which all kinds of sight can distinguish.
# Yellow is left out: it is too faint on white.
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
TEMPLATE = "plotly_white"
FONT = {
    "family": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif",
    "size": 12,
}

# Heights in pixels: of a panel, of the titles above, between two rows of panels, and of the axis
# and one line of legend below.
PANEL = 210
ABOVE = 40
BETWEEN = 86
BELOW = 84

# Of the legend in pixels: height of a line, width of an entry without its name, width of a letter,
# width of the page.
LINE = 30
ENTRY = 50
LETTER = 8
PAGE = 1050

# A cell of a heat map in pixels.
ROW = 26
COLUMN = 84


def small_multiples(
    series: Mapping[str, Mapping[str, Any]],
    sites: Sequence[str],
    y: str,
    x: str = "round",
    bands: bool = False,
) -> dict[str, Any] | None:
    """One panel per strategy that has points, one line per site; ``None`` when none has.

    Args:
        series: strategy -> site -> points ``{"round", "value"}``.
        sites: every site of the report; its place in this list is its colour.
        y: title of the shared y axis.
        x: title of the x axes.
        bands: draw value plus and minus one standard error, ``"stderr"`` of the points.

    Returns:
        Plotly's figure as plain JSON.
    """
    series = {name: by_site for name, by_site in series.items() if any(by_site.values())}
    if not series:
        return None

    # At most three panels side by side; four look better two by two.
    across = 2 if len(series) == 4 else min(3, len(series))
    down = math.ceil(len(series) / across)
    inner = down * PANEL + (down - 1) * BETWEEN
    figure = make_subplots(
        down,
        across,
        shared_yaxes="all",
        subplot_titles=[_escaped(name) for name in series],
        horizontal_spacing=0.03,
        vertical_spacing=BETWEEN / inner,
    )

    # A site is in the legend once, with its first panel.
    in_legend: set[str] = set()
    for panel, by_site in enumerate(series.values()):
        row = panel // across + 1
        column = panel % across + 1
        for number, site in enumerate(sites):
            points = by_site.get(site) or []
            line = _line(site, points, number)
            line.showlegend = bool(points) and site not in in_legend
            if points:
                in_legend.add(site)
            if bands:
                band = _band(site, points, number)
                if band is not None:
                    figure.add_trace(band, row, column)
            figure.add_trace(line, row, column)

    below = BELOW + LINE * (_lines_of_legend(sites) - 1)
    figure.update_layout(
        template=TEMPLATE,
        height=ABOVE + inner + below,
        margin={"l": 60, "r": 16, "t": ABOVE, "b": below},
        font=FONT,
        legend={
            "orientation": "h",
            "yanchor": "top",
            "y": -50 / inner,
            "x": 0,
            "font": {"size": 13},
        },
    )
    figure.update_annotations(font_size=14)

    # With few rounds plotly would put ticks at half rounds, too.
    distance = 1 if _last_round(series) < 8 else None
    axis = {"title_font_size": 13, "linecolor": "#b9c2cc", "automargin": False}
    figure.update_xaxes(
        title_text=x,
        title_standoff=4,
        rangemode="tozero",
        tickformat="d",
        nticks=8,
        dtick=distance,
        **axis,
    )
    figure.update_yaxes(exponentformat="power")
    figure.update_yaxes(title_text=_escaped(y), col=1, **axis)
    return _plain_json(figure)


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
    labels = [_escaped(site) for site in sites]
    for number, (name, by_site) in enumerate(values.items()):
        figure.add_bar(
            x=labels,
            y=[by_site.get(site) for site in sites],
            name=_escaped(name),
            marker_color=PALETTE[number % len(PALETTE)],
            hovertemplate="%{x}: %{y:.3f}",
        )
    figure.update_layout(
        template=TEMPLATE,
        font=FONT,
        height=PANEL + BELOW + 24 * len(values),
        barmode="group",
        showlegend=True,
        margin={"l": 60, "r": 16, "t": 16, "b": 8},
        legend={"yanchor": "bottom", "y": 1, "x": 0, "font": {"size": 13}},
    )
    figure.update_yaxes(title_text=_escaped(y), rangemode="tozero")
    return _plain_json(figure)


def intervals(values: Mapping[str, Mapping[str, float | None]], x: str) -> dict[str, Any]:
    """A row for each estimate with its interval, and a line at 0.

    Args:
        values: name of a row, from top to bottom -> ``"estimate"``, ``"low"`` and ``"high"``; one
            whose ends are ``None`` has no interval.
        x: title of the x axis.

    Returns:
        Plotly's figure as plain JSON.
    """
    figure = go.Figure()
    estimates = []
    above = []
    below = []
    for value in values.values():
        estimate = value["estimate"] or 0.0
        high = value["high"]
        low = value["low"]
        estimates.append(estimate)
        above.append(0.0 if high is None else high - estimate)
        below.append(0.0 if low is None else estimate - low)
    figure.add_scatter(
        x=estimates,
        y=[_escaped(name) for name in values],
        error_x={"type": "data", "symmetric": False, "array": above, "arrayminus": below},
        mode="markers",
        marker={"size": 9, "color": PALETTE[0]},
        hovertemplate="%{y}: %{x:.4f}<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": "#5b6875", "width": 1, "dash": "dash"})
    figure.update_layout(
        template=TEMPLATE,
        font=FONT,
        height=ABOVE + BELOW + LINE * len(values),
        margin={"l": 8, "r": 16, "t": 16, "b": 8},
    )
    figure.update_xaxes(title_text=_escaped(x), automargin=True)
    figure.update_yaxes(autorange="reversed", automargin=True)
    return _plain_json(figure)


def heat_map(
    values: Mapping[str, Mapping[str, float | None]], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Sites across, classes or layers down, the value in each cell.

    Values of both signs get two colours around 0.

    Args:
        values: site -> class or layer -> value.
        labels: class or layer -> how it is called, from top to bottom.

    Returns:
        Plotly's figure as plain JSON.
    """
    sites = [_escaped(site) for site in values]
    rows = [_escaped(label) for label in labels.values()]
    cells = []
    names = []
    for key, row in zip(labels, rows):
        cells.append([by_key.get(key) for by_key in values.values()])
        names.append([f"{site}, {row}" for site in sites])

    known = [value for row in cells for value in row if value is not None]
    colours: dict[str, Any] = {"colorscale": "Blues"}
    if min(known, default=0) < 0:
        colours = {"colorscale": "RdBu", "zmid": 0}
    columns_at = list(range(len(sites)))
    rows_at = list(range(len(rows)))
    cell_map = go.Heatmap(
        z=cells,
        x=columns_at,
        y=rows_at,
        xgap=2,
        ygap=2,
        **colours,
        text=names,
        texttemplate="%{z:.3f}",
        hovertemplate="%{text}: %{z:.5g}<extra></extra>",
        colorbar={"thickness": 12, "outlinewidth": 0},
    )

    figure = go.Figure(cell_map)
    longest_label = max((len(label) for label in labels.values()), default=0)
    figure.update_layout(
        template=TEMPLATE,
        font=FONT,
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        height=60 + ROW * len(rows),
        width=120 + COLUMN * len(sites) + 7 * longest_label,
    )
    axis = {"showgrid": False, "zeroline": False, "automargin": True, "tickmode": "array"}
    figure.update_xaxes(side="top", tickvals=columns_at, ticktext=sites, **axis)
    figure.update_yaxes(autorange="reversed", tickvals=rows_at, ticktext=rows, **axis)
    return _plain_json(figure)


def _line(site: str, points: Sequence[Mapping[str, Any]], number: int) -> go.Scatter:
    """The line of a site.

    Args:
        site: its name.
        points: in the order of rounds.
        number: of the site, which decides its colour and dashes.
    """
    name = _escaped(site)
    dashes = DASHES[number // len(PALETTE) % len(DASHES)]
    return go.Scatter(
        x=[point["round"] for point in points],
        y=[point["value"] for point in points],
        name=name,
        legendgroup=name,
        mode="lines+markers",
        line={"color": _colour(number), "width": 2, "dash": dashes},
        marker={"size": 5},
        hovertemplate=f"{name}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
    )


def _band(site: str, points: Sequence[Mapping[str, Any]], number: int) -> go.Scatter | None:
    """One standard error around a site's line; ``None`` where no point has one."""
    known = [point for point in points if point.get("stderr") is not None]
    if not known:
        return None
    rounds = [point["round"] for point in known]
    upper = [point["value"] + point["stderr"] for point in known]
    lower = [point["value"] - point["stderr"] for point in known]

    # The outline runs along the upper edge and back along the lower one.
    return go.Scatter(
        x=rounds + rounds[::-1],
        y=upper + lower[::-1],
        fill="toself",
        fillcolor=_colour(number),
        opacity=0.15,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=_escaped(site),
        showlegend=False,
    )


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _last_round(series: Mapping[str, Mapping[str, Any]]) -> int:
    """The last round of any point."""
    last = 0
    for by_site in series.values():
        for points in by_site.values():
            for point in points:
                last = max(last, point["round"])
    return last


def _lines_of_legend(names: Sequence[str]) -> int:
    """How many lines the legend takes on a page of the usual width.

    All entries are as wide as the longest.
    """
    longest_name = max((len(name) for name in names), default=0)
    across = max(1, PAGE // (ENTRY + LETTER * longest_name))
    return max(1, math.ceil(len(names) / across))


def _escaped(name: str) -> str:
    """A name from outside without markup."""
    return html.escape(name, quote=False)


def _plain_json(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json())
