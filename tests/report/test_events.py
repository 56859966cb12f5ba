# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absences, guards' verdicts and notes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from monai_fairfl.report import write_report
from monai_fairfl.report.collect import read_run
from monai_fairfl.report.events import events_of, free_riding_of

WriteRun = Callable[..., Path]


def test_absences_guards_and_their_reasons_are_listed(comparison: Path) -> None:
    absent, refused, guarded = events_of(read_run(comparison / "FedAvg"))
    assert (absent.round, absent.site, absent.kind) == (1, "elm", "missing")
    assert "line is down" in absent.text
    assert (refused.round, refused.site, refused.kind) == (2, "rowan", "missing")
    assert (guarded.round, guarded.site, guarded.kind) == (2, "rowan", "guard")
    assert "not finite" in guarded.text


def test_dropped_measurements_are_listed_with_value_and_range(write_run: WriteRun) -> None:
    reason = "85, outside of 0 to 1 (Dice): the setting ranges allows others"
    rounds = [{}, {"dropped": {"elm": {"global_score": reason, "mine": "nobody asked"}}}]
    run = read_run(write_run("FedCE", {"elm": 0.8, "oak": 0.9}, rounds=rounds))
    (event,) = events_of(run)
    assert (event.round, event.site, event.kind) == (1, "elm", "dropped")
    assert event.text == f"global_score: {reason}; mine: nobody asked"


def test_verdicts_on_updates_that_nobody_trained_are_listed_by_guard(write_run: WriteRun) -> None:
    empty = {"guard": "Empty", "action": "quarantine", "reason": "its update is zero"}
    long = {"guard": "TooLong", "action": "clip", "reason": "its length is 10"}
    copied = {"guard": "Copies", "action": "share", "reason": "its cosine with oak is 1"}
    copied |= {"group": ["elm", "oak"], "factor": 0.5}
    rounds = [{"verdicts": {"elm": [long, empty]}}, {"verdicts": {"elm": [copied]}}]
    folder = write_run("FedCE", {"elm": 0.8, "oak": 0.9}, rounds=rounds)
    found = list(free_riding_of(read_run(folder)))
    assert [(event.round, event.site, event.kind) for event in found] == [
        (0, "elm", "Empty"),
        (1, "elm", "Copies"),
    ]
    assert found[0].text == "quarantine: its update is zero"
    report = write_report([folder])
    assert [event["kind"] for event in report["free_riding"]] == ["Empty", "Copies"]
    assert any("elm" in warning and "length" in warning for warning in report["warnings"])
    page = (folder / "report.html").read_text()
    assert "share: its cosine with oak is 1" in page
