# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl compare``: strategies over seeds and folds, stopped, failed and resumed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from helpers import warm_python
from helpers.checkout import wait_for
from helpers.command_line import OVERRIDES, TINY, Commands, bytes_of, lines_in
from helpers.failing_strategy import Failing
from helpers.linear_federation import answer_with_cases
from helpers.made_once import MadeOnce
from helpers.reports import rows_of
from helpers.scripted_run import valued
from helpers.worker_clients import all_end, descendants_of

from monai_fairfl import FairMonaiAlgo, read_ledger
from monai_fairfl.cli import main

FEW = {**OVERRIDES, "slices_per_volume": 2}
QUICK = [*TINY, "--local-epochs", "1", "--final", '["test_score"]', "--evaluate", "[]"]
QUICK += ["--overrides", json.dumps(FEW)]
# The page has the seconds of each round, which differ.
FILES = ("cases.csv", "comparison.[cj]s*", "plan.json", "cells/*/*/ledger.jsonl")
MODELS = ("cells/*/*/models/*.pt", "datalists/*/*.json")


def command(sites: Path, out: Path, *more: str) -> list[str]:
    """Two strategies over two folds, which are those of seed 0 whatever the seed."""
    words = ["compare", str(sites), "--out", str(out), "--strategy", "FedAvg", "FedCE('sum')"]
    return [*words, "--seeds", "1", "--folds", "2", *QUICK, *more]


@pytest.fixture(scope="session")
def compared(sites: Path, made_once: MadeOnce) -> Path:
    """A comparison that nothing interrupted; read only."""

    def make(folder: Path) -> None:
        assert main(command(sites, folder / "out")) == 0

    return made_once("compared", make) / "out"


