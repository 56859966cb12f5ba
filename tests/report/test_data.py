# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the check before a training found is in the run's folder, and in the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.bundle_runs import OVERRIDES, federation
from helpers.linear_federation import in_place_of_training
from helpers.reports import Page, hospital
from helpers.scripted_run import report_of

from monai_fairfl.data import check_cases
from monai_fairfl.report import as_text, write_report


def test_a_first_look_shows_data_refused_images_and_an_organ_beside_the_field(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    for name in ("alder", "elm"):
        shutil.copytree(hospitals / name, tmp_path / "data" / name)
    (tmp_path / "data" / "elm" / "scan").write_bytes(bytes(128) + b"DICM")
    run = tmp_path / "run"
    given = {"overrides": {**OVERRIDES, "field_of_view": 0.24}, "check": check_cases}
    full = {"rounds": 50, "local_epochs": 1, "mean_dice": 0.5}
    settings = {**given, "rounds": 1, "local_epochs": 1, "full_run": full, "evaluate": ()}
    federation(tmp_path / "data", run, "FedAvg", **settings).run()

    before = (run / "data.json").read_bytes()
    (tmp_path / "data" / "elm" / "scan").unlink()
    federation(tmp_path / "data", run, "FedAvg", resume=True, **settings).run()
    assert (run / "data.json").read_bytes() == before
    found = json.loads(before)
    assert list(found["elm"]["refused"]) == [str(tmp_path / "data" / "elm" / "scan")]

    report = write_report([run])
    page = Page(run / "report.html").text
    assert page.count("first look") == as_text(report).count("first look") == 1
    assert "alder: 4 cases.\n" in page
    assert "elm: 4 cases; 1 image not used, it belongs to no case" in page
    assert "Full runs would take about" in page
    [advice] = hospital(report, "alder")["advice"]
    assert "field_of_view above 0.24" in advice and "3 of 4 cases" in advice
    assert f"{found['alder']['least_seen']:.0%}" in advice
    assert hospital(report, "elm")["advice"] == []


def test_only_a_hospital_that_is_served_badly_is_told_of_the_field(tmp_path: Path) -> None:
    alone = {"elm": (0.8, 0.001, 9), "oak": (0.8, 0.001, 9)}
    scores = {"Standalone": alone, "FedAvg": {**alone, "oak": (0.7, 0.001, 9)}}
    assert "field_of_view" not in str(report_of(tmp_path, scores))
    of_site = {"cases": 9, "refused": {}, "notes": [], "outside": 8, "least_seen": 0.25}
    data = {site: {**of_site, "field_of_view": 0.7} for site in alone}
    (tmp_path / "FedAvg" / "data.json").write_text(json.dumps(data))
    report = write_report([tmp_path])
    assert "25%" in hospital(report, "oak")["advice"][0]
    assert "field_of_view" not in str(hospital(report, "elm")["advice"])
