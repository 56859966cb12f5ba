# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl verify`` and ``report``: what a finished run shows, and which one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.command_line import Commands
from helpers.faults_of_folders import Records, forge
from helpers.tiny_networks import SITES, receipts_of

from monai_fairfl import read_ledger
from monai_fairfl.run import Ledger


def heads(run: Path) -> list[str]:
    """The head after each record: what the next one names as its previous one."""
    found = [record["previous"] for record in read_ledger(run / "ledger.jsonl")[1:]]
    return [*found, Ledger(run / "ledger.jsonl").head]


def forget_arguments(records: Records) -> None:
    records[0]["configuration"] = None


def test_an_intact_ledger_is_covered_as_far_as_heads_receipts_and_a_replay_reach(
    small: Path, cli: Commands
) -> None:
    run_dir = small / "run"
    found = cli.json("verify", run_dir)["runs"][str(run_dir)]
    assert (found["rounds"], found["finished"]) == (3, True)
    assert found["head"] == heads(run_dir)[-1]

    receipts = [receipts_of(small, site) for site in SITES]
    words = ["verify", run_dir, "--head", heads(run_dir)[2], "--receipt", *receipts, "--replay"]
    proofs = cli.json(*words)["runs"][str(run_dir)]
    assert (proofs["stored_head"]["covered"], proofs["receipts"]["covered"]) == (3, 5)
    # The chain alone cannot show recomputed hashes, and says so.
    assert "--receipt" in cli.run("verify", run_dir)
    assert "NOT RIGHT" in cli.run("verify", run_dir, "--head", "0" * 64, code=2)
    assert proofs["replay"]["problems"] == [] and proofs["replay"]["numbers"] > 30


def test_of_several_runs_a_broken_one_hides_no_other(small: Path, cli: Commands) -> None:
    second = small / "second"
    shutil.copytree(small / "run", second)
    forge(second, forget_arguments)
    runs = cli.json("verify", small, "--replay", code=2)["runs"]
    assert runs[str(small / "run")]["replay"]["problems"] == []
    assert "arguments" in runs[str(second)]["replay"]["refused"]

    ledger = second / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("elm", "oak", 1))
    runs = cli.json("verify", small, code=2)["runs"]
    [problem] = runs[str(second)]["problems"]
    assert str(ledger) in problem
    assert runs[str(small / "run")]["rounds"] == 3 and "problems" not in runs[str(small / "run")]


def test_receipts_that_say_nothing_of_the_run_are_refused(small: Path, cli: Commands) -> None:
    receipts = small / "receipts.jsonl"
    receipts.write_text('{"client": "elm", "run": "absent", "round": 0, "head": ""}\n')
    words = ["verify", small / "run", "--receipt", receipts]
    assert "absent" in cli.run(*words, code=2)
    receipts.write_text("")
    assert "no receipt" in cli.run(*words, code=2)


def test_what_if_gives_the_weights_of_the_record_and_those_of_the_question(
    small: Path, cli: Commands
) -> None:
    run_dir = small / "run"
    records = read_ledger(run_dir / "ledger.jsonl")
    weights = [record["aggregation"]["ash"] for record in records if record["kind"] == "round"]
    found = cli.json("verify", run_dir, "--what-if", "--without", "elm")
    assert found["question"] == {"strategy": "FedCE", "without": "elm"}
    assert len(found["rounds"]) == 3
    assert found["sites"]["ash"]["weight"]["recorded"] == pytest.approx(sum(weights) / 3)
    left = [found["sites"][site]["weight"]["what_if"] for site in SITES if site != "elm"]
    assert found["sites"]["elm"]["weight"]["what_if"] is None
    assert sum(left) == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--strategy", "FedISM"], "sharpness"),
        (["--strategy", "FedCE('plus')"], "mode"),
        (["--without", "yew"], "yew"),
        ([], "--without"),
    ],
)
def test_a_question_that_the_ledger_cannot_answer_is_refused_by_name(
    words: list[str], why: str, small: Path, cli: Commands
) -> None:
    assert why in cli.refusal("verify", small / "run", "--what-if", *words)


# --- report, and which run is meant


def test_a_report_of_several_runs_is_written_where_one_says(small: Path, cli: Commands) -> None:
    shutil.copytree(small / "run", small / "second")
    both = [small / "run", small / "second"]
    found = cli.json("report", *both, "--out", small / "out")
    report = json.loads((small / "out" / "report.json").read_text())
    assert found["json"] == str(small / "out" / "report.json")
    assert len(report["strategies"]) == 2 and set(report["sites"]) == set(SITES)


def test_a_run_is_found_in_the_workspace_of_an_engine(small: Path, cli: Commands) -> None:
    """The simulator's server copies its results; a run holds those of its coalitions."""
    run_dir = small / "kept" / "server" / "FedCE"
    shutil.copytree(small / "run", run_dir)
    shutil.copytree(run_dir, small / "nvflare" / "FedCE" / "server" / "simulate_job" / "fairfl")
    shutil.move(small / "run", run_dir / "valuations" / "retrained" / "elm")
    found = cli.json("report", small)
    # The report goes beside the run: the engine empties its own folders.
    assert found["html"] == str(run_dir / "report.html")


def test_a_folder_of_several_runs_is_one_comparison_or_none(small: Path, cli: Commands) -> None:
    outer = small / "try"
    for name in ("FedAvg", "FedCE"):
        shutil.copytree(small / "run", outer / "run" / name)
    # They are of different runs by their ledgers.
    forge(outer / "run" / "FedAvg", forget_arguments)
    report = cli.json("report", outer)
    assert Path(report["json"]).parent == outer / "run"
    assert len(cli.json("verify", outer)["runs"]) == 2
    shutil.move(outer / "run" / "FedAvg", outer / "other" / "FedAvg")
    for command in (["report", outer], ["verify", outer, "--what-if", "--without", "elm"]):
        said = cli.refusal(*command)
        assert "several runs" in said and str(outer / "other" / "FedAvg") in said


@pytest.mark.parametrize("command", ["report", "verify"])
def test_what_is_no_run_is_refused_with_the_reason(
    command: str,
    small: Path,
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder, word in (
        ("empty", "no run"),
        ("runs/fedce", f"{tmp_path}/runs/fedce"),
        ("small/run/ledger.jsonl", "no folder"),
    ):
        said = cli.refusal(command, folder)
        assert folder in said and word in said
