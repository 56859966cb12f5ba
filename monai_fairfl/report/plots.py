# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The report's drawings: matplotlib's SVG, whose colours follow the page's light or dark style.

Each is one panel that stands by itself, so that a phone shows one below the other. It has a title
and a text with its numbers, for readers who cannot see it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_fairfl.report.scores import called, half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, GRID = "#010101", "#020202", "#030303"
COLOURS = [f"#0401{number:02d}" for number in range(8)]
"""Placeholders of the page's colours: the style of the page has them for light and dark."""

VARIABLES = {INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--grid)"}
VARIABLES |= {colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)}

STYLE: Any = {
    "svg.fonttype": "none",  # letters, not their outlines
    "svg.hashsalt": "monai_fairfl",  # equal numbers give equal files
    "text.parse_math": False,  # a name from outside may have a dollar
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}

LONGEST = 18
"""Letters of a name in a drawing; longer ones are cut, and whole in the text."""


def axes_of(width: float, height: float, left: float = 0.6, top: float = 0.1) -> Axes:
    """Axes of a drawing of their own; all in inches. Fixed margins are drawn in half the time."""
    from matplotlib.figure import Figure

    place = (left / width, 0.45 / height, 1 - (left + 0.1) / width, 1 - (top + 0.45) / height)
    return Figure(figsize=(width, height)).add_axes(place)


def svg_of(axes: Axes, title: str, text: str) -> str:
    """A drawing as an element of a page.

    Args:
        axes: of :func:`axes_of`.
        title: what is drawn.
        text: its numbers.
    """
    stream = io.StringIO()
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    # The page has the one style, and its policy loads nothing; a hundredth is fine enough.
    unused = "<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->|\n *"
    svg = re.sub(unused, " ", stream.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"(\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r"#0[1-4]\d{4}", lambda found: VARIABLES[found.group()], svg)
    width, height = 72 * figure.get_size_inches()
    return (
        '<svg role="img" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width * 4 / 3:.0f}px">'
        f"<title>{escape(title)}</title><desc>{escape(text)}</desc>"
        + svg[svg.index(">", svg.index("<svg")) + 1 :]
    )


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def dots(rows: Mapping[str, Mapping[str, Any]], title: str) -> str:
    """A row for each hospital: a dot for each strategy, with the 95 % interval of its cases.

    A Dice is in [0, 1]: intervals and axis end there.

    Args:
        rows: hospital, from top to bottom -> strategy -> its score, or ``None``.
        title: what is drawn; the axis's name, too.
    """
    import matplotlib

    shown = [_cut(site) for site in rows]
    names = list(next(iter(rows.values())))
    words = []
    for site, scores in rows.items():
        known = [f"{name} {score['value']:.3f}" for name, score in scores.items() if score]
        words.append(f"{site}: {', '.join(known)}")
    with matplotlib.rc_context(STYLE):
        left = 0.2 + 0.075 * max(map(len, shown))
        axes = axes_of(5.6, 0.9 + 0.36 * len(rows), left, top=0.35)
        for number, name in enumerate(names):
            scored = [(place, s[name]) for place, s in enumerate(rows.values()) if s[name]]
            # Strategies of a row lie side by side.
            shift = 0.2 * (number - (len(names) - 1) / 2)
            values = np.array([score["value"] for _, score in scored])
            widths = [half_width(score["stderr"], score["n"]) or 0.0 for _, score in scored]
            axes.errorbar(
                values,
                [place + shift for place, _ in scored],
                xerr=np.minimum(widths, [values, 1 - values]),
                fmt="os^Dv"[number % 5],
                color=COLOURS[number % 8],
                label=_cut(called(name)),
                markersize=5,
                elinewidth=1.2,
                clip_on=False,
            )
        axes.set_yticks(range(len(rows)), shown, color=INK)
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=title, xlim=np.clip(axes.get_xlim(), 0, 1))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(names), frameon=False)
        return svg_of(axes, title, "; ".join(words))


def lines(
    series: Mapping[str, Sequence[Mapping[str, Any]]], title: str, x: str, y: str
) -> str | None:
    """A line for each name; ``None`` without two points.

    Args:
        series: name -> points ``{"round", "value"}``. Its place among the names is its colour.
        title: what is drawn.
        x: name of the axis of the rounds.
        y: name of the other axis, with its unit.
    """
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    words = []
    for name, points in series.items():
        ends = [f"{p['value']:.3f} at {x} {p['round']}" for p in (*points[:1], *points[-1:])]
        words.append(f"{name}: {', '.join(ends)}")
    if max((len(points) for points in series.values()), default=0) < 2:
        return None
    with matplotlib.rc_context(STYLE):
        axes = axes_of(3.3, 2.2)
        for number, points in enumerate(series.values()):
            rounds = [point["round"] for point in points]
            colour, dashes = COLOURS[number % 8], ("-", "--", ":", "-.")[number // 8 % 4]
            values = [point["value"] for point in points]
            axes.plot(rounds, values, dashes, color=colour, linewidth=1.4, gid=f"line {number}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=x, ylabel=y)
        return svg_of(axes, title, "; ".join(words))


def points(sizes: Sequence[Mapping[str, str]]) -> str:
    """The predicted against the true size of each case of a hospital.

    Args:
        sizes: rows of :data:`~monai_fairfl.metrics.pictures.COLUMNS`.
    """
    import matplotlib

    true, predicted = ([float(row[name]) for row in sizes] for name in ("reference", "prediction"))
    end = 1.05 * max(*true, *predicted)
    with matplotlib.rc_context(STYLE):
        axes = axes_of(3.3, 3.0)
        axes.plot([0, end], [0, end], color=SOFT, linewidth=0.8)
        axes.scatter(true, predicted, s=14, color=COLOURS[1])
        unit = sizes[0]["unit"]
        axes.set(xlabel=f"reference, {unit}", ylabel=f"prediction, {unit}")
        words = [f"{row['case']}: {row['reference']}, {row['prediction']}" for row in sizes]
        return svg_of(axes, "Predicted against true size of each case", "; ".join(words))
