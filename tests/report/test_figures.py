# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The drawings: what is drawn are the numbers, and names are text."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.report.figures import (
    COLOURS,
    MOST_POINTS,
    heat_map,
    interval_mark,
    intervals,
    nice_ticks,
    small_multiples,
)
from monai_fairfl.report.plots import over_trainings


def points(values: list[float]) -> list[dict[str, Any]]:
    return [{"round": number, "value": value} for number, value in enumerate(values)]


def places(element: ElementTree.Element) -> np.ndarray:
    """The places of a line or a band."""
    return np.array([pair.split(",") for pair in element.attrib["points"].split()], dtype=float)


def test_a_site_that_the_first_strategy_lacks_is_in_the_legend_once() -> None:
    series = {
        "Standalone": {"elm": points([0.5])},
        "FedAvg": {"elm": points([0.5]), "oak": points([0.6])},
    }
    figure = small_multiples(series, ["elm", "oak"], "Dice")
    assert figure is not None
    assert list(figure.legend) == ["elm", "oak"]
    assert [panel.title for panel in figure.panels] == ["Standalone", "FedAvg"]


def test_more_sites_than_colours_have_dashes() -> None:
    sites = [f"site{number}" for number in range(2 * COLOURS)]
    figure = small_multiples({"FedAvg": dict.fromkeys(sites, points([0.5]))}, sites, "Dice")
    assert figure is not None
    assert len(set(figure.legend.values())) == len(sites)


def test_a_long_line_has_no_more_points_than_pixels_and_keeps_its_ends() -> None:
    values = np.linspace(0.1, 0.9, 2000).tolist()
    figure = small_multiples({"FedAvg": {"elm": points(values)}}, ["elm"], "Dice")
    assert figure is not None
    [line] = ElementTree.fromstring(figure.panels[0].svg).iter("polyline")
    drawn = places(line)
    assert len(drawn) == MOST_POINTS
    assert drawn[0][0] == 38 and drawn[-1][0] == 308


def test_the_band_is_from_the_least_to_the_most_of_the_trainings() -> None:
    runs = [{"elm": points([0.2, 0.4])}, {"elm": points([0.6, 0.8])}, {"elm": points([0.4, 0.3])}]
    merged = over_trainings(runs)
    assert [point["least"] for point in merged["elm"]] == [0.2, 0.3]
    assert [point["most"] for point in merged["elm"]] == [0.6, 0.8]
    assert [point["value"] for point in merged["elm"]] == pytest.approx([0.4, 0.5])
    figure = small_multiples({"FedCE": merged}, ["elm"], "Dice")
    assert figure is not None
    svg = ElementTree.fromstring(figure.panels[0].svg)
    [band] = svg.iter("polygon")
    [line] = svg.iter("polyline")
    outline = places(band)
    for x, y in places(line):
        heights = [height for at, height in outline if at == x]
        assert min(heights) < y < max(heights)


def test_an_interval_is_drawn_from_end_to_end_on_both_sides_of_its_estimate() -> None:
    values = {
        "FedCE less FedAvg": {"estimate": 0.02, "low": -0.01, "high": 0.05},
        "one seed": {"estimate": 0.04, "low": None, "high": None},
    }
    svg = ElementTree.fromstring(intervals(values, "Difference").panels[0].svg)
    [line] = [found for found in svg.iter("line") if found.attrib["class"] == "interval"]
    [zero] = [found for found in svg.iter("line") if found.attrib["class"] == "zero"]
    circles = [float(found.attrib["cx"]) for found in svg.iter("circle")]
    x1, x2, at_zero = (
        float(found) for found in (line.attrib["x1"], line.attrib["x2"], zero.attrib["x1"])
    )
    assert (circles[0] - x1) == pytest.approx(x2 - circles[0], abs=0.2)
    assert (circles[0] - at_zero) / (circles[1] - at_zero) == pytest.approx(0.5, abs=0.01)
    assert x1 < at_zero < x2
    assert svg.findtext("desc") == "FedCE less FedAvg: 0.020 (-0.010 to 0.050); one seed: 0.040"


def test_a_mark_is_in_the_middle_for_no_difference() -> None:
    svg = ElementTree.fromstring(interval_mark({"value": 0.0, "low": -0.1, "high": 0.1}, reach=0.1))
    [circle] = svg.iter("circle")
    assert circle.attrib["cx"] == "60"


@given(name=st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
def test_whatever_a_name_is_it_is_text(name: str) -> None:
    series = {name: {name: points([0.5, 0.6])}}
    drawn = [small_multiples(series, [name], name), heat_map({name: {"a": 1.0}}, {"a": name}, name)]
    drawn.append(intervals({name: {"estimate": 0.1, "low": None, "high": None}}, name))
    for figure in drawn:
        assert figure is not None
        svg = ElementTree.fromstring(figure.panels[0].svg)
        allowed = {"svg", "title", "desc", "line", "text", "polyline", "circle", "rect"}
        assert {element.tag for element in svg.iter()} <= allowed
        assert name in (svg.findtext("desc") or "")


@given(low=st.floats(-1e3, 1e3), width=st.floats(1e-3, 1e3), about=st.integers(2, 6))
def test_ticks_are_round_few_and_inside(low: float, width: float, about: int) -> None:
    ticks = nice_ticks(low, low + width, about)
    assert 1 <= len(ticks) <= 2 * about + 1
    assert all(low - 1e-6 <= tick <= low + width + 1e-6 for tick in ticks)
