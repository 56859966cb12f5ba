# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How the report's plots are drawn: small multiples, bars, intervals and maps, as inline SVG.

Elements are built as a tree, so a name from outside can only be text. Colours are classes of the
page's style: ``c0``, ``c1``, ... for the sites, a site has one colour everywhere. Every drawing has
a title and a text with its numbers, for readers who cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

COLOURS = 8
"""Colours of the page's style; the next sites have the same ones with dashes."""

DASHES = 4

FILLS = 6
"""Colours of bars, which are of no site."""

WIDTH = 320
HEIGHT = 190
"""Of a panel, in units of its own; on the page it is as wide as its place."""

LEFT = 38
RIGHT = 12
TOP = 8
BOTTOM = 30
"""Margins of a panel, for the axes."""

MOST_WIDTH = 440
"""Pixels of a drawing of rows, whose letters would be too large on a wide page."""

MOST_POINTS = 160
"""Points of one line: a panel has not many more pixels."""

POINTS_OF_A_FIGURE = 5000
"""Points of all lines together, so that a page of many sites stays small."""

ROW = 22
"""Height of a row of bars, intervals or a map."""

LETTER = 7.4
"""Width of a letter, about."""

LONGEST = 24
"""Letters of a name in a drawing; longer ones are cut, and whole in the text."""


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Args:
        title: above it.
        svg: the drawing, markup.
    """

    title: str
    svg: str


@dataclass(frozen=True)
class Figure:
    """Panels side by side, with one legend.

    Args:
        panels: from left to right.
        legend: name -> classes of its colour; empty where rows have names of their own.
        wide: each panel takes the whole width.
    """

    panels: list[Panel]
    legend: dict[str, str] = field(default_factory=dict)
    wide: bool = False


def small_multiples(
    series: Mapping[str, Mapping[str, Any]], sites: Sequence[str], y: str, x: str = "round"
) -> Figure | None:
    """One panel for each strategy that has points, one line for each site; ``None`` without any.

    All panels have the same axes.

    Args:
        series: strategy -> site -> points ``{"round", "value"}``; a point with ``"least"`` and
            ``"most"`` has a band.
        sites: every site of the report; its place in this list is its colour.
        y: what the lines are of.
        x: title of the x axes.
    """
    drawn = {name: by_site for name, by_site in series.items() if any(by_site.values())}
    if not drawn:
        return None
    numbers = {site: number for number, site in enumerate(sites)}
    lines = 0
    values = []
    last = 0
    for by_site in drawn.values():
        for points in by_site.values():
            lines += bool(points)
            for point in points:
                values += [point.get("least", point["value"]), point.get("most", point["value"])]
                last = max(last, point["round"])
    most_points = max(2, min(MOST_POINTS, POINTS_OF_A_FIGURE // lines))
    scale = _Scale.of(values, last)

    panels = []
    legend = {}
    for name, by_site in drawn.items():
        shown = {site: points for site, points in by_site.items() if points}
        for site in shown:
            legend[site] = _colour(numbers[site])
        svg = _svg(WIDTH, HEIGHT, f"{y} by {x}, {name}", _text_of_lines(shown, x))
        scale.draw_axes(svg, x)
        for site, points in shown.items():
            _draw_line(svg, scale, _thinned(points, most_points), _colour(numbers[site]))
        panels.append(Panel(name, tostring(svg, encoding="unicode")))
    ordered = {site: legend[site] for site in sites if site in legend}
    return Figure(panels, ordered)


def bars(
    values: Mapping[str, Mapping[str, float | None]], sites: Sequence[str], title: str
) -> Figure:
    """Bars from left to right: a group for each site, a colour for each name.

    Args:
        values: name -> site -> value.
        sites: from top to bottom.
        title: what is drawn.
    """
    known = [value for by_site in values.values() for value in by_site.values()]
    largest = max((value for value in known if value is not None), default=0.0) or 1.0
    left = _room_for(sites)
    # As high as the letters of the numbers beside them.
    thickness = 12
    group = thickness * len(values) + 8
    height = group * len(sites) + 6

    svg = _svg(WIDTH, height, title, _text_of_rows(values, dict(zip(sites, sites)), 3))
    svg.set("style", f"max-width:{MOST_WIDTH}px")
    for row, site in enumerate(sites):
        top = 3 + row * group
        _text(svg, left - 6, top + group / 2, site, "row")
        for number, by_site in enumerate(values.values()):
            value = by_site.get(site)
            if value is None:
                continue
            length = max(0.0, value) / largest * (WIDTH - left - 44)
            y = top + number * thickness
            _rect(svg, left, y, length, thickness - 1.5, f"bar f{number % FILLS}")
            _text(svg, left + length + 3, y + thickness / 2, f"{value:.2f}", "small start")
    legend = {name: f"f{number % FILLS}" for number, name in enumerate(values)}
    return Figure([Panel("", tostring(svg, encoding="unicode"))], legend)


def intervals(values: Mapping[str, Mapping[str, float | None]], title: str) -> Figure:
    """A row for each estimate with its interval, and a line at 0.

    Args:
        values: name of a row, from top to bottom -> ``"estimate"``, ``"low"`` and ``"high"``; one
            whose ends are ``None`` has no interval.
        title: what is drawn.
    """
    ends = [0.0]
    for value in values.values():
        ends += [end for end in value.values() if end is not None]
    low, high = _with_room(min(ends), max(ends))
    left = _room_for(values)
    height = ROW * len(values) + BOTTOM

    def place(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT)

    svg = _svg(WIDTH, height, title, _text_of_intervals(values))
    svg.set("style", f"max-width:{MOST_WIDTH}px")
    for tick in nice_ticks(low, high, 4):
        _line(svg, place(tick), 0, place(tick), ROW * len(values), "grid")
        _text(svg, place(tick), height - 14, f"{tick:g}", "tick middle")
    _line(svg, place(0.0), 0, place(0.0), ROW * len(values), "zero")
    for row, (name, value) in enumerate(values.items()):
        y = ROW * (row + 0.5)
        _text(svg, left - 6, y, name, "row")
        draw_interval(svg, value, place, y)
    return Figure([Panel("", tostring(svg, encoding="unicode"))])


def interval_mark(difference: Mapping[str, Any], reach: float) -> str:
    """The interval of one difference around 0, small enough for a cell of a table.

    Args:
        difference: with ``"value"``, ``"low"`` and ``"high"``.
        reach: the largest number of all marks, which is the end of their common axis.
    """
    width, height = 120, 14

    def place(value: float) -> float:
        return width / 2 + value / reach * (width / 2 - 6)

    words = "the difference and its interval, around 0"
    svg = _svg(width, height, words, f"from {-reach:.2f} to {reach:.2f}")
    svg.set("class", "mark")
    _line(svg, 0, height / 2, width, height / 2, "grid")
    _line(svg, width / 2, 0, width / 2, height, "zero")
    value = {"estimate": difference["value"], "low": difference["low"], "high": difference["high"]}
    draw_interval(svg, value, place, height / 2)
    return tostring(svg, encoding="unicode")


def draw_interval(svg: Element, value: Mapping[str, float | None], place: Any, y: float) -> None:
    """A point at the estimate and a line from end to end, in ``svg`` at height ``y``."""
    estimate, low, high = value["estimate"], value["low"], value["high"]
    if low is not None and high is not None:
        _line(svg, place(low), y, place(high), y, "interval")
    if estimate is not None:
        circle = SubElement(svg, "circle", {"class": "estimate", "r": "3.5"})
        circle.set("cx", _short(place(estimate)))
        circle.set("cy", _short(y))


def heat_map(
    values: Mapping[str, Mapping[str, float | None]], labels: Mapping[str, str], title: str
) -> Figure:
    """A map: a column for each of ``values``, a row for each label, the number in each cell.

    The stronger the colour, the larger the number; negative ones have another colour.

    Args:
        values: name of a column -> key of a row -> value.
        labels: key of a row -> how it is called, from top to bottom.
        title: what is drawn.
    """
    left = _room_for(labels.values())
    column = min(58.0, max(16.0, (640 - left) / max(1, len(values))))
    longest = max((len(_cut(name)) for name in values), default=0)
    slanted = longest * LETTER > column
    above = 18.0
    if slanted:
        above = 12 + 0.72 * LETTER * longest
    width = left + column * len(values) + (0.72 * LETTER * longest if slanted else 4)
    known = [abs(value) for by_key in values.values() for value in by_key.values() if value]
    largest = max(known, default=1.0)

    svg = _svg(width, above + ROW * len(labels) + 2, title, _text_of_rows(values, labels, 2))
    # A map of few columns stays small on a wide page.
    svg.set("style", f"max-width:{_short(1.3 * width)}px")
    for place, name in enumerate(values):
        _column_name(svg, left + column * (place + 0.5), above - 6, name, slanted)
    for row, (key, label) in enumerate(labels.items()):
        y = above + ROW * row
        _text(svg, left - 6, y + ROW / 2, label, "row")
        for place, (name, by_key) in enumerate(values.items()):
            value = by_key.get(key)
            if value is None:
                continue
            x = left + column * place
            sign = "negative" if value < 0 else "positive"
            cell = _rect(svg, x + 1, y + 1, column - 2, ROW - 2, f"cell {sign}")
            cell.set("fill-opacity", f"{0.08 + 0.72 * abs(value) / largest:.2f}")
            SubElement(cell, "title").text = f"{name}, {label}: {value:.4g}"
            if column >= 34:
                _text(svg, x + column / 2, y + ROW / 2, f"{value:.2f}", "small middle")
    return Figure([Panel("", tostring(svg, encoding="unicode"))], wide=True)


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from ``low`` to ``high``.

    Args:
        low: lower end.
        high: upper end, above ``low``.
        about: how many are wanted.

    >>> nice_ticks(0.0, 1.0, 5), nice_ticks(-0.03, 0.012, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-0.03, -0.02, -0.01, 0.0, 0.01])
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = 10 * power
    for factor in (1, 2, 2.5, 5):
        if factor * power >= 0.8 * rough:
            step = factor * power
            break
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Adding 0.0 turns -0.0 into 0.0.
    return [round(number * step, 10) + 0.0 for number in range(first, last + 1)]


# ---- axes and lines


@dataclass(frozen=True)
class _Scale:
    """The axes that all panels of a figure share."""

    low: float
    high: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float], last: int) -> _Scale:
        """The axes that hold these values, and the rounds up to ``last``."""
        low, high = _with_room(min(values), max(values))
        return cls(low, high, max(last, 1))

    def x(self, round: float) -> float:
        return LEFT + round / self.last * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def draw_axes(self, svg: Element, x: str) -> None:
        """Lines of the grid with their numbers, and the title of the x axis."""
        for tick in nice_ticks(self.low, self.high, 4):
            _line(svg, LEFT, self.y(tick), WIDTH - RIGHT, self.y(tick), "grid")
            _text(svg, LEFT - 4, self.y(tick), f"{tick:g}", "tick end")
        for tick in nice_ticks(0, self.last, min(5, math.ceil(self.last))):
            if tick == int(tick) or self.last < 2:
                words = f"{tick:g}"
                # A long number at the right end would be cut.
                place = "end" if tick == self.last and len(words) > 3 else "middle"
                _text(svg, self.x(tick), HEIGHT - BOTTOM + 11, words, f"tick {place}")
        _line(svg, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis")
        _text(svg, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x, "tick middle")


def _with_room(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis: a little more than the numbers, from 0 where they are near it."""
    if low == high:
        low, high = low - 0.05, high + 0.05
    room = 0.05 * (high - low)
    lower = 0.0 if 0 <= low < 0.5 * high else low - room
    return lower, high + room