def test_every_case_is_tested_once_by_every_strategy(
    compared: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    rows = [row for row in rows_of(compared / "cases.csv") if row["metric"] == "test_score:dice"]
    # Two hospitals of four cases.
    assert len(rows) == len({(row["strategy"], row["site"], row["case"]) for row in rows}) == 16
    # All strategies have the same split.
    assert len({(row["site"], row["case"], row["fold"]) for row in rows}) == 8
    # Of a cell that has ended its model is left, and no state.
    cell = compared / "cells" / "FedAvg" / "seed-1-fold-0"
    assert (cell / "models" / "global.pt").is_file()
    assert not list(cell.glob("sites/*/state/*.pt")) and not (cell / "checkpoints").exists()

    # The same command trains nothing again, and prints what its file has.
    out = shutil.copytree(compared, tmp_path / "out")
    found = cli.json(*command(sites, out))
    assert bytes_of(out, *FILES, *MODELS) == bytes_of(compared, *FILES, *MODELS)
    assert found["metrics"] == json.loads((out / "comparison.json").read_text())["metrics"]


def test_a_cell_is_the_run_of_train_with_its_seed_and_split(
    compared: Path, sites: Path, tmp_path: Path
) -> None:
    split = {"split_seed": 0, "split_folds": 2, "split_fold": 1}
    words = ["train", sites, "--out", tmp_path / "run", *QUICK, "--strategy", "FedAvg", "--seed", 1]
    words += ["--overrides", json.dumps({**FEW, **split}), "--report", "False"]
    assert main([str(word) for word in words]) == 0
    alone = read_ledger(tmp_path / "run" / "ledger.jsonl")
    cell = read_ledger(compared / "cells" / "FedAvg" / "seed-1-fold-1" / "ledger.jsonl")
    for name in ("aggregation", "contributions", "digests", "model"):
        assert [record.get(name) for record in alone] == [record.get(name) for record in cell]
    assert alone[-1]["scores"] == cell[-1]["scores"]


def test_killed_workers_and_ctrl_c_leave_the_files_of_one_process(
    compared: Path, sites: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first, second, third = (
        out / "cells" / cell / "ledger.jsonl"
        for cell in ("FedAvg/seed-1-fold-0", "FedCE-sum/seed-1-fold-0", "FedAvg/seed-1-fold-1")
    )

    def workers() -> list[int]:
        """Forks of a process that has imported; each has a session of its own."""
        return [one for one in descendants_of(os.getpid()) if os.getsid(one) == one]

    later: list[int] = []

    def disturb() -> None:
        wait_for("a round", lambda: lines_in(first) >= 1 and lines_in(second) >= 1)
        for worker in workers():
            os.kill(worker, signal.SIGKILL)
        wait_for("a round after the kill", lambda: lines_in(third) >= 1)
        later.extend(workers())
        os.kill(os.getpid(), signal.SIGINT)

    warm_python.fork_server()
    # One that comes too late is no Ctrl-C for the tests.
    before = signal.signal(signal.SIGINT, lambda *given: None)
    disturbing = Thread(target=disturb)
    disturbing.start()
    try:
        assert main(command(sites, out, "--jobs", "2")) == 2
    finally:
        disturbing.join()
        signal.signal(signal.SIGINT, before)
    assert later and all_end(later)
    assert not (out / "comparison.json").exists()

    # It goes on by the line of MONAI that it printed.
    logged = (out / "log.txt").read_text().splitlines()
    line = next(line for line in logged if line.startswith("python -m monai.bundle"))
    done = warm_python.run([*shlex.split(line)[1:], "--jobs", "1"], tmp_path)
    assert done.returncode == 0, done.stderr
    for pattern in (*FILES, *MODELS):
        assert bytes_of(out, pattern) == bytes_of(compared, pattern), pattern


def test_a_training_that_fails_does_not_stop_the_others_and_is_tried_again(
    sites: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairMonaiAlgo, "answer", answer_with_cases)
    out = tmp_path / "out"
    names = ["helpers.failing_strategy.Failing", "FedAvg", "FedCE"]
    words = ["compare", sites, "--out", out, "--strategy", *names, *TINY]
    found = cli.json(*words, code=2)
    assert set(found["failed"]) == {"Failing/seed-0"}
    dice = found["metrics"]["test_score:dice"]
    assert [each["strategy"] for each in dice["strategies"]] == ["FedAvg", "FedCE"]
    assert "it fails on purpose" in (out / "comparison.html").read_text()

    # What failed goes on from its first round.
    ledger = out / "cells" / "Failing" / "seed-0" / "ledger.jsonl"
    before = ledger.read_bytes()
    monkeypatch.setattr(Failing, "fails", False)
    found = cli.json(*words)
    assert found["failed"] == {} and ledger.read_bytes().startswith(before)
    assert len(found["metrics"]["test_score:dice"]["strategies"]) == 3


def test_its_report_is_written_again_and_shows_what_was_valued_since(
    compared: Path, tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    before = bytes_of(out, "cases.csv")
    strategy = json.loads((out / "comparison.json").read_text())["decision"]["strategy"]
    cell = f"cells/{strategy}/seed-1-fold-0"
    assert f"monai-fairfl value {cell}" in (out / "comparison.html").read_text()
    valued(out / cell, "new")
    page = Path(cli.json("report", out)["html"])
    assert "by new of" in page.read_text() and page == out / "comparison.html"
    assert bytes_of(out, "cases.csv") == before


# --- what is refused


BOTH = ["--strategy", "FedAvg", "FedCE"]


@pytest.mark.parametrize(
    ("given", "keys", "named"),
    [
        (["--strategy", "FedAvg"], {}, "two strategies"),
        (["--strategy", "FedCE", "FedCE('multi')"], {}, "different"),
        ([], {"folds": "four"}, "folds 'four'"),
        # Hospitals have four cases.
        (["--folds", "5"], {}, "alder folds"),
        (["--seeds", "1", "1"], {}, "seed"),
        (["--seeds", "1", "two"], {}, "'two'"),
        ([], {"overrides": {"split_fold": 1}}, "split_fold"),
        # A site with a list of its own has no folds.
        (["--folds", "2"], {"sites": {"alder": {"datalist_file": "a"}}}, "datalist_file alder"),
        ([], {"valuations": [{"_target_": "monai_fairfl.valuation.Retraining"}]}, "valuations"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    given: list[str], keys: dict[str, Any], named: str, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    own, out = tmp_path / "own.json", tmp_path / "out"
    own.write_text(json.dumps(keys))
    words = ["compare", sites, "--settings", own, "--out", out, *BOTH, *given]
    said = cli.refusal(*words)
    for word in named.split():
        assert word in said
    # Nothing is left that would refuse the right command.
    assert {path.name for path in out.glob("*")} <= {".lock", "log.txt"}


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(
    compared: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    before = bytes_of(compared, *FILES)
    code, _, said = cli.shown(*command(sites, compared), "--seeds", "0", "2")
    assert code == 2
    assert "seeds" in said and "[0, 2]" in said and "folds" not in said
    said = cli.refusal(*command(sites, compared), "--strategy", "FedAvg", "FedCE", "CGSV")
    assert "strategies" in said and "CGSV" in said
    cell = compared / "cells" / "FedAvg" / "seed-1-fold-0"
    for several in (compared, cell.parent):
        said = cli.refusal("value", several)
        assert str(cell) in said and "several runs" in said
    assert "3 federations" in cli.refusal("value", cell)
    assert bytes_of(compared, *FILES) == before

    (tmp_path / "cases.csv").write_text("of another run")
    said = cli.refusal("compare", sites, *BOTH, "--out", tmp_path)
    assert str(tmp_path) in said and "cases.csv" in said
    assert (tmp_path / "cases.csv").read_text() == "of another run"


def test_images_that_changed_since_the_folds_were_made_are_named(
    compared: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out, ignore=shutil.ignore_patterns("cells"))
    digests = out / "datalists" / "alder.digests"
    digests.write_text("0" * 64 + digests.read_text()[64:])
    said = cli.refusal(*command(sites, out))
    assert "alder" in said and "1 of 4 cases" in said
    assert not list(out.glob("cells/*/*/ledger.jsonl"))
