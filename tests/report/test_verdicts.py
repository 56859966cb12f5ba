# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One verdict for each hospital, and when the report says that it cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.reports import hospital, run_of, site_of, verdicts
from helpers.scripted_run import Score, report_of, train

from monai_fairfl.report import as_text, write_report
from monai_fairfl.strategies import FedAvg

ALONE: dict[str, Any] = {"elm": (0.9, 0.001, 9), "oak": (0.9, 0.001, 9), "yew": (0.3, 0.03, 9)}
# Yew's gain is chance; that it is far below the others is not.
JOINED: dict[str, Any] = {"elm": (0.9, 0.001, 9), "oak": (0.8, 0.001, 9), "yew": (0.32, 0.03, 9)}


def judged(folder: Path, alone: Mapping[str, Any], joined: Mapping[str, Any]) -> dict[str, Any]:
    """The report of training alone and of FedAvg."""
    return report_of(folder, {"Standalone": alone, "FedAvg": joined})


@pytest.mark.parametrize(
    ("alone", "joined", "verdict"),
    [
        ((0.7, 0.01, 9), (0.8, 0.01, 9), "better"),
        ((0.8, 0.001, 9), (0.79, 0.001, 9), "worse"),
        ((0.8, 0.001, 9), (0.7, 0.001, 9), "left_behind"),
        ((0.8, 0.001, 9), (0.801, 0.001, 9), "as_good"),
        ((0.8, 0.05, 9), (0.75, 0.05, 9), "cannot_tell"),
        ((0.8, None, 1), (0.82, None, 1), "cannot_tell"),
    ],
)
def test_the_verdict_follows_the_interval(
    alone: Score, joined: Score, verdict: str, tmp_path: Path
) -> None:
    report = judged(tmp_path, {"elm": alone}, {"elm": joined})
    assert verdicts(report) == {"elm": verdict}


def test_who_is_far_below_the_others_is_left_behind_unless_its_cases_are_too_few(
    tmp_path: Path,
) -> None:
    """More than 0.05 and one standard deviation below the mean, of three hospitals or more."""
    certain = (0.001, 30)
    cases = [
        ([0.5, 0.8, 0.8, 0.8], certain, True),
        ([0.77, 0.8, 0.8, 0.8], certain, False),
        ([0.5, 0.8, 0.8, 0.8], (0.2, 30), False),
        ([0.1, 0.9], certain, False),
    ]
    for number, (scores, precision, expected) in enumerate(cases):
        sites = {f"h{index}": (value, *precision) for index, value in enumerate(scores)}
        report = report_of(tmp_path / str(number), {"FedAvg": sites})
        assert site_of(report, "FedAvg", "h0")["left_behind"] == expected, scores


@pytest.mark.parametrize(
    ("alone", "joined", "word"),
    [
        ((0.58, None, 1), (0.83, None, 1), "FedAvg"),
        ((0.83, 0.1, 3), (0.7, 0.1, 3), "alone"),
        ((0.83, 0.1, 3), (0.83, 0.1, 3), "FedAvg or training alone"),
    ],
)
def test_who_cannot_be_told_hears_of_more_cases_and_of_a_model_until_then(
    alone: Score, joined: Score, word: str, tmp_path: Path
) -> None:
    report = judged(tmp_path, {"elm": alone}, {"elm": joined})
    [advice] = hospital(report)["advice"]
    assert "more cases" in advice and word in advice
    assert not any("(" in line for line in report["headline"])


def test_many_gains_are_a_short_list_and_the_second_best_on_validation_is_a_column(
    tmp_path: Path,
) -> None:
    sites = [f"h{number}" for number in range(7)]
    alone: dict[str, Any] = dict.fromkeys(sites, (0.7, 0.001, 9))
    report = judged(tmp_path, alone, dict.fromkeys(sites, (0.8, 0.001, 9)))
    [line] = [line for line in report["headline"] if "h0" in line]
    assert line.count("+0.100") == 3 and "4 more" in line and "FedAvg" in line

    scores = {"FedCE": 0.6, "QFedAvg": 0.65, "FedAvg": 0.7, "Standalone": 0.8}
    runs: dict[str, Any] = {}
    for name, mean in scores.items():
        runs[name] = dict.fromkeys(("elm", "oak"), {"test_score": 0.9, "score": mean})
    decision = report_of(tmp_path / "means", runs)["decision"]
    assert decision["strategy"] == "FedAvg"
    assert decision["shown"] == ["Standalone", "FedAvg", "QFedAvg"]