def _draw_line(
    svg: Element, scale: _Scale, points: Sequence[Mapping[str, Any]], colour: str
) -> None:
    """The line of one site, its band where it has one, and a dot at its end."""
    banded = [point for point in points if "least" in point]
    if banded:
        upper = [(scale.x(point["round"]), scale.y(point["most"])) for point in banded]
        lower = [(scale.x(point["round"]), scale.y(point["least"])) for point in banded]
        outline = [*upper, *reversed(lower)]
        SubElement(svg, "polygon", {"class": f"band {colour}", "points": _points(outline)})
    places = [(scale.x(point["round"]), scale.y(point["value"])) for point in points]
    if len(places) > 1:
        SubElement(svg, "polyline", {"class": f"line {colour}", "points": _points(places)})
    x, y = places[-1]
    dot = {"class": f"dot {colour}", "cx": _short(x), "cy": _short(y), "r": "2.4"}
    SubElement(svg, "circle", dot)


def _thinned(points: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """At most so many points, evenly spaced, with the first and the last."""
    if len(points) <= most:
        return points
    chosen = []
    for number in range(most):
        chosen.append(points[round(number * (len(points) - 1) / (most - 1))])
    return chosen


def _colour(number: int) -> str:
    """The classes of a site's colour and dashes."""
    return f"c{number % COLOURS} d{number // COLOURS % DASHES}"


# ---- elements


def _svg(width: float, height: float, title: str, text: str) -> Element:
    """An empty drawing with its title and text."""
    svg = Element("svg", {"viewBox": f"0 0 {_short(width)} {_short(height)}", "role": "img"})
    # Both may be longer than an attribute should be.
    SubElement(svg, "title").text = title
    SubElement(svg, "desc").text = text
    svg.set("aria-label", f"{title}. {text}")
    return svg


def _text(parent: Element, x: float, y: float, words: str, kind: str) -> Element:
    """A text at a place; ``kind`` is its class. A name that is too long is cut."""
    about = {"class": kind, "x": _short(x), "y": _short(y)}
    element = SubElement(parent, "text", about)
    element.text = words
    if kind == "row":
        element.text = _cut(words)
    return element


def _column_name(svg: Element, x: float, y: float, name: str, slanted: bool) -> None:
    """The name of a column above it."""
    element = _text(svg, x, y, _cut(name), "middle")
    if slanted:
        element.set("class", "start")
        element.set("transform", f"rotate(-45 {_short(x)} {_short(y)})")


def _line(parent: Element, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
    ends = {"x1": _short(x1), "y1": _short(y1), "x2": _short(x2), "y2": _short(y2)}
    SubElement(parent, "line", {"class": kind, **ends})


def _rect(parent: Element, x: float, y: float, width: float, height: float, kind: str) -> Element:
    place = {"x": _short(x), "y": _short(y), "width": _short(width), "height": _short(height)}
    return SubElement(parent, "rect", {"class": kind, **place})


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_short(x)},{_short(y)}" for x, y in places)


def _short(number: float) -> str:
    """A number of the drawing, to a tenth.

    >>> _short(12.04), _short(12.16)
    ('12', '12.2')
    """
    return f"{number:.1f}".removesuffix(".0")


def _cut(name: str) -> str:
    """A name of at most :data:`LONGEST` letters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _room_for(names: Any) -> float:
    """The width that names in front of rows take."""
    longest = max((len(_cut(name)) for name in names), default=0)
    return 10 + LETTER * longest


# ---- texts


def _text_of_lines(by_site: Mapping[str, Sequence[Mapping[str, Any]]], x: str) -> str:
    parts = []
    for site, points in by_site.items():
        first, last = points[0], points[-1]
        parts.append(
            f"{site}: {first['value']:.3f} at {x} {first['round']}, "
            f"{last['value']:.3f} at {x} {last['round']}"
        )
    return "; ".join(parts)


def _text_of_intervals(values: Mapping[str, Mapping[str, float | None]]) -> str:
    parts = []
    for name, value in values.items():
        if value["estimate"] is None:
            continue
        words = f"{name}: {value['estimate']:.3f}"
        if value["low"] is not None and value["high"] is not None:
            words += f" ({value['low']:.3f} to {value['high']:.3f})"
        parts.append(words)
    return "; ".join(parts)


def _text_of_rows(
    values: Mapping[str, Mapping[str, float | None]], labels: Mapping[str, str], digits: int
) -> str:
    """Describe bars or cells, a part for each row.

    Args:
        values: name -> row -> value.
        labels: row -> how it is called.
        digits: after the point.
    """
    parts = []
    for row, label in labels.items():
        of_row = []
        for name, by_row in values.items():
            value = by_row.get(row)
            if value is not None:
                of_row.append(f"{name} {value:.{digits}f}")
        parts.append(f"{label}: {', '.join(of_row)}")
    return "; ".join(parts)
