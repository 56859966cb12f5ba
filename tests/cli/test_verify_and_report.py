# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl verify`` and ``report``: both read finished runs."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from helpers.command_line import run_json, write_run
from helpers.driving import SPEC, LeastSquares, vector
from helpers.tiny_networks import federation, receipts_of

from monai_fairfl.cli import main
from monai_fairfl.cli.runs import _folder_of
from monai_fairfl.errors import ConfigError
from monai_fairfl.report.collect import find_run, find_runs
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg, Standalone
from monai_fairfl.transports.in_process import InProcess


def edit_first_round(ledger: Path) -> None:
    text = ledger.read_text()
    ledger.write_text(text.replace('"round":0', '"round":7'))


def test_verify_reports_rounds_and_head_of_an_intact_chain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    found = run_json(capsys, "verify", run)["runs"][str(run)]
    assert found["rounds"] == 2
    assert found["finished"] is True
    assert found["head"] == Ledger(run / "ledger.jsonl").head


def test_verify_refuses_an_edited_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    edit_first_round(run / "ledger.jsonl")
    error = run_json(capsys, "verify", run, code=2)["error"]
    assert "line 3 does not follow line 2" in error


def test_verify_looks_at_every_strategy_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "FedAvg")
    write_run(tmp_path / "FedCE")
    assert len(run_json(capsys, "verify", tmp_path)["runs"]) == 2


def test_verify_looks_at_a_run_and_at_those_in_its_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outer = write_run(tmp_path / "run")
    inner = write_run(outer / "FedCE")
    found = run_json(capsys, "verify", outer)["runs"]
    assert sorted(found) == [str(outer), str(inner)]
    # The report is of the outer run alone.
    assert find_runs([outer]) == [outer]

    edit_first_round(inner / "ledger.jsonl")
    found = run_json(capsys, "verify", outer, code=2)["runs"]
    [problem] = found[str(inner)]["problems"]
    assert f"{inner / 'ledger.jsonl'}: line 3 does not" in problem
    assert "problems" not in found[str(outer)]


def test_an_extended_run_is_checked_against_heads_and_receipts_and_its_earlier_result_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation(FedAvg(), tmp_path, rounds=1).run()
    federation(FedAvg(), tmp_path, rounds=2).run(resume=True)
    run = tmp_path / "run"
    assert (run / "ended-0001" / "ledger.jsonl").exists()

    head = Ledger(run / "ledger.jsonl").head
    receipts = receipts_of(tmp_path, "elm")
    found = run_json(capsys, "verify", run, "--head", head, "--receipt", receipts)["runs"]
    assert list(found) == [str(run)]
    assert found[str(run)]["stored_head"]["covered"] == found[str(run)]["receipts"]["covered"] == 4


def test_verify_does_not_read_valuations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    (run / "valuations").mkdir()
    (run / "valuations" / "x.json").write_text("{}")
    assert str(run) in run_json(capsys, "verify", run)["runs"]
    error = run_json(capsys, "report", run, code=2)["error"]
    assert "x.json is damaged" in error


def finished_run(folder: Path, strategy: str = "FedAvg") -> Path:
    """A run whose ledger is of its own."""
    run = write_run(folder)
    (run / "ledger.jsonl").unlink()
    ledger = Ledger(run / "ledger.jsonl")
    ledger.append({"kind": "start", "strategy": strategy, "clients": [str(folder)]})
    return run


def test_a_run_is_found_in_the_workspace_of_an_engine(tmp_path: Path) -> None:
    """The simulator's server copies its results; a run holds those of its coalitions."""
    (tmp_path / "kept" / "server").mkdir(parents=True)
    run = finished_run(tmp_path / "kept" / "server" / "FedCE")
    copies = tmp_path / "nvflare" / "FedCE" / "server" / "simulate_job" / "fairfl"
    copies.parent.mkdir(parents=True)
    shutil.copytree(run, copies)
    (run / "valuations" / "retrained").mkdir(parents=True)
    finished_run(run / "valuations" / "retrained" / "elm")
    assert find_runs([tmp_path]) == [run]
    assert find_run(tmp_path) == run
    # The report goes beside the run: the engine empties its own folders.
    assert _folder_of([str(tmp_path)], [run]) == str(run)
    assert _folder_of([str(run)], [run]) == str(run)


