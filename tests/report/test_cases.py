# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores of cases leave a site's folder only where the federation was asked to share them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.client.state import ClientState
from monai_fairfl.report.cases import cases_csv, paired_differences
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.repeated import compared_cases
from monai_fairfl.report.run import Run

WriteRun = Callable[..., Path]
SCORES = {"a.nii": {"dice": 0.5, "cup": 0.4}, "=b.nii": {"dice": 0.7, "cup": float("nan")}}


def shared(write_run: WriteRun, share: bool, mean: float = 0.6) -> Path:
    """A run of one site with its cases' scores, also of an earlier attempt at the end."""
    config = {"share_cases": share, "overrides": {"split_fold": 1}}
    run = write_run("FedAvg", {"elm": mean}, seed=3, config=config)
    state = ClientState(run / "sites" / "elm" / "state")
    state.save_cases("FedAvg", "test_score-1-0", {"a.nii": {"dice": 0.1, "cup": 0.1}})
    state.save_cases("FedAvg", "test_score-1-1", SCORES)
    state.save_cases("other", "test_score-1-1", {"c.nii": {"dice": mean, "cup": mean}})
    return run


def test_cases_are_written_with_run_seed_fold_site_and_metric(write_run: WriteRun) -> None:
    warnings: list[str] = []
    text = cases_csv(load_runs([shared(write_run, True)]), warnings)
    assert text is not None and warnings == []
    header, *rows = csv.reader(text.splitlines())
    assert header == ["run", "strategy", "seed", "fold", "site", "case", "metric", "value"]
    about = ["FedAvg", "FedAvg", "3", "1", "elm"]
    assert rows == [
        [*about, "a.nii", "test_score:dice", "0.5"],
        [*about, "a.nii", "test_score:cup", "0.4"],
        [*about, "'=b.nii", "test_score:dice", "0.7"],
    ]


def test_cases_that_were_not_to_be_shared_are_not_written(write_run: WriteRun) -> None:
    assert cases_csv(load_runs([shared(write_run, False)]), []) is None


def test_cases_that_are_not_those_behind_the_ledgers_score_are_not_written(
    write_run: WriteRun,
) -> None:
    warnings: list[str] = []
    text = cases_csv(load_runs([shared(write_run, True, mean=0.65)]), warnings)
    assert text is not None and len(text.splitlines()) == 1
    assert warnings == ["FedAvg: elm has no table of the cases behind its test_score"]


def test_a_case_whose_name_is_no_utf8_has_its_row(write_run: WriteRun) -> None:
    run = shared(write_run, True, mean=0.8)
    case = os.fsdecode(b"Pr\xfcfung.nii")  # as a system with another encoding wrote it
    state = ClientState(run / "sites" / "elm" / "state")
    state.save_cases("FedAvg", "test_score-1-2", {case: {"dice": 0.8}})
    warnings: list[str] = []
    text = cases_csv(load_runs([run]), warnings)
    assert text is not None and warnings == []
    _, row = csv.reader(text.encode().decode().splitlines())
    assert row[5:] == [r"Pr\udcfcfung.nii", "test_score:dice", "0.8"]


@pytest.mark.parametrize("names", [["0012", "0007"], ["2", "1"]])
def test_cases_are_paired_by_names_that_are_digits(names: list[str], write_run: WriteRun) -> None:
    """As of DICOM series, each in a folder that is called by a number."""
    fedavg, fedce = in_another_order(write_run, names)
    differences = paired_differences(fedce, fedavg, "test_score")
    assert {site: sorted(found) for site, found in differences.items()} == {
        "elm": pytest.approx([0.05, 0.15])
    }


def test_cases_without_names_are_not_paired(write_run: WriteRun) -> None:
    """Their numbers are places in the order of a loader, which may differ from run to run."""
    fedavg, fedce = in_another_order(write_run, None)
    assert paired_differences(fedce, fedavg, "test_score") == {}


