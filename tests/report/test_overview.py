# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The overview counts the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.summary import summarise
from monai_fairfl.report.verdicts import counted, overview

WriteRun = Callable[..., Path]


def test_the_overview_counts_each_hospital_once(write_run: WriteRun) -> None:
    alone = {
        "elm": (0.8, 0.1, 2),
        "oak": (0.8, 0.01, 20),
        "yew": (0.8, 0.03, 1),
        "ash": (0.8, 0.01, 20),
        "box": (0.8, 0.01, 9),
    }
    joined = {
        "elm": (0.77, 0.1, 2),
        "oak": (0.7, 0.01, 20),
        "yew": (0.9, 0.03, 1),
        "ash": (0.9, 0.01, 20),
    }
    runs = write_run("Standalone", alone), write_run("FedCE", joined)
    report = summarise(load_runs(runs))
    assert counted(report, "FedCE") == {
        "better": 1,
        "left_behind": 1,
        "perhaps_left_behind": 1,
        "too_few_cases": 1,
        "absent": 1,
    }
    assert overview(report).startswith("FedCE, 5 hospitals: 1 better off")
    assert overview(summarise(load_runs(runs[:1]))) == ""
