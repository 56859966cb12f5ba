# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores, fairness, gains and their intervals against numpy and scipy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.reports import gain_of, points_of, run_of, site_of, warned
from helpers.scripted_run import mean_of, report_of, train, with_cases
from scipy import stats

from monai_fairfl.report import write_report
from monai_fairfl.statistics import performance
from monai_fairfl.strategies import FedAvg, Standalone

ALONE = {"elm": (0.7, 0.02, 9), "oak": (0.8, 0.03, 5), "yew": (0.5, 0.04, 7)}
JOINED = {"elm": (0.75, 0.01, 9), "oak": (0.81, 0.02, 5), "yew": (0.7, 0.05, 7)}


def test_fairness_and_gains_are_those_of_the_scores(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"Standalone": ALONE, "FedAvg": JOINED})
    of_scores = vars(performance({site: score[0] for site, score in JOINED.items()}))
    found = run_of(report, "FedAvg")["performance"]
    assert found.items() >= {name: of_scores[name] for name in ("mean", "std", "gap")}.items()
    for site, (value, stderr, n) in JOINED.items():
        gain = gain_of(report, "FedAvg", site)
        error = np.hypot(stderr, ALONE[site][1])
        low, high = stats.t.interval(0.95, n - 1, value - ALONE[site][0], error)
        assert (gain["low"], gain["high"]) == pytest.approx((low, high))
        assert gain["within_noise"] == (low <= 0 <= high)


ALONE_CASES = {"0012": 0.70, "0007": 0.80, "0003": 0.55, "0009": 0.90}
JOINED_CASES = {"0007": 0.82, "0003": 0.60, "0012": 0.73, "0009": 0.92}
"""The same cases in another order; their names are numbers, as of DICOM series."""


def test_where_cases_are_stored_the_interval_is_that_of_a_paired_t_test(tmp_path: Path) -> None:
    runs = []
    for strategy, cases in ((Standalone(), ALONE_CASES), (FedAvg(), JOINED_CASES)):
        score = mean_of(list(cases.values()))
        runs.append(train(tmp_path / strategy.name, strategy, {"elm": score}))
        table = with_cases(runs[-1], "elm", cases)
    gain = gain_of(write_report(runs), "FedAvg")
    joined = [JOINED_CASES[name] for name in ALONE_CASES]
    interval = stats.ttest_rel(joined, list(ALONE_CASES.values())).confidence_interval(0.95)
    assert (gain["low"], gain["high"]) == pytest.approx((interval.low, interval.high), abs=1e-5)
    assert gain["within_noise"] is False

    # What cannot be paired is taken as independent: other cases, of another score, a case twice.
    text = table.read_text()
    for stored, other in (("0007", "0008"), ("0.82", "0.99"), ("0007", "0003")):
        table.write_text(text.replace(stored, other))
        gain = gain_of(write_report(runs), "FedAvg")
        assert gain["low"] < 0 < gain["high"], other

    # Nor what a loader numbered, in an order that may differ from run to run.
    for run, cases in zip(runs, (ALONE_CASES, JOINED_CASES)):
        with_cases(run, "elm", {str(n): cases[name] for n, name in enumerate(ALONE_CASES)})
    gain = gain_of(write_report(runs), "FedAvg")
    assert gain["low"] < 0 < gain["high"]


def test_the_tables_show_test_cases_only_where_every_hospital_and_run_has_them(
    tmp_path: Path,
) -> None:
    both = {"score": 0.6, "test_score": 0.9}
    whole, part = {"elm": both, "oak": both}, {"elm": both, "oak": {"score": 0.5}}
    assert report_of(tmp_path / "a", {"FedAvg": whole})["measurement"] == "test_score"
    report = report_of(tmp_path / "b", {"FedAvg": whole, "FedCE": part})
    assert report["measurement"] == "score"
    assert site_of(report, "FedCE")["score"]["value"] == 0.6


def test_a_score_above_one_is_rounding_or_is_left_out_with_a_warning(tmp_path: Path) -> None:
    scores = {"elm": (1.0000001, 0.0, 5), "oak": 81.0, "yew": 0.5}
    report = report_of(tmp_path, {"FedAvg": scores}, ranges={"test_score": [0, 100]})
    assert site_of(report, "FedAvg", "elm")["score"]["value"] == 1
    assert site_of(report, "FedAvg", "oak")["score"] is None
    assert run_of(report, "FedAvg")["performance"]["mean"] == 0.75
    assert warned(report, "oak", "fraction")


def test_a_run_that_lacks_a_hospitals_score_is_not_compared_and_says_so(tmp_path: Path) -> None:
    alone, joined = {"elm": 0.8, "oak": 0.7}, {"elm": 0.8, "oak": float("nan")}
    report = report_of(tmp_path, {"Standalone": alone, "FedAvg": joined})
    found = run_of(report, "FedAvg")
    assert found["comparable"] is False
    assert gain_of(report, "FedAvg", "elm")["value"] == 0
    assert warned(report, "oak", "FedAvg")


def test_an_unfinished_run_shows_validation_and_is_compared_with_none(tmp_path: Path) -> None:
    scores = {"elm": 0.7, "oak": 0.7}
    validated = {"elm": {"measured": {"global_score": [0.1, 0.2, 0.3, 0.4]}}}
    given = {"about": validated, "retries": 0, "stop": 3}
    finished = train(tmp_path / "alone", Standalone(), scores)
    report_of(tmp_path, {"Standalone": scores, "FedAvg": scores}, 4, **given)
    for alone in (finished, tmp_path / "Standalone"):
        report = write_report([alone, tmp_path / "FedAvg"])
        found = run_of(report, "FedAvg")
        assert (found["finished"], found["rounds"], found["settings"]["rounds"]) == (False, 3, 4)
        assert found["measurement"] == "global_score"
        assert site_of(report, "FedAvg")["score"]["value"] == 0.3
        assert gain_of(report, "FedAvg") is None and found["comparable"] is False


def test_dice_by_round_is_of_the_model_after_so_many_rounds(tmp_path: Path) -> None:
    """A received model is scored when the next round begins, a personal one when its own ends."""
    about = {"elm": {"measured": {"global_score": [0.1, 0.2], "personal_score": [0.3, 0.4]}}}
    closing = {"elm": {"score": 0.25, "personal_score": 0.45}}
    report = report_of(tmp_path, {"FedAvg": closing, "Ditto": closing}, 2, about=about)
    assert points_of(report, "FedAvg", "dice") == [(0, 0.1), (1, 0.2), (2, 0.25)]
    # 0.4 is of the model that the end measured again.
    assert points_of(report, "Ditto", "dice") == [(0, 0.1), (1, 0.3), (2, 0.45)]


def test_the_run_that_validates_best_is_shown_and_not_the_one_that_tests_best(
    tmp_path: Path,
) -> None:
    """Validation means are over the same hospitals: of FedCE the weakest is missing."""
    weak = {"score": 0.3, "test_score": 0.5}
    good = {"elm": {"score": 0.8, "test_score": 0.5}, "oak": weak}
    tests = {"elm": {"score": 0.7, "test_score": 0.9}, "oak": {"test_score": 0.9}}
    report = report_of(tmp_path, {"FedCE": tests, "FedAvg": good})
    assert report["decision"]["strategy"] == "FedAvg"
    means = {name: run["validation_mean"] for name, run in report["strategies"].items()}
    assert means == {"FedCE": 0.7, "FedAvg": 0.8}
