# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absences, guards and limits: what they did stands beside each hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.reports import Page, hospital, run_of
from helpers.scripted_run import report_of, train

from monai_fairfl import Replies
from monai_fairfl.guards import Copies, Empty, Guard, NonFinite, TooLong, Verdict
from monai_fairfl.report import write_report
from monai_fairfl.strategies import FedCE

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


class Flagging(Guard):
    """Finds every update worth a look."""

    def check(self, replies: Replies) -> dict[int, Verdict]:
        return {reply.id: Verdict("flag", "it is unusual") for reply in replies}


def test_absences_guards_and_dropped_numbers_stand_beside_each_hospital(tmp_path: Path) -> None:
    """One of each fault, in two rounds."""
    given = {"about": TROUBLE, "guards": GUARDS, "size": 1000}
    report = report_of(tmp_path, {"FedAvg": SCORES}, 2, **given)
    found: dict[tuple[str, str], list[int]] = {}
    for event in report["events"]:
        found.setdefault((event["site"], event["kind"]), []).append(event["round"])
        assert CAUSES.get(event["site"], "") in event["text"]
    assert found["ash", "missing"] == [1] and found["oak", "dropped"] == [0]
    assert found["yew", "guard"] == found["elm", "guard"] == found["box", "guard"] == [0, 1]

    kinds = {(event["site"], event["kind"]) for event in report["free_riding"]}
    assert kinds == {("box", "Empty"), ("birch", "Copies"), ("cedar", "Copies")}
    for site in ("box", "birch", "cedar"):
        assert "2 rounds" in hospital(report, site)["advice"][0]
    assert "missing" in hospital(report, "ash")["advice"][0]

    touched = run_of(report, "FedAvg")["touched"]
    assert touched["yew"]["update refused"] == {"NonFinite": [0, 1]}
    assert touched["elm"]["update changed"] == {"TooLong": [0, 1]}
    assert "oak" not in touched
    for site, guard in (("yew", "NonFinite"), ("elm", "TooLong")):
        [words] = hospital(report, site)["guards"]
        assert guard in words and "2 of 2" in words


def test_a_guard_that_only_flags_is_not_called_a_change(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"FedAvg": SCORES}, 2, guards=[Flagging()])
    assert run_of(report, "FedAvg")["touched"] == {}
    assert len(report["events"]) == 14


def test_a_liars_report_does_not_choose_the_run_and_names_of_runs_are_kept(
    tmp_path: Path,
) -> None:
    """Without oak, whose own report was limited, the guarded run validates worse."""
    sites = ("ash", "elm", "oak", "yew")
    honest = dict.fromkeys(sites, {"score": 0.85, "test_score": 0.8})
    about = {"oak": {"measured": {"leave_one_out_error": 1.0}}}
    lied = {**dict.fromkeys(sites, {"score": 0.8, "test_score": 0.8})}
    lied["oak"] = {"score": 0.0, "test_score": 0.8}
    guarded = FedCE(clip_reports=3.0)
    runs = {
        train(tmp_path / "a", FedCE(), honest, 3): "nobody attacks",
        train(tmp_path / "b", guarded, lied, 3, about=about, guards=[NonFinite()]): "guarded",
    }
    report = write_report(list(runs), names=runs)
    assert list(report["strategies"]) == ["nobody attacks", "guarded"]
    assert report["decision"]["strategy"] == "guarded" and report["doubted"] == ["oak"]
    assert run_of(report, "guarded")["validation_mean"] == pytest.approx(0.8)
    touched = run_of(report, "guarded")["touched"]["oak"]
    assert touched["own report limited"] == {"clip_reports": [1, 2]}
    [words] = hospital(report, "oak")["guards"]
    assert "limited" in words and "2 of 3" in words
    site = Page(tmp_path / "site_reports" / "oak.html")
    assert words in site.text
