# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A study runs from its description to its table: once, after a stop, and with several runners."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run
import study
import tables
from helpers.scripted_run import train
from study import Study
from summary import summary

from monai_fairfl.errors import FederationError
from monai_fairfl.guards import DEFAULT
from monai_fairfl.strategies import FedAvg

TINY: dict[str, Any] = {
    "sites": {"kind": "fundus", "size": 64, "seed": 0},
    "rounds": 2,
    "local_epochs": 1,
    "folds": 5,
    "repeats": [3],
    "overrides": {"size": [32, 32], "working_size": 48, "channels": [4, 8]},
    "keep": ["global_score", "leave_one_out_error"],
}
"""Six small clinics that train for two short rounds."""


def tiny(**changes: Any) -> Study:
    return replace(Study.read("six_fundus"), **{**TINY, **changes})


@pytest.fixture
def run_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs a study by the command; returns its table."""
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results")

    def run_it(which: Study, *words: str) -> dict[str, Any]:
        monkeypatch.setattr(Study, "read", lambda name: which)
        folders = ["--data", str(tmp_path), "--runs", str(tmp_path / "runs")]
        run.main([which.name, *folders, "--jobs", "1", *words])
        return dict(tables.read(which.table))

    return run_it


def test_a_cell_is_trained_once_and_its_rows_are_made_again_of_what_the_run_left(
    tmp_path: Path, run_study: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = "FedCE-fold3"
    found = run_study(tiny(), "--only", cell)
    assert list(found) == [cell]
    assert found[cell]["name"] == "FedCE"
    assert len(found[cell]["test"]["dice"]) == 6 and all(found[cell]["test"]["cases"].values())
    assert all(len(values) == 2 for values in found[cell]["leave_one_out_error"].values())
    guards = [type(guard).__name__ for guard in DEFAULT]
    assert found[cell]["guards"] == {"names": guards, "client_rounds": 12, "touched": {}}
    assert "2/2 rounds, six_fundus FedCE-fold3: done" in capsys.readouterr().err
    folder = tmp_path / "runs" / "six_fundus" / cell
    assert not (folder / "checkpoints").exists()
    assert not list(folder.glob("sites/*/state/*.pt"))

    table = tmp_path / "results" / "six_fundus.csv"
    before = table.read_bytes()
    run_study(tiny(), "--only", cell)
    assert capsys.readouterr().err == ""
    table.unlink()
    # While another runner has it, nobody else trains it.
    with (folder / "cell" / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="1 of 1 cells are not done"):
            run_study(tiny(), "--only", cell)
    assert not table.exists()
    run_study(tiny(), "--only", cell)
    assert table.read_bytes() == before
    # With other settings, it would be written as one of these.
    table.unlink()
    with pytest.raises(SystemExit, match="1 of 1 cells are not done"):
        run_study(tiny(rounds=3), "--only", cell)
    assert "has a finished run of another command" in capsys.readouterr().err


def test_a_run_that_went_on_without_a_site_gives_no_result(tmp_path: Path) -> None:
    scores = dict.fromkeys(("alder", "birch", "cedar"), 0.8)
    run_dir = train(tmp_path / "run", FedAvg(), scores, 2, about={"birch": {"away": [1]}})
    with pytest.raises(FederationError, match="went on without birch in round 1.*line is down"):
        summary(run_dir, ())
