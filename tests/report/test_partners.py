# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs are compared with those of the same data, split and seed, and with no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.report import as_text, write_report
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.columns import columns, gain_columns, judged_groups
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]


def two_seeds(write_run: WriteRun, strategies: Mapping[str, Sequence[float]]) -> list[Path]:
    """Runs of the seeds 0 and 1: strategy -> the Dice of the one site, oak, with each."""
    runs = []
    for strategy, dice in strategies.items():
        for seed, value in enumerate(dice):
            folder = f"seed{seed}/{strategy}"
            runs.append(write_run(strategy, {"oak": value}, seed=seed, folder=folder))
    return runs


def test_a_gain_is_measured_against_standalone_of_the_same_seed(write_run: WriteRun) -> None:
    runs = two_seeds(write_run, {"Standalone": [0.6, 0.805], "FedAvg": [0.65, 0.826]})
    strategies = summarise(load_runs(runs))["strategies"]
    gains = {name: found["sites"]["oak"]["gain"] for name, found in strategies.items()}
    assert gains["FedAvg (seed 0)"]["value"] == pytest.approx(0.05)
    assert gains["FedAvg (seed 1)"]["value"] == pytest.approx(0.021)
    assert gains["FedAvg (seed 1)"]["alone"] == 0.805
    assert strategies["FedAvg (seed 1)"]["standalone"] == "Standalone (seed 1)"


def test_a_run_without_a_partner_says_so_on_the_page_in_the_text_and_in_the_json(
    write_run: WriteRun, tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    runs = [
        write_run("Standalone", {"oak": 0.6, "elm": 0.5, "yew": 0.4}, seed=0),
        write_run("FedAvg", {"oak": 0.826, "elm": 0.7, "yew": 0.3}, seed=1),
    ]
    report = write_report(runs, tmp_path)
    found = report["strategies"]["FedAvg"]
    assert found["standalone"] is None
    assert found["no_standalone"] == "Standalone has another seed"
    assert found["collaboration"] is None
    assert found["sites"]["oak"]["gain"] is None
    assert not gain_columns(report)[0].values
    warning = (
        "What FedAvg gained over training alone is not known, because Standalone has another seed"
    )
    assert warning in report["warnings"]
    assert report["warnings"] == json.loads((tmp_path / "report.json").read_text())["warnings"]
    for text in (as_text(report), (tmp_path / "report.html").read_text()):
        assert warning in text
        assert "0.226" not in text


def test_a_best_number_is_marked_among_runs_of_the_same_seed_only(write_run: WriteRun) -> None:
    runs = two_seeds(write_run, {"FedAvg": [0.6, 0.9], "FedCE": [0.7, 0.8]})
    report = summarise(load_runs(runs))
    mean = next(column for column in columns(report) if column.title == "Mean")
    assert mean.winners(judged_groups(report)) == {"FedCE (seed 0)", "FedAvg (seed 1)"}


def test_the_sentences_do_not_choose_the_luckiest_seed(write_run: WriteRun) -> None:
    runs = two_seeds(
        write_run, {"Standalone": [0.6, 0.6], "FedAvg": [0.65, 0.9], "FedCE": [0.7, 0.8]}
    )
    for run in runs:  # the focus is chosen by validation cases
        records = (run / "ledger.jsonl").read_text()
        (run / "ledger.jsonl").write_text(records.replace('"test_score"', '"score"'))
    assert summarise(load_runs(runs))["focus"] == "FedCE (seed 0)"


def with_lists(run: Path, testing: Sequence[str]) -> Path:
    """The data list of oak beside the run's ledger, with these test cases."""
    parts = {"training": ["a"], "validation": ["b"], "testing": testing}
    lists: dict[str, Any] = {"split": {}}
    for part, names in parts.items():
        lists[part] = [{"image": name, "label": name} for name in names]
    (run / "datalists").mkdir()
    (run / "datalists" / "oak.json").write_text(json.dumps(lists))
    return run


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"testing": ["d"]}, "split"),
        ({"data": {"oak": "/other/oak"}}, "data"),
        ({"seed": 5}, "seed"),
        ({}, ""),
    ],
)
def test_another_split_another_folder_and_another_seed_are_not_compared(
    change: dict[str, Any], differs: str, write_run: WriteRun
) -> None:
    alone = with_lists(write_run("Standalone", {"oak": 0.6}), testing=["c"])
    config = {"data": change["data"]} if "data" in change else {}
    run = write_run("FedAvg", {"oak": 0.7}, config=config, seed=change.get("seed", 0))
    with_lists(run, testing=change.get("testing", ["c"]))
    found = summarise(load_runs([alone, run]))["strategies"]["FedAvg"]
    if differs:
        assert found["no_standalone"] == f"Standalone has another {differs}"
        assert found["sites"]["oak"]["gain"] is None
    else:
        assert found["no_standalone"] is None
        assert found["sites"]["oak"]["gain"] is not None


