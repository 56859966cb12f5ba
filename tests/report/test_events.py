# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absences, guards' verdicts and notes."""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.report.collect import read_run
from monai_fairfl.report.events import events_of


def test_absences_guards_and_their_reasons_are_listed(comparison: Path) -> None:
    absent, refused, guarded = events_of(read_run(comparison / "FedAvg"))
    assert (absent.round, absent.site, absent.kind) == (1, "elm", "missing")
    assert "line is down" in absent.text
    assert (refused.round, refused.site, refused.kind) == (2, "rowan", "missing")
    assert (guarded.round, guarded.site, guarded.kind) == (2, "rowan", "guard")
    assert "not finite" in guarded.text