def test_who_is_served_better_by_no_model_is_hard_and_else_left_behind(tmp_path: Path) -> None:
    report = judged(tmp_path / "a", ALONE, {**ALONE, "yew": (0.5, 0.001, 9)})
    assert site_of(report, "FedAvg", "yew")["left_behind"] and verdicts(report)["yew"] == "better"

    folder = tmp_path / "b"
    report = judged(folder, ALONE, JOINED)
    assert verdicts(report) == {"elm": "as_good", "oak": "left_behind", "yew": "hard"}
    said = report["headline"]
    assert "0.700" in said[0] and "0.673" in said[0]
    assert sum("oak (-0.100" in line for line in said) == 1
    [behind] = [line for line in said if "behind" in line]
    assert "oak" in behind and "yew" not in behind

    report_of(folder, {"QFedAvg": {**JOINED, "yew": (0.5, 0.03, 9)}})
    yew = hospital(write_report([folder]), "yew")
    assert yew["verdict"] == "left_behind"
    assert "QFedAvg" in yew["advice"][0] and "0.500" in yew["advice"][0]


def test_who_was_absent_unscored_or_never_alone_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    alone = {"elm": 0.8, "oak": 0.8, "yew": 0.8}
    report = judged(tmp_path, alone, {"elm": (0.9, 0.1, 5), "oak": {"score": 0.9}})
    assert verdicts(report)["oak"] == "no_score" and verdicts(report)["yew"] == "absent"
    for name in ("FedAvg", "Standalone"):
        assert verdicts(write_report([tmp_path / name]))["elm"] == "not_compared"
    # Before its first round nobody has a score.
    ledger = tmp_path / "FedAvg" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])
    assert hospital(write_report([ledger.parent]), "elm")["advice"] == []


FULL = {"full_run": {"rounds": 4, "local_epochs": 2, "mean_dice": 0.5}, "local_epochs": 2}
SCORES = {"elm": (0.8, 0.001, 20), "oak": (0.8, 0.001, 20), "yew": (0.5, 0.001, 20)}


def test_only_a_full_run_that_has_learnt_is_judged(tmp_path: Path) -> None:
    # As many epochs in all.
    as_long = {**FULL, "local_epochs": 1}
    report = report_of(tmp_path / "as long", {"FedAvg": SCORES}, 8, config=as_long)
    assert run_of(report, "FedAvg")["not_judged"] is None
    assert site_of(report, "FedAvg", "yew")["left_behind"]

    def run(name: str, rounds: int = 4, scores: Any = SCORES, **given: Any) -> Path:
        return train(tmp_path / name, FedAvg(), scores, rounds, **{"config": FULL, **given})

    runs = {
        "3 x 2": run("short", 3),
        "0.450": run("poor", scores={"elm": 0.5, "oak": 0.5, "yew": 0.35}),
        "3 of 4": run("unfinished", stop=3, retries=0),
        "has 3 of 4": run("ended", conclude=2),
        "its full_run": run("unknown", config={"full_run": None}),
    }
    run("resumed", 5, stop=2, retries=0)
    runs["[5, 4]"] = run("resumed", 4)
    for why, folder in runs.items():
        report = write_report([folder])
        assert why in run_of(report, "FedAvg")["not_judged"], folder
        assert set(verdicts(report).values()) == {"not_judged"}, folder
        assert not site_of(report, "FedAvg", "yew")["left_behind"]
        assert not [line for line in report["headline"] if "shown" in line or "behind" in line]
        assert "first look" in as_text(report)


def test_a_full_run_is_not_judged_against_a_short_yardstick(tmp_path: Path) -> None:
    report_of(tmp_path, {"FedAvg": SCORES}, 4, config=FULL)
    report_of(tmp_path, {"Standalone": SCORES}, config=FULL)
    found = run_of(write_report([tmp_path]), "FedAvg")
    assert "Standalone" in found["not_judged"]


def test_a_model_of_the_last_mile_counts_and_test_cases_may_speak_against_it(
    tmp_path: Path,
) -> None:
    report_of(tmp_path, {"Standalone": {"elm": (0.79, 0.01, 9), "oak": 0.95}})
    expected = {(0.03, 0.83): "Use", (0.03, 0.75): "Doubt", (0.001, 0.83): None}
    for (gain, reached), word in expected.items():
        closing = {"test_score": (0.8, 0.01, 9), "adapted_epochs": 3}
        closing |= {"adapted_gain": (gain, 0.005, 2), "adapted_test_score": reached}
        scores = {"elm": closing, "oak": (0.95, 0.001, 9)}
        folder = tmp_path / f"{gain}-{reached}"
        report_of(folder, {"FedAvg": scores}, adapt_epochs=3)
        report = write_report([tmp_path / "Standalone", folder / "FedAvg"])
        mile = site_of(report, "FedAvg")["last_mile"]
        assert mile["candidates"]["adapted"]["gain"]["value"] == gain
        assert mile["taken"] == (word and "adapted")
        assert mile["used"]["value"] == (reached if word else 0.8)
        assert word is None or hospital(report)["advice"][0].startswith(word)
