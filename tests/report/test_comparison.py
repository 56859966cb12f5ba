# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Gains over training alone, and which site is called left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.comparison import Gain, half_width, left_behind
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]


def certain(scores: dict[str, float]) -> dict[str, Number]:
    """Scores with small standard errors over many cases."""
    return {site: Number(value, stderr=0.001, n=30) for site, value in scores.items()}


@pytest.mark.parametrize(
    ("scores", "gain", "verdict"),
    [
        ({"A": 0.5, "B": 0.8, "C": 0.8, "D": 0.8}, None, True),
        ({"A": 0.77, "B": 0.8, "C": 0.8, "D": 0.8}, None, False),  # far by deviations, near by Dice
        ({"A": 0.8, "B": 0.8, "C": 0.8}, None, False),
        ({"A": 0.1 + 0.2, "B": 0.3, "C": 0.3}, None, False),  # equal but for rounding
        ({"A": 0.75, "B": 0.8, "C": 0.9}, None, False),
        ({"A": 0.9, "B": 0.8, "C": 0.9}, -0.021, True),
        ({"A": 0.9, "B": 0.8, "C": 0.9}, 0.88 - 0.9, False),  # 0.02 lower is not more than 0.02
        ({"A": 0.1, "B": 0.9}, 0.0, False),
        ({"A": 0.9}, -0.1, True),
    ],
)
def test_left_behind_follows_its_two_rules(
    scores: dict[str, float], gain: float | None, verdict: bool
) -> None:
    certain_gain = None
    if gain is not None:
        certain_gain = Gain(gain, alone=scores["A"] - gain, within_noise=False)
    found = left_behind("A", certain(scores), certain_gain)
    assert found is not None
    assert (found.verdict, found.doubtful) == (verdict, False)


@pytest.mark.parametrize(("stderr", "n"), [(None, 1), (0.05, 2), (0.2, 30)])
def test_where_the_cases_do_not_show_it_it_is_doubtful(stderr: float | None, n: int) -> None:
    scores = {"A": Number(0.5, stderr, n), "B": Number(0.8), "C": Number(0.8), "D": Number(0.8)}
    within_noise = None if stderr is None else True
    found = left_behind("A", scores, Gain(-0.1, alone=0.6, within_noise=within_noise))
    assert found is not None
    assert (found.verdict, found.doubtful) == (False, True)


@pytest.mark.parametrize("mean", [0.75, 1.0, 1.9])
def test_the_interval_is_that_of_a_t_test(mean: float) -> None:
    scores = [0.4, 0.6]  # their mean is 0.5, its standard error 0.1
    test = stats.ttest_1samp(scores, mean)
    interval = half_width(0.1, n=2)
    assert interval is not None
    assert (abs(0.5 - mean) > interval) == (test.pvalue < 0.05)


@pytest.mark.parametrize(
    "scores", [{"A": 0.1}, {"A": 0.1, "B": 0.9}, {"B": 0.9, "C": 0.9, "D": 0.9}]
)
def test_where_no_rule_applies_nothing_is_claimed(scores: dict[str, float]) -> None:
    assert left_behind("A", certain(scores), gain=None) is None


def test_without_standalone_no_gain_is_claimed(write_run: WriteRun) -> None:
    report = summarise(load_runs([write_run("FedAvg", {"elm": 0.7, "oak": 0.8})]))
    found = report["strategies"]["FedAvg"]
    assert report["standalone"] is None
    assert found["collaboration"] is None
    assert found["sites"]["elm"]["gain"] is None


def test_two_sites_have_no_correlation_and_equal_sites_none_either(write_run: WriteRun) -> None:
    runs = [
        write_run("Standalone", {"elm": 0.7, "oak": 0.8}),
        write_run("FedAvg", {"elm": 0.75, "oak": 0.8}),
    ]
    found = summarise(load_runs(runs))["strategies"]["FedAvg"]["collaboration"]
    assert found == {"pearson": None, "p_value": None, "euclid": pytest.approx(5.0)}