def test_a_comparison_is_found_as_a_whole_and_other_runs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "try" / "run").mkdir(parents=True)
    names = ["FedAvg", "FedCE"]
    runs = [finished_run(tmp_path / "try" / "run" / name) for name in names]
    with pytest.raises(ConfigError, match="holds several runs: name the one.*FedAvg.*FedCE"):
        find_runs([tmp_path / "try"])
    (tmp_path / "try" / "run" / "config.json").write_text(json.dumps({"strategies": names}))
    assert find_runs([tmp_path / "try"]) == runs
    with pytest.raises(ConfigError, match="holds several runs"):
        find_run(tmp_path / "try")

    (tmp_path / "other" / "server").mkdir(parents=True)
    finished_run(tmp_path / "other" / "server" / "FedAvg")
    with pytest.raises(ConfigError, match="holds several runs"):
        find_runs([tmp_path])


def test_a_comparison_over_seeds_says_where_its_page_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my comparison"
    for name in ("FedAvg", "FedCE"):
        (out / "cells" / name).mkdir(parents=True)
        finished_run(out / "cells" / name / "seed-0")
    error = run_json(capsys, "report", out, code=2)["error"]
    assert error.endswith("FedCE/seed-0")
    page = out / "comparison.html"
    page.write_text("")
    error = run_json(capsys, "report", out, code=2)["error"]
    assert f"{out} holds several runs: name the one that you mean, {out / 'cells'}" in error
    assert error.endswith(f"The page that compares them is {page}")


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_folder_without_a_run_is_an_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run_json(capsys, command, tmp_path, code=2)["error"]
    assert "no run" in error


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_folder_that_does_not_exist_is_not_called_empty(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    error = run_json(capsys, command, "runs/fedce", code=2)["error"]
    assert error.startswith(f"runs/fedce does not exist (looked for {tmp_path}/runs/fedce)")

    write_run(tmp_path / "run")
    error = run_json(capsys, command, "run/ledger.jsonl", code=2)["error"]
    assert error.startswith("run/ledger.jsonl is a file: give the folder")
    assert error.endswith("a ledger alone must be in a folder, under the name ledger.jsonl")


@pytest.mark.slow
def test_report_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for strategy in (FedAvg(), Standalone()):
        clients = {"A": partial(LeastSquares, [1.0]), "B": partial(LeastSquares, [2.0])}
        federation = Federation(
            strategy,
            InProcess(clients),
            2,
            lambda: ({"w": vector([0.0])}, SPEC),
            run_dir=tmp_path / strategy.name,
        )
        federation.run()
    found = run_json(capsys, "report", tmp_path, "--out", tmp_path / "out")
    assert Path(found["html"]).is_file()
    assert Path(found["json"]).is_file()

    run = tmp_path / "FedAvg"
    assert main(["report", str(run)]) == 0
    assert f"Report: {run / 'report.html'}" in capsys.readouterr().out


def test_a_report_that_is_written_again_names_what_failed_and_has_not_gone_on_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "FedAvg")
    write_run(tmp_path / "FedCE")
    why = {"FedCE": "no memory was left", "CGSV": "a disk was full"}
    (tmp_path / "report.json").write_text(json.dumps({"failed": why}))

    run_json(capsys, "report", tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["failed"] == {"CGSV": "a disk was full"}

    # Elsewhere there may be a report of other runs.
    other = tmp_path / "other"
    other.mkdir()
    (other / "report.json").write_text(json.dumps({"failed": why}))
    run_json(capsys, "report", tmp_path, "--out", other)
    assert json.loads((other / "report.json").read_text())["failed"] == {}
