# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A report of less than a full run is a first look, with the way to a full run."""

from __future__ import annotations

import html
import json
import shlex
from pathlib import Path

import pytest
from helpers.runs_to_judge import COMMAND, RECIPE, WriteRun, run

from monai_fairfl.report import as_text, write_report
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.first_look import first_look_lines
from monai_fairfl.report.summary import summarise
from monai_fairfl.run_folder.ledger import Ledger


def test_the_short_command_is_shown_before_the_long_one_and_its_standalone_is_counted(
    write_run: WriteRun,
) -> None:
    short = ["monai-fairfl", "train", "my hospitals", "--strategies", "Standalone", "FedCE"]
    config = {"command": COMMAND, "full_command": short}
    fedce = run(write_run, 3, 1, name="FedCE", config=config)
    schedule = {"planned": [3], "seconds": {"0": 120.0, "1": 120.0, "2": 120.0}}
    (fedce / "schedule.json").write_text(json.dumps(schedule))

    report = summarise(load_runs([fedce]))
    (entry,) = report["first_look"]
    assert entry["command"] == "monai-fairfl train 'my hospitals' --strategies Standalone FedCE"
    # Two trainings of eight epochs, though one was run.
    assert entry["seconds"] == pytest.approx(2 * 8 * 120)
    assert "run Standalone beside" not in " ".join(first_look_lines(report))


