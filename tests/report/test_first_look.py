# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A report of less than a full run is a first look."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from helpers.runs_to_judge import RECIPE, WriteRun, run

from monai_fairfl.report import as_text, write_report


def test_a_first_look_says_so_and_why(write_run: WriteRun, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    runs = [run(write_run, 3, 1, name=name) for name in ("Standalone", "FedCE")]
    report = write_report(runs, tmp_path)
    (entry,) = report["first_look"]
    assert entry["strategies"] == ["Standalone", "FedCE"]
    assert entry["full_run"] == {"rounds": 4, "local_epochs": 2}

    page = (tmp_path / "report.html").read_text()
    text = as_text(report)
    for words in ("first look", f"Standalone, FedCE: {entry['why']}.", "without --quick"):
        assert words in html.unescape(page) and words in text, words
    assert "run Standalone" not in text
    assert "0.800" in text

    body = page.split("<body>")[1]
    assert '"best"' not in body
    for verdict in ("left behind.", "is left behind", "better off than alone", "The best of each"):
        assert verdict not in body
        assert verdict not in text


def test_few_cases_are_named_after_a_first_look(write_run: WriteRun) -> None:
    config = {"local_epochs": 1, "full_run": RECIPE}
    scores = {"elm": (0.8, 0.1, 2), "yew": (0.7, 0.01, 20)}
    report = write_report([write_run("FedCE", scores, rounds=[{}], config=config)])
    hospitals = report["decision"]["hospitals"]
    assert "2 test cases" in hospitals["elm"]["advice"][0]
    assert "full run" in hospitals["yew"]["advice"][0]
    assert "Standalone" in as_text(report)