@pytest.mark.parametrize(
    ("digests", "gained"), [("1 3", False), ("1 2", True), ("1 2 3", True), (None, True)]
)
def test_a_run_after_a_label_was_corrected_is_not_compared_with_one_before(
    digests: str | None, gained: bool, write_run: WriteRun
) -> None:
    runs = []
    for name, of_run in (("Standalone", "1 2"), ("FedAvg", digests)):
        run = with_lists(write_run(name, {"oak": 0.7}), testing=["c"])
        if of_run is not None:  # an engine's run has none
            (run / "datalists" / "oak.digests").write_text(of_run)
        runs.append(run)
    report = summarise(load_runs(runs))
    found = report["strategies"]["FedAvg"]
    assert (found["sites"]["oak"]["gain"] is not None) == gained
    assert found["no_standalone"] == (None if gained else "Standalone has another data")
    assert bool(report["warnings"]) != gained


def test_other_counts_of_training_cases_are_another_split(write_run: WriteRun) -> None:
    runs = []
    for name, cases in (("Standalone", 5), ("FedAvg", 6)):
        run = write_run(name, {"oak": 0.7}, rounds=[{"cases": {"oak": cases}}])
        (run / "config.json").unlink()  # as of an engine that records none
        runs.append(run)
    report = summarise(load_runs(runs))
    assert report["strategies"]["FedAvg"]["no_standalone"] == "Standalone has another split"
    assert report["sites"]["oak"]["cases"] is None  # not one of the two numbers


def test_what_could_not_be_checked_is_named(write_run: WriteRun) -> None:
    runs = [write_run(name, {"oak": 0.7}) for name in ("Standalone", "FedAvg")]
    (runs[1] / "config.json").unlink()
    report = summarise(load_runs(runs))
    assert report["strategies"]["FedAvg"]["standalone"] == "Standalone"
    assert report["warnings"] == [
        "Standalone, FedAvg are compared, but whether they have the same data and split is not "
        "recorded"
    ]


def test_a_run_that_may_be_of_several_splits_is_compared_with_none(write_run: WriteRun) -> None:
    folds = []
    for fold, testing in enumerate((["c"], ["d"])):
        config = {"overrides": {"split_fold": fold}}
        run = write_run("Standalone", {"oak": 0.6}, folder=f"fold{fold}", config=config)
        folds.append(with_lists(run, testing))
    unknown = write_run("FedAvg", {"oak": 0.7})
    (unknown / "config.json").unlink()
    report = summarise(load_runs([*folds, unknown]))
    assert report["compared"] == [["Standalone (fold 0)"], ["Standalone (fold 1)"], ["FedAvg"]]
    assert report["strategies"]["FedAvg"]["sites"]["oak"]["gain"] is None
    assert any(
        line.startswith("FedAvg is compared with no other run") for line in report["warnings"]
    )
