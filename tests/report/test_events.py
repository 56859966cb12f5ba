# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absences and guards: what they did stands beside each hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.reports import hospital
from helpers.scripted_run import report_of

from monai_fairfl.guards import Copies, Empty, NonFinite, TooLong

SITES = ("ash", "birch", "box", "cedar", "elm", "oak", "yew")
SCORES = dict.fromkeys(SITES, (0.8, 0.01, 9))
UPDATE = [1.0, 2.0, 3.0, -1.0]
TROUBLE: dict[str, dict[str, Any]] = {
    "ash": {"away": [1]},
    "birch": {"updates": UPDATE},
    "cedar": {"updates": UPDATE},
    "box": {"updates": [0.0]},
    "elm": {"updates": [100.0]},
    "oak": {"measured": {"global_score": [85.0, 0.5]}},
    "yew": {"updates": [float("nan")]},
}
CAUSES = {"ash": "line is down", "oak": "85", "yew": "not finite", "box": "length 0"}
GUARDS = [NonFinite(), Empty(), TooLong(), Copies()]


def test_absences_guards_and_dropped_numbers_stand_beside_each_hospital(tmp_path: Path) -> None:
    """One of each fault, in two rounds."""
    given = {"about": TROUBLE, "guards": GUARDS, "size": 1000}
    report = report_of(tmp_path, {"FedAvg": SCORES}, 2, **given)
    found: dict[tuple[str, str], list[int]] = {}
    for event in report["events"]:
        found.setdefault((event["site"], event["kind"]), []).append(event["round"])
        assert CAUSES.get(event["site"], "") in event["text"]
    assert found["ash", "missing"] == [1] and found["oak", "dropped"] == [0]
    guarded = {"yew": "NonFinite", "elm": "TooLong"}
    guarded |= {"box": "Empty", "birch": "Copies", "cedar": "Copies"}
    assert all(found[of_site] == [0, 1] for of_site in guarded.items())
    # What arrived and was refused is not missing.
    assert ("yew", "missing") not in found
    for site in ("box", "birch", "cedar"):
        assert "2 rounds" in hospital(report, site)["advice"][0]
    assert "missing" in hospital(report, "ash")["advice"][0]

    assert hospital(report, "oak")["guards"] == []
    for site, guard, act in (("yew", "NonFinite", "refused"), ("elm", "TooLong", "changed")):
        [words] = hospital(report, site)["guards"]
        assert guard in words and act in words and "2 of 2" in words
