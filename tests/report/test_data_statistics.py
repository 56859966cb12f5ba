# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The hospitals' images in the report: a table, histograms with gaps, nothing of who has left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.command_line import write_run

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import write_report
from monai_fairfl.report.data_statistics import (
    TITLES,
    find_statistics,
    histogram_figure,
    statistics_rows,
    statistics_table,
)
from monai_fairfl.statistics.disclosure import CaseNumbers, site_statistics
from monai_fairfl.statistics.documents import document

VOLUME = CaseNumbers(
    (20, 30, 8), (0.5, 0.5, 3.0), [{"mean": 1234.5}], [{"mean": 2.0}], {"1": 0.25}, [[8, 0, 2, 4]]
)
PICTURE = CaseNumbers(
    (20, 30), None, [{"mean": 9.0}] * 3, None, {"disc": 0.25, "cup": 0.1}, [[8, 0, 2, 4]] * 3
)
SITES = {
    "elm": site_statistics([VOLUME] * 6),
    "oak": site_statistics([PICTURE] * 7),
    "<b>yew": site_statistics([VOLUME] * 2),
}
FOUND = document(SITES, 5, 4, (0.0, 80.0))


def test_each_site_is_a_row_of_every_column() -> None:
    rows = statistics_rows(FOUND)
    assert {len(row) for row in rows} == {len(TITLES)}
    by_name = {row[0][0]: row[1:] for row in rows}
    assert by_name["elm"] == [
        ["6"],
        ["20 x 30 x 8"],
        ["0.5 x 0.5 x 3"],
        ["1234"],
        ["2"],
        ["1: 25 %, in all"],
    ]
    assert by_name["oak"][2:4] == [["–"], ["Red 9", "Green 9", "Blue 9"]]
    assert by_name["oak"][5] == ["disc: 25 %, in all", "cup: 10 %, in all"]
    assert by_name["<b>yew"][:2] == [["withheld: fewer than 5 cases"], ["–"]]
    assert by_name["All"][:2] == [["13"], ["–"]]
    assert by_name["All"][5][1] == "disc: 25 %, in 7"


def test_the_row_of_all_names_whose_labels_it_leaves_out() -> None:
    """Two of elm's cases lack the label, too few to tell how many: oak's alone are counted."""
    label = replace(PICTURE, labelled=[{"mean": 4.0}] * 3, shares={"disc": 0.5})
    elm = [label] * 18 + [replace(PICTURE, shares={})] * 2
    oak = [replace(label, shares={"disc": 0.1})] * 10
    sites = {"elm": site_statistics(elm), "oak": site_statistics(oak)}
    rows = {row[0][0]: row for row in statistics_rows(document(sites, 5, 4, (0.0, 80.0)))}
    assert rows["elm"][6] == ["disc: 50 %, in most"]
    assert rows["All"][6] == ["disc: 10 %, in 10, without elm"]
    assert rows["All"][5] == ["Red 4", "Green 4", "Blue 4", "without elm"]
    assert rows["oak"][5] == ["Red 4", "Green 4", "Blue 4"]


def test_the_terminals_table_has_the_same_words() -> None:
    for words in ("1234", "withheld", "Green 9"):
        assert words in statistics_table(FOUND)


def test_a_withheld_bin_is_a_gap_in_the_line() -> None:
    figure = histogram_figure(document({"elm": SITES["elm"]}, 5, 4, (0.0, 80.0)), ["ash", "elm"])
    assert figure is not None
    [panel] = figure.panels
    lines = [
        element.get("points", "").split()
        for element in ElementTree.fromstring(panel.svg).iter()
        if element.tag == "polyline"
    ]
    # One bin, a gap, two bins: two points each.
    assert [len(points) for points in lines] == [2, 4]
    assert figure.legend == {"elm": "c1 d0"}


def test_pages_without_statistics_have_no_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert write_report([run])["statistics"] is None
    assert "hospitals&#39; images" not in (run / "report.html").read_text()


def test_names_of_sites_are_text_on_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "statistics.json").write_text(json.dumps(FOUND))
    write_report([run])
    page = (run / "report.html").read_text()
    assert "&lt;b&gt;yew" in page
    assert "<b>yew" not in page


def test_a_site_that_has_withdrawn_is_in_no_number(tmp_path: Path) -> None:
    (tmp_path / "statistics.json").write_text(json.dumps(FOUND))
    found = find_statistics(tmp_path, [], {"oak"})
    assert found is not None
    assert list(found["sites"]) == ["<b>yew", "elm"]
    assert found["all"]["cases"] == 6


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "statistics.json").write_text("{")
    with pytest.raises(ConfigError, match="statistics.json is no whole file"):
        write_report([run])
