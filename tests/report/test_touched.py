# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What guards and limits did stands beside each hospital, and a liar does not choose the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.ledgers import replace_closing_scores

from monai_fairfl.report import write_report

WriteRun = Callable[..., Path]
SITES = ("ash", "hemlock", "yew")
NOISE = {"guard": "Noise", "action": "quarantine", "reason": "it is random numbers"}
ATTACKED = {
    "verdicts": {"hemlock": [NOISE]},
    "notes": {"yew": "leave_one_out_error 1 clipped to 0.6"},
    "contributions": {"ash": 0.5, "yew": 0.5},
    "aggregation": {"ash": 0.5, "yew": 0.5},
}


def trained(write_run: WriteRun, name: str, validation: dict[str, float], **start: Any) -> Path:
    """A run of three hospitals with these scores on validation cases; all test 0.8."""
    run = write_run("FedCE", dict.fromkeys(SITES, 0.8), folder=name, **start)
    closing = {}
    for site, score in validation.items():
        closing[site] = {"own": {"score": score, "test_score": 0.8}}
    replace_closing_scores(run, closing)
    return run


@pytest.fixture
def report(write_run: WriteRun, tmp_path: Path) -> dict[str, Any]:
    """An honest run, and one with two attackers and guards, with names of their own."""
    honest = {"ash": 0.85, "hemlock": 0.9, "yew": 0.9}
    lied = {"ash": 0.8, "hemlock": 0.9, "yew": 0.0}
    names = {
        trained(write_run, "honest", honest, guards=[]): "nobody attacks",
        trained(write_run, "guarded", lied, guards=["Noise"], rounds=[ATTACKED] * 2): "guarded",
    }
    return write_report(list(names), tmp_path / "out", names=names)


def test_the_guarded_run_goes_first_and_a_liars_report_does_not_count(
    report: dict[str, Any],
) -> None:
    decision = report["decision"]
    assert report["focus"] == "guarded"
    assert report["doubted"] == ["hemlock", "yew"]
    # The means are over ash alone.
    means = "nobody attacks 0.850, guarded 0.800. It excludes hemlock, yew"
    assert means in decision["why"]


def test_each_hospital_shows_what_guards_and_limits_did(
    report: dict[str, Any], tmp_path: Path
) -> None:
    hospitals = report["decision"]["hospitals"]
    assert hospitals["ash"]["guards"] == []
    assert hospitals["hemlock"]["guards"] == ["update refused in 2 of 2 rounds (Noise)"]
    assert hospitals["yew"]["guards"] == ["own report limited in 2 of 2 rounds"]
    assert any("leave_one_out_error" in line for line in hospitals["yew"]["advice"])
    assert any("yew in 2 of 2 rounds" in warning for warning in report["warnings"])
    page = (tmp_path / "out" / "report.html").read_text()
    first_screen = page.split("For the engineer")[0]
    assert "update refused in 2 of 2 rounds (Noise)" in first_screen
    # Nobody trained alone: two empty columns are left out.
    assert '<th scope="col">Alone</th>' not in first_screen
    site = (tmp_path / "out" / "site_reports" / "yew.html").read_text()
    assert "own report limited in 2 of 2 rounds" in site and "hemlock" not in site


def test_a_flag_of_a_guard_is_not_called_a_change(write_run: WriteRun) -> None:
    flag = {"guard": "Mine", "action": "flag", "reason": "it is unusual"}
    clip = {"guard": "TooLong", "action": "clip", "reason": "it is long", "factor": 0.5}
    rounds = [{"verdicts": {"ash": [flag], "yew": [flag, clip]}}] * 2
    report = write_report([write_run("FedAvg", dict.fromkeys(SITES, 0.8), rounds=rounds)])
    hospitals = report["decision"]["hospitals"]
    assert hospitals["ash"]["guards"] == []
    assert hospitals["yew"]["guards"] == ["update changed in 2 of 2 rounds (TooLong)"]


def test_a_site_whose_update_another_sent_too_is_asked_what_it_sent(write_run: WriteRun) -> None:
    copies = {"guard": "Copies", "action": "share", "reason": "the same", "group": ["ash", "yew"]}
    record = {"verdicts": {"ash": [copies], "yew": [copies]}}
    report = write_report([write_run("FedAvg", dict.fromkeys(SITES, 0.8), rounds=[record, record])])
    advice = report["decision"]["hospitals"]["ash"]["advice"]
    assert "ash" in advice[0] and "2 rounds" in advice[0] and "same update" in advice[0]


def test_a_weight_is_not_called_a_contribution(report: dict[str, Any]) -> None:
    contributions = report["decision"]["contributions"]
    assert contributions["source"] == "Weight by guarded"
    assert "do not say what a hospital is worth" in contributions["meaning"]
    assert contributions["sites"]["yew"]["words"].startswith("weighs")
