# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A study runs from its description to its table: once, after a stop, and with several runners."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run
import study
import tables
from helpers.checkout import CHECKOUT
from study import Study
from summary import summary

from monai_fairfl.errors import FederationError
from monai_fairfl.guards import DEFAULT
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.in_process import Client

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


@pytest.mark.long
@pytest.mark.slow
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
    assert "1/1 six_fundus FedCE-fold3: done" in capsys.readouterr().err
    folder = tmp_path / "runs" / "six_fundus" / cell
    assert not (folder / "checkpoints").exists()
    assert not list(folder.glob("sites/*/state/*.pt"))

    table = tmp_path / "results" / "six_fundus.csv"
    before = table.read_bytes()
    run_study(tiny(), "--only", cell)
    assert capsys.readouterr().err == ""
    table.unlink()
    run_study(tiny(), "--only", cell)
    assert table.read_bytes() == before
    # With other settings, it would be written as one of these.
    table.unlink()
    with pytest.raises(SystemExit, match="1 of 1 cells are not done"):
        run_study(tiny(rounds=3), "--only", cell)
    assert "has a finished run of another command" in capsys.readouterr().err
    run_study(tiny(rounds=3), "--only", cell, "--again")
    assert tables.read(tmp_path / "results" / "six_fundus")[cell]["best"]["round"] <= 3


RUNNER = """
import json, sys
from pathlib import Path
import run, study
which = study.Study(**json.loads(sys.argv[1]))
study.RESULTS = Path(sys.argv[2]) / "results"
study.Study.read = lambda name: which
run.main([which.name, "--data", sys.argv[2], "--runs", sys.argv[2] + "/runs", "--jobs", "1"])
"""


