# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Only a full run is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.runs_to_judge import RECIPE, WriteRun, run

from monai_fairfl.report import write_report
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.columns import columns, judged_groups
from monai_fairfl.report.summary import summarise


def why_not_judged(*runs: Path) -> dict[str, str | None]:
    """name -> why it is not judged."""
    strategies = summarise(load_runs(runs))["strategies"]
    return {name: found["not_judged"] for name, found in strategies.items()}


def test_a_full_run_is_why_not_judged(write_run: WriteRun) -> None:
    report = summarise(load_runs([run(write_run, rounds=4)]))
    found = report["strategies"]["FedCE"]
    assert found["judged"]
    assert report["first_look"] == []
    verdicts = {site: result["left_behind"]["verdict"] for site, result in found["sites"].items()}
    assert verdicts == {"elm": False, "oak": False, "yew": True}


def test_as_many_epochs_in_other_rounds_are_a_full_run(write_run: WriteRun) -> None:
    assert why_not_judged(run(write_run, rounds=8, local_epochs=1)) == {"FedCE": None}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": 3}, "3 rounds of 2 local epochs"),
        ({"rounds": 4, "dice": 0.55}, "its mean Dice is 0.450"),
        ({"rounds": 4, "planned": [2, 4]}, "it was begun with 2 rounds"),
        ({"rounds": 6, "planned": [4, 6]}, "it was begun with 4 rounds"),
        ({"rounds": 4, "planned": [None, 4]}, "its planned number"),
        ({"rounds": 3, "planned": [4]}, "it ended after 3 of 4 rounds"),
        ({"rounds": 4, "finished": False}, "it is unfinished after 4 of 4 rounds"),
        ({"rounds": 2, "planned": [3], "finished": False}, "3 rounds of 2 local epochs"),
        ({"rounds": 3, "planned": [2, 4], "finished": False}, "it was begun with 2 rounds"),
        ({"rounds": 4, "config": {"full_run": None}}, "its configuration has no full_run"),
        (
            {"rounds": 4, "config": {"full_run": {"rounds": 0}}},
            "its config.json is wrong: full_run needs rounds",
        ),
        (
            {"rounds": 4, "config": {"local_epochs": None}},
            "its config.json does not record local_epochs",
        ),
    ],
)
def test_what_is_no_full_run_that_has_learnt_gets_no_verdict(
    changes: dict[str, Any], why: str, write_run: WriteRun
) -> None:
    report = write_report([run(write_run, **changes)])
    found = report["strategies"]["FedCE"]
    assert found["not_judged"].startswith(why)
    assert all(site["left_behind"] is None for site in found["sites"].values())
    assert report["overview"] == ""
    assert report["first_look"][0]["strategies"] == ["FedCE"]


def test_a_run_of_an_engine_that_recorded_nothing_is_not_why_not_judged(
    write_run: WriteRun,
) -> None:
    path = run(write_run, rounds=4)
    (path / "config.json").unlink()
    assert why_not_judged(path) == {
        "FedCE": "nobody said how long a full training is: the run has no config.json with full_run"
    }


def test_a_strategy_that_fails_evenly_is_not_the_best(write_run: WriteRun) -> None:
    alone = run(write_run, rounds=4, name="Standalone")
    other = run(write_run, rounds=4, name="FedAvg", dice=0.85)
    failed = write_run(
        "CFFL",
        dict.fromkeys(["elm", "oak", "yew"], 0.1),
        rounds=[{}] * 4,
        config={"local_epochs": 2, "full_run": RECIPE},
    )
    report = summarise(load_runs([alone, other, failed]))
    deviation = next(column for column in columns(report) if column.title == "Std")
    assert deviation.values["CFFL"] < deviation.values["FedAvg"]
    assert "CFFL" not in deviation.winners(judged_groups(report))


def test_a_full_run_is_not_judged_against_a_short_yardstick(write_run: WriteRun) -> None:
    alone = run(write_run, rounds=1, name="Standalone")
    full = run(write_run, rounds=4)
    assert (
        why_not_judged(alone, full)["FedCE"]
        == "Standalone, with which it is compared, is not a full run"
    )

    # Fully trained: so little is what a site reaches alone.
    poor = run(write_run, rounds=4, name="Standalone", dice=0.4, folder="poor")
    assert why_not_judged(poor, full)["FedCE"] is None


def test_who_cannot_be_judged_after_a_longer_training_is_not_sent_to_one(
    write_run: WriteRun,
) -> None:
    config = {"local_epochs": 1, "full_run": {"rounds": 1, "local_epochs": 1, "mean_dice": 0.5}}
    path = write_run("FedCE", {"elm": (0.3, 0.1, 9)}, rounds=[{}], config=config)
    (path / "schedule.json").write_text(json.dumps({"planned": [1], "seconds": {"0": 1.0}}))
    report = write_report([path])
    assert (
        "its mean Dice is 0.300, and nothing is judged below 0.5" in report["first_look"][0]["why"]
    )
    advice = report["decision"]["hospitals"]["elm"]["advice"]
    assert advice == ["Read in the first lines of report.html why nothing is judged"]