def in_another_order(write_run: WriteRun, names: list[str] | None) -> list[Run]:
    """Runs of two methods, which read two cases in opposite orders; without names, numbered."""
    for strategy, scores in {"FedAvg": [0.5, 0.7], "FedCE": [0.85, 0.55]}.items():
        run = write_run(strategy, {"elm": sum(scores) / 2})
        cases = names or ["0", "1"]
        if strategy == "FedCE" and names:
            cases = cases[::-1]
        table = {case: {"dice": score} for case, score in zip(cases, scores, strict=True)}
        ClientState(run / "sites" / "elm" / "state").save_cases(strategy, "test_score-1-0", table)
    return load_runs([run.with_name("FedAvg"), run])


def in_two_folds(write_run: WriteRun, patients: Sequence[Any], names: Sequence[str]) -> list[Path]:
    """Runs of two strategies, in two folds of one test case each.

    Args:
        write_run: the fixture.
        patients: the image of the test case of each fold.
        names: of these cases in the tables.
    """
    runs = []
    for strategy, mean in (("FedAvg", 0.6), ("FedCE", 0.7)):
        for fold in (0, 1):
            config = {"share_cases": True, "overrides": {"split_fold": fold}}
            folder = f"{strategy}-{fold}"
            run = write_run(strategy, {"elm": mean}, folder=folder, config=config)
            lists = {"training": [{"image": patients[1 - fold]}], "validation": []}
            lists["testing"] = [{"image": patients[fold]}]
            (run / "datalists").mkdir()
            (run / "datalists" / "elm.json").write_text(json.dumps(lists))
            state = ClientState(run / "sites" / "elm" / "state")
            state.save_cases(folder, "test_score-1-0", {names[fold]: {"dice": mean}})
            runs.append(run)
    return runs


@pytest.mark.parametrize(
    ("patients", "names"),
    [
        (["elm/P7/t2.nii", "elm/P8/t2.nii"], ["t2.nii", "t2.nii"]),
        ([["P7/t1.nii", "P7/t2.nii"], ["P8/t1.nii", "P8/t2.nii"]], ["t1.nii", "t1.nii"]),
        # A loader that names no files numbers its cases.
        (["elm/P7.nii", "elm/P8.nii"], ["0", "0"]),
    ],
)
def test_cases_of_two_folds_are_two_cases_though_their_names_are_the_same(
    patients: Sequence[Any], names: Sequence[str], write_run: WriteRun
) -> None:
    text = cases_csv(load_runs(in_two_folds(write_run, patients, names)), [])
    assert text is not None
    rows = list(csv.DictReader(text.splitlines()))
    expected = [f"fold {fold}/{name}" for fold, name in enumerate(names)]
    assert [row["case"] for row in rows] == [*expected, *expected]
    found = compared_cases(text, ["FedAvg", "FedCE"])
    assert found["metrics"]["test_score:dice"]["cases"] == {"elm": 2}


@pytest.mark.parametrize("names", [["P7.nii", "P8.nii"], ["P7.nii", "P7.nii"]])
def test_a_file_that_only_one_case_of_the_hospital_has_names_it(
    names: Sequence[str], write_run: WriteRun
) -> None:
    """Also where the case was tested in both folds, which no comparison may count twice."""
    runs = in_two_folds(write_run, ["elm/P7.nii", "elm/P8.nii"], names)
    text = cases_csv(load_runs(runs), [])
    assert text is not None
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["case"] for row in rows] == [*names, *names]


@pytest.mark.parametrize(
    "damage", ["case,dice\na.nii,\n", "case,DICE\na.nii,0.6\n", "case,dice\na.nii,0.6\nb\n"]
)
def test_a_damaged_table_of_cases_is_left_out_and_named(damage: str, write_run: WriteRun) -> None:
    run = shared(write_run, True)
    for file in (run / "sites" / "elm" / "state").glob("FedAvg-test_score-1-*.csv"):
        file.write_text(damage)
    warnings: list[str] = []
    text = cases_csv(load_runs([run]), warnings)
    assert text is not None and len(text.splitlines()) == 1
    (warning,) = warnings
    assert warning.startswith("FedAvg: the table of the cases behind test_score of elm is damaged")


@pytest.mark.parametrize("share", [True, False])
def test_the_report_has_the_file_only_where_the_run_shares_its_cases(
    share: bool, write_run: WriteRun
) -> None:
    pytest.importorskip("jinja2")
    from monai_fairfl.report import write_report

    run = shared(write_run, share)
    write_report([run])
    assert (run / "cases.csv").exists() == share