def runner(which: Study, folder: Path) -> subprocess.Popen[str]:
    path = f"{CHECKOUT}:{CHECKOUT / 'experiments'}"
    words = [sys.executable, "-W", "ignore", "-c", RUNNER, json.dumps(vars(which)), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def numbers(folder: Path) -> dict[str, Any]:
    """The table, without what another run takes otherwise."""
    found = {}
    for name, result in tables.read(folder / "results" / "six_fundus").items():
        found[name] = {key: value for key, value in result.items() if key != "minutes"}
    return found


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_run_goes_on_and_two_runners_share_a_study_with_the_same_bits(
    tmp_path: Path,
) -> None:
    which = tiny(settings={"": {"strategies": ["FedAvg", "FedCE"]}}, rounds=4)
    folders = [tmp_path / name for name in ("alone", "stopped", "both")]
    alone, stopped, both = folders
    assert runner(which, alone).wait() == 0
    assert list(numbers(alone)) == ["FedAvg-fold3", "FedCE-fold3"]

    ledger = stopped / "runs" / "six_fundus" / "FedAvg-fold3" / "ledger.jsonl"
    first = runner(which, stopped)
    while not ledger.exists() or ledger.read_text().count('"kind":"round"') < 1:
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait() == 1 and "goes on after the last whole round" in first.stderr.read()  # type: ignore[union-attr]
    assert numbers(stopped) == {}
    assert runner(which, stopped).wait() == 0
    assert numbers(stopped) == numbers(alone)

    for process in [runner(which, both) for _ in range(2)]:
        process.wait()
    # One of them may have left a cell to the other.
    assert runner(which, both).wait() == 0
    assert numbers(both) == numbers(alone)


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_who_enters_a_cells_command_gets_its_result(
    tmp_path: Path, run_study: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two cells at a time, in processes of their own; one of them with keys of its own.
    fewer = {"evaluate": ["local_score"], "federation#final": ["score", "test_score"]}
    settings = {
        "": {"strategies": ["FedCE"]},
        "fewer": {"strategies": ["FedAvg"], "arguments": fewer},
    }
    which = tiny(settings=settings, seeds=[7], sites="fundus")
    tiny().sites_root(tmp_path, tmp_path / "made").rename(tmp_path / "fundus")
    found = run_study(which, "--jobs", "2")
    assert list(found) == ["FedCE-fold3-seed7", "fewer-FedAvg-fold3-seed7"]
    capsys.readouterr()
    run_study(which, "--commands")
    for line in capsys.readouterr().out.splitlines():
        name, _, command = line.partition(": ")
        words = shlex.split(command.replace("DATA", str(tmp_path)))
        words[words.index("RUN")] = str(tmp_path / name)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
        subprocess.run([sys.executable, *words[1:]], cwd=CHECKOUT, env=environment, check=True)
        again = study.rounded(summary(tmp_path / name, which.keep))
        assert again == {key: found[name][key] for key in again}


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_that_fails_is_named_with_its_reason_and_the_others_are_trained(
    run_study: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "": {"strategies": ["FedAvg"]},
        "no_such_fold": {"strategies": ["FedAvg"], "overrides": {"split_fold": 9}},
    }
    which = tiny(settings=settings, rounds=1)
    with pytest.raises(SystemExit, match="1 of 2 cells are not done"):
        run_study(which)
    assert list(tables.read(which.table)) == ["FedAvg-fold3"]
    failed = "2/2 six_fundus no_such_fold-FedAvg-fold3 failed: .*fold 9 does not exist: with 5"
    assert re.search(failed, capsys.readouterr().err)


def test_what_is_misspelt_is_refused_before_anything_is_trained(
    tmp_path: Path, run_study: Any
) -> None:
    with pytest.raises(SystemExit, match="Standalone-fold3: unknown key 'local_epoch'"):
        run_study(tiny(arguments={"local_epoch": 1}, sites={"clients": 2}))
    with pytest.raises(SystemExit, match="'FedEC-.': there is no such cell"):
        run_study(tiny(), "--only", "FedAvg-*", "FedEC-*")
    with pytest.raises(SystemExit):
        run_study(tiny(), "--again")
    with pytest.raises(SystemExit, match="needs real images in .*IDRiD"):
        pool = {"pool": ["{data}/fundus/IDRiD"]}
        run_study(tiny(settings={"dealt": {"overrides": pool}}))
    assert not (tmp_path / "runs" / "six_fundus").exists()
    for setting, told in (
        ({"override": {"size": [16, 16]}}, "setting 'small' has .'override'"),
        ({"strategies": ["FedAvg", "FedCEE"]}, "setting 'small' trains 'FedCEE'"),
        ({"alone": "y"}, "setting 'small' takes models trained alone from 'y'"),
    ):
        with pytest.raises(ValueError, match=told):
            tiny(settings={"small": setting})
    with pytest.raises(ValueError, match="setting 'other' has a seed of its own"):
        tiny(settings={"other": {"arguments": {"seed": 99}}}, seeds=[4])


def test_a_study_may_name_seeds_for_each_of_its_folds() -> None:
    settings = {"": {"strategies": ["FedAvg", "FedCE"]}}
    cells = list(tiny(settings=settings, repeats=[0, 1], seeds=[4, 9]).cells())
    assert [cell.name for cell in cells[:4]] == [
        *("FedAvg-fold0-seed4", "FedCE-fold0-seed4", "FedAvg-fold1-seed4", "FedCE-fold1-seed4")
    ]
    which = tiny(settings=settings, repeats=[0, 1], seeds=[4, 9])
    assert " --seed 9 " in which.recorded_command(cells[-1])
    # A fold has the same cases, whatever the seed.
    assert which.overrides_of(cells[0]) == which.overrides_of(cells[4])
    uneven = Study.read("uneven_prostate")
    alone = {cell.name: uneven.alone_of(cell) for cell in uneven.cells()}
    assert str(alone["float32-FedISM-0.01-fold0"].name) == "Standalone-fold0"  # type: ignore[union-attr]
    assert alone["Standalone-fold0"] is None


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_a_last_mile_has_the_models_trained_alone_and_the_used_models_test_scores(
    tmp_path: Path, run_study: Any
) -> None:
    which = tiny(
        settings={"": {"strategies": ["FedAvg", "Standalone"]}},
        arguments={"adapt_epochs": 2, "adapt_rate": 0.01},
        overrides={**TINY["overrides"], "split_validation": 0.5},
    )
    found = run_study(which)
    federated, alone = found["FedAvg-fold3"], found["Standalone-fold3"]
    for site, mile in federated["last_mile"].items():
        assert list(mile["gains"]) == ["adapted", "alone"]
        closing = federated["closing"][site]
        assert closing["alone"]["test_score"] == alone["closing"][site]["own"]["test_score"]
        used = federated["test_used"]["dice"][site]
        name = mile["taken"] or "own"
        assert sum(used) / len(used) == pytest.approx(closing[name]["test_score"], abs=1e-4)
    assert any(mile["taken"] for mile in federated["last_mile"].values())
    # Without the runs that left the models, nobody guesses.
    tables.remove(which.table, ["FedAvg-fold3"])
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(SystemExit, match="models are not committed: .* Standalone-fold3 --again"):
        run_study(which)


class FailsOnce:
    """A client that fails once, when a request is of one kind."""

    def __init__(self, client: Client, fails: Callable[[Request], bool]):
        self.client = client
        self.fails = fails
        self.failed = False

    def answer(self, request: Request) -> Reply:
        if not self.failed and self.fails(request):
            self.failed = True
            raise MemoryError("no memory left")
        return self.client.answer(request)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "when"),
    [
        (lambda request: request.round == 1, "in round 1"),
        (lambda request: bool(request.context.get("closing")), "at the end"),
    ],
    ids=["in a round", "at the end"],
)
def test_a_run_that_went_on_without_a_site_gives_no_result(
    fails: Callable[[Request], bool], when: str, hospitals: Path, tmp_path: Path
) -> None:
    from trainings import Training

    (tmp_path / "three").mkdir()
    for site in ("alder", "birch", "cedar"):
        (tmp_path / "three" / site).symlink_to(hospitals / site, target_is_directory=True)
    small = {"size": [32, 32], "channels": [4, 8], "split_folds": 2, "split_fold": 0}
    small.update({"split_validation": 0.5, "split_seed": 0})

    def wrap(site: str, client: Client) -> Client:
        return FailsOnce(client, fails) if site == "birch" else client

    training = Training("prostate_mri_segmentation", "three", 2, 1, small)
    training.run(FedAvg(), (), tmp_path, tmp_path / "run", wrap, final=("score", "test_score"))
    with pytest.raises(FederationError, match=f"went on without birch {when}.*no memory left"):
        summary(tmp_path / "run", ())
