# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of the strategies as columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monai_fairfl.report import as_text
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.columns import Column, columns, judged_groups
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]


def test_the_best_is_the_highest_mean_and_the_lowest_spread_and_ties_share_it(
    write_run: WriteRun,
) -> None:
    runs = [
        write_run("P", {"A": 0.6, "B": 0.7, "C": 0.8}),
        write_run("Q", {"A": 0.6, "B": 0.9, "C": 0.9}),
    ]
    report = summarise(load_runs(runs))
    best = {column.title: column.winners(judged_groups(report)) for column in columns(report)}
    assert best["Mean"] == {"Q"}
    assert best["Std"] == {"P"}
    assert best["Gap"] == {"P"}
    assert best["C"] == {"Q"}
    assert best["A"] == best["Worst"] == set()  # all alike


def test_a_strategy_that_is_compared_with_none_is_not_the_best() -> None:
    assert Column("Mean", {"P": 0.9, "Q": 0.2}, best=1).winners([["Q"]]) == set()


def test_groups_of_sites_have_means_of_their_own(write_run: WriteRun) -> None:
    groups = {"corrupted": ["elm"], "clean": ["hazel", "oak"]}
    scores = {"elm": 0.5, "hazel": 0.8, "oak": 0.9}
    runs = [write_run(name, scores, groups=groups) for name in ("FedAvg", "FedISM")]
    report = summarise(load_runs(runs))
    means = {column.title: column.values["FedISM"] for column in columns(report)}
    assert means["Mean, corrupted"] == 0.5
    assert means["Mean, clean"] == pytest.approx(0.85)
    assert report["groups"] == groups
    assert "Mean, corrupted" in as_text(report)