def test_a_first_look_says_so_with_the_command_and_the_time_of_a_full_run(
    write_run: WriteRun, tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    config = {"command": COMMAND, "trained_with": {"size": [96, 96]}}
    runs = [run(write_run, 3, 1, name=name, config=config) for name in ("Standalone", "FedCE")]
    # Two minutes for a round of one epoch: 2 x 8 epochs are 32 minutes, and each starts once.
    for path in runs:
        schedule = {"planned": [3], "seconds": {"0": 500.0, "1": 121.0, "2": 119.0}}
        (path / "schedule.json").write_text(json.dumps(schedule))
    report = write_report(runs, tmp_path)
    command = COMMAND[:7] + ["4", "--local_epochs", "2", "--run_dir", "runs/a-full"]
    command += ["--overrides#size", "[128, 128]"]
    (entry,) = report["first_look"]
    assert entry["strategies"] == ["Standalone", "FedCE"]
    assert entry["command"] == shlex.join(command)
    assert entry["seconds"] == pytest.approx(2 * (380 + 8 * 120))

    page = (tmp_path / "report.html").read_text()
    text = as_text(report)
    for words in (
        "It calls no hospital better off",
        "Standalone, FedCE: 3 rounds of 1 local epoch, 3 epochs in all; a full run of the bundle "
        "has 8 (4 rounds of 2).",
        "It trains with size [96, 96]; the bundle was measured with size [128, 128].",
        "Train a full run, from the start and in a new folder, about 45 minutes or more: "
        + entry["command"],
        "This command leaves out size [96, 96].",
        "FedCE is higher than training alone at 0 of 3 hospitals. This is a hint, not a verdict.",
    ):
        assert words in html.unescape(page), words
        assert words in text, words
    assert text.startswith("This was a first look")
    assert "0.800" in text

    body = page.split("<body>")[1]
    assert '"best"' not in body
    for verdict in ("left behind.", "is left behind", "better off than alone", "The best of each"):
        assert verdict not in body
        assert verdict not in text


@pytest.mark.parametrize(
    ("seconds", "time"),
    [
        # Two rounds of one epoch: eight epochs, and the start of 480 seconds once.
        ({"0": 600.0, "1": 120.0}, "about 24 minutes or more: "),
        (
            {"0": 600.0},
            "about 80 minutes by the one round that was timed, which includes the start: ",
        ),
    ],
)
def test_the_start_is_counted_once_and_a_single_round_is_no_lower_bound(
    seconds: dict[str, float], time: str, write_run: WriteRun
) -> None:
    config = {"command": COMMAND, "trained_with": {"size": [96, 96]}}
    path = run(write_run, 2, 1, config=config)
    (path / "schedule.json").write_text(json.dumps({"planned": [2], "seconds": seconds}))
    lines = " ".join(first_look_lines(summarise(load_runs([path]))))
    assert f"in a new folder, {time}" in lines


def test_without_a_command_the_full_run_is_described_in_numbers(write_run: WriteRun) -> None:
    text = as_text(write_report([run(write_run, rounds=3)]))
    full = "A full run has 4 rounds of 2 local epochs, from the start and in a new run_dir."
    assert full in text


def test_every_override_that_differs_from_the_measured_training_is_named(
    write_run: WriteRun,
) -> None:
    full = ["monai-fairfl", "train", "data", "--overrides", '{"channels": [4, 8]}']
    overrides = {"size": [96, 96], "channels": [4, 8]}
    config = {
        "command": COMMAND,
        "full_command": full,
        "overrides": overrides,
        "trained_with": {"size": [96, 96]},
        "own_overrides": overrides,
    }
    (entry,) = summarise(load_runs([run(write_run, 3, 1, config=config)]))["first_look"]
    assert entry["trained_with"] == (
        "It trains with size [96, 96], channels [4, 8]; the bundle was measured with "
        "size [128, 128], its own channels."
    )
    assert entry["changes"] == (
        "This command leaves out size [96, 96]; it keeps channels [4, 8], with which the bundle "
        "was not measured."
    )


def test_what_the_overlay_of_a_first_look_sets_is_left_out(write_run: WriteRun) -> None:
    config = {
        "command": [*COMMAND, "--config_file", "['b/federate.json', 'b/quick.json']"],
        "full_command": ["monai-fairfl", "train", "data"],
        "trained_with": {"size": [64, 64]},
        "own_overrides": {"channels": [16, 32]},
    }
    (entry,) = summarise(load_runs([run(write_run, 3, 1, config=config)]))["first_look"]
    assert entry["changes"] == "This command leaves out size [64, 64], channels [16, 32]."


def test_a_first_look_at_few_cases_leads_to_folds(write_run: WriteRun) -> None:
    folds = ["monai-fairfl", "compare", "data", "--folds", "4"]
    full = ["monai-fairfl", "train", "data", "--strategies", "Standalone", "FedCE"]
    config = {
        "local_epochs": 1,
        "full_run": RECIPE,
        "trained_with": RECIPE["overrides"],
        "full_command": full,
        "folds_command": folds,
    }
    runs = []
    for name, better in (("Standalone", 0.0), ("FedCE", 0.1)):
        scores = {
            "elm": (0.7 + better, 0.1, 2),
            "oak": (0.8 - better, 0.1, 4),
            "yew": (0.7 + better, 0.01, 20),
        }
        path = write_run(name, scores, rounds=[{}], config=config)
        schedule = {"planned": [1], "seconds": {"0": 120.0}}
        (path / "schedule.json").write_text(json.dumps(schedule))
        runs.append(path)
    report = write_report(runs)
    lines = first_look_lines(report)
    assert (
        "FedCE is higher than training alone at 2 of 3 hospitals. This is a hint, not a verdict."
        in lines
    )
    assert (
        "A full run alone will hardly tell at hospitals with few test cases (elm 2, oak 4). "
        "Training in folds tests each case once, about 2.1 hours by the one round that was timed, "
        "which includes the start: "
        "monai-fairfl compare data --folds 4"
    ) in lines
    advice = {site: row["advice"] for site, row in report["decision"]["hospitals"].items()}
    assert advice["elm"] == [
        "This was a first look, and 2 test cases will hardly tell: train a full run in folds"
    ]
    assert advice["yew"] == ["This was a first look: train the full run, then decide"]


def test_empty_test_labels_are_named_and_folds_are_no_help_there(write_run: WriteRun) -> None:
    config = {"local_epochs": 1, "full_run": RECIPE, "trained_with": RECIPE["overrides"]}
    scores = {"elm": (0.7, 0.1, 2), "oak": (0.8, 0.1, 8)}
    path = write_run("FedCE", scores, rounds=[{}], config=config, finished=False)
    closing = {}
    for site, score in scores.items():
        distance = {"mean": {"value": 9.0, "stderr": 1.0, "n": 8}}
        dice = {"mean": dict(zip(("value", "stderr", "n"), score))}
        closing[site] = {"own": {"test_score": dice, "test_hd95": distance}}
    Ledger(path / "ledger.jsonl").append({"kind": "end", "scores": closing})
    report = write_report([path])
    assert report["warnings"] == ["elm: 6 of 8 test labels are empty and have no Dice"]
    assert "in folds" not in " ".join(first_look_lines(report))
    [advice] = report["decision"]["hospitals"]["elm"]["advice"]
    assert advice == (
        "This was a first look, and 2 test cases will hardly tell: 6 more cases have empty labels"
    )


def test_the_run_of_an_engine_leads_to_jobs_and_not_to_folds(write_run: WriteRun) -> None:
    config = {
        "engine": "NVIDIA FLARE",
        "local_epochs": 1,
        "full_run": RECIPE,
        "trained_with": RECIPE["overrides"],
    }
    scores = {"elm": (0.8, 0.1, 2), "oak": (0.7, 0.1, 20)}
    report = write_report([write_run("FedCE", scores, rounds=[{}], config=config)])
    lines = first_look_lines(report)
    for line in (
        "A full run has 4 rounds of 2 local epochs, from the start: submit a new job with "
        "--num-rounds 4 --local-epochs 2.",
        "A full run alone will hardly tell at hospitals with few test cases (elm 2).",
        "A verdict compares with training alone: submit a second job with --strategy Standalone, "
        "and give both runs to monai-fairfl report RUN1 RUN2.",
    ):
        assert line in lines
    advice = report["decision"]["hospitals"]["elm"]["advice"]
    assert advice == [
        "This was a first look, and 2 test cases will hardly tell: train the full run, with more "
        "test cases"
    ]


def test_the_full_run_of_an_engine_leads_to_a_job_that_trains_alone(write_run: WriteRun) -> None:
    path = run(write_run, rounds=4, config={"engine": "Flower"})
    report = write_report([path])
    assert report["decision"]["hospitals"]["elm"]["advice"] == [
        "To know the gain over training alone, submit a second job with --strategy Standalone, and "
        "give both runs to monai-fairfl report RUN1 RUN2"
    ]
    alone = run(write_run, rounds=4, name="Standalone", config={"engine": "Flower"})
    report = write_report([alone, path])
    assert report["strategies"]["FedCE"]["sites"]["elm"]["gain"]["value"] == 0.0
    assert report["decision"]["hospitals"]["elm"]["verdict"] == "as_good"
