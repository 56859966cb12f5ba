# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a report reads and writes: CSV files equal the ledger, and what is damaged is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import bytes_of
from helpers.faults_of_folders import forge
from helpers.reports import rows_of
from helpers.scripted_run import call_sites, report_of, train, with_cases

from monai_fairfl.cli import main
from monai_fairfl.errors import FairFLError
from monai_fairfl.report import write_report, write_report_if_possible
from monai_fairfl.strategies import FedAvg, FedCE, Standalone

SCORES = {"elm": {"test_score": {"mean": (0.6, 0.1, 2), "gland": 0.5}, "score": 0.7}, "oak": 0.8}


def test_metrics_csv_holds_every_measurement_with_its_round_and_model(tmp_path: Path) -> None:
    given = {"about": {"elm": {"measured": {"global_score": [0.1, 0.2]}}}, "seed": 3}
    report_of(tmp_path, {"FedAvg": SCORES}, 2, config={"overrides": {"split_fold": 2}}, **given)
    rows = rows_of(tmp_path / "metrics.csv")
    runs = {(row["run"], row["strategy"], row["seed"], row["fold"]) for row in rows}
    assert runs == {("FedAvg", "FedAvg", "3", "2")}
    columns = ("measurement", "class", "value", "stderr", "n", "round", "of_round")
    # Of the initial model, and of the result of round 0; none of what the strategy made.
    assert {tuple(row[name] for name in columns) for row in rows if row["site"] == "elm"} == {
        ("global_score", "mean", "0.1", "", "", "0", "-1"),
        ("global_score", "mean", "0.2", "", "", "1", "0"),
        ("weight", "mean", "0.5", "", "", "0", ""),
        ("weight", "mean", "0.5", "", "", "1", ""),
        ("own:score", "mean", "0.7", "", "", "2", "1"),
        ("own:test_score", "mean", "0.6", "0.1", "2", "2", "1"),
        ("own:test_score", "gland", "0.5", "", "", "2", "1"),
    }


def test_no_cell_of_a_csv_file_is_run_by_a_spreadsheet(tmp_path: Path) -> None:
    evil = {"elm": '=HYPERLINK("http:x")', "oak": "+1", "yew": "-1", "ash": "@SUM(A1)"}
    ranges = {"ranges": {"test_score": [-1, 1]}, "config": {"share_cases": True}}
    run = train(tmp_path / "run", FedAvg(), dict.fromkeys(evil, -0.5), **ranges)
    with_cases(call_sites(run, {**evil, "FedAvg": "=FedAvg"}), "+1", {"=b.nii": -0.5})
    write_report([run])
    sites = set()
    for name in ("metrics.csv", "cases.csv"):
        for row in rows_of(run / name):
            sites.add(row["site"])
            assert row["run"] == "'=FedAvg"
    assert sites == {f"'{name}" for name in evil.values()}
    # A negative number stays one.
    [case] = rows_of(run / "cases.csv")
    assert (case["case"], case["value"]) == ("'=b.nii", "-0.5")


def shared(folder: Path, dice: float = 0.6, share: bool = True) -> Path:
    """A run whose hospital stored its cases, also those of an earlier attempt at the end."""
    config = {"share_cases": share, "overrides": {"split_fold": 4}}
    run = train(folder, FedAvg(), {"elm": (dice, 0.1, 2)}, config=config)
    with_cases(run, "elm", {"a.nii": 0.1, "b.nii": 0.1})
    table = with_cases(run, "elm", {"a.nii": 0.5, "b.nii": 0.7})
    table.rename(table.with_name(f"{run.name}-test_score-1-1.csv"))
    return run


def test_scores_of_cases_leave_a_hospital_only_if_they_are_to_be_shared_and_are_whole(
    tmp_path: Path,
) -> None:
    run, private = shared(tmp_path / "shared"), shared(tmp_path / "private", share=False)
    write_report([run])
    found = {row["case"]: (row["metric"], row["value"]) for row in rows_of(run / "cases.csv")}
    # Files of several patients may have one name in other folds.
    expected = {"fold 4/a.nii": "0.5", "fold 4/b.nii": "0.7"}
    assert found == {case: ("test_score:dice", dice) for case, dice in expected.items()}
    write_report([private])
    assert not (private / "cases.csv").exists()
    assert not [file for file in private.glob("report.*") if "a.nii" in file.read_text()]

    for table in run.glob("sites/elm/state/*.csv"):
        table.write_text("case,DICE\na.nii,0.6\nb\n")
    for damaged in (run, shared(tmp_path / "other", dice=0.65)):
        [warning] = write_report([damaged])["warnings"]
        assert rows_of(damaged / "cases.csv") == []
        assert "elm" in warning and "test_score" in warning and "no table" in warning


# ---- what is refused


def edited(run: Path) -> None:
    file = run / "ledger.jsonl"
    file.write_text(file.read_text().replace('"seed":0', '"seed":1'))


def valuation(run: Path) -> None:
    (run / "valuations").mkdir()
    (run / "valuations" / "one.json").write_text('{"name"')


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "edited": (edited, "ledger.jsonl: line 2"),
    "no opening": (lambda run: forge(run, lambda records: records.pop(0)), "opening"),
    "settings": (lambda run: (run / "settings.json").write_text("{"), "settings.json is damaged"),
    "valuation": (valuation, r"one\.json .*damaged"),
    "no run": (lambda run: (run / "ledger.jsonl").unlink(), "no run"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_trusted_is_refused_by_its_name_and_nothing_is_written(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", FedAvg(), {"elm": 0.5})
    break_it, cause = DAMAGES[damage]
    break_it(run)
    with pytest.raises(FairFLError, match=f"(?s){run}.*{cause}"):
        write_report([run], tmp_path / "out")
    assert main(["report", str(run), "--out", str(tmp_path / "out")]) == 2
    assert str(run) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    # After a training nobody loses the run over it.
    assert write_report_if_possible([run], tmp_path / "out") is None


# ---- what is written


def test_the_run_stays_as_it_was_and_equal_runs_have_equal_reports(tmp_path: Path) -> None:
    found = []
    for root in ("a", "b"):
        for strategy in (Standalone(), FedCE()):
            train(tmp_path / root / strategy.name, strategy, SCORES, 2)
        runs = bytes_of(tmp_path / root, "**/*")
        write_report([tmp_path / root, tmp_path / root / "FedCE"], tmp_path / f"out-{root}")
        written = bytes_of(tmp_path / f"out-{root}", "**/*")
        # The page shows how long a round took.
        found.append({file: text for file, text in written.items() if not file.endswith(".html")})
        assert len(written) == 5
        assert bytes_of(tmp_path / root, "**/*") == runs
    assert found[0] == found[1]
