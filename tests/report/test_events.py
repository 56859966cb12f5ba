# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absences, guards' verdicts and notes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from monai_fairfl.report.collect import read_run
from monai_fairfl.report.events import events_of

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
