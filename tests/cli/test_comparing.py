# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl compare``: strategies over seeds and folds, stopped, failed and resumed."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import warm_python
from helpers.command_line import OVERRIDES, TINY, Commands, bytes_of, lines_in, wait_until
from helpers.failing_strategy import Failing
from helpers.made_once import MadeOnce
from helpers.worker_clients import all_end, descendants_of
from scipy import stats

from monai_fairfl import read_ledger
from monai_fairfl.cli import main

QUICK = [*TINY, "--local-epochs", "2"]
NAMES = ["FedAvg", "FedCE-sum"]
SEEDS = ["1", "2"]  # the folds are those of seed 0, whatever the seeds
# The page has the seconds of each round, which differ.
FILES = ("cases.csv", "comparison.[cj]s*", "plan.json", "cells/*/*/ledger.jsonl")
MODELS = ("cells/*/*/models/*.pt", "datalists/*/*.json")


def command(sites: Path, out: Path, *more: str) -> list[str]:
    """Two strategies over two seeds and two folds."""
    words = ["compare", str(sites), "--out", str(out), "--strategy", "FedAvg", "FedCE('sum')"]
    return [*words, "--seeds", *SEEDS, "--folds", "2", *QUICK, *more]


@pytest.fixture(scope="session")
def compared(sites: Path, made_once: MadeOnce) -> Path:
    """A comparison that nothing interrupted; read only."""

    def make(folder: Path) -> None:
        assert main(command(sites, folder / "out")) == 0

    return made_once("compared", make) / "out"


def dice_in(out: Path) -> list[dict[str, str]]:
    """The rows of cases.csv with a Dice of a test case."""
    with (out / "cases.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["metric"] == "test_score:dice"]


def test_every_case_is_tested_once_by_every_strategy_and_seed(compared: Path) -> None:
    rows = dice_in(compared)
    keys = {(row["strategy"], row["seed"], row["site"], row["case"]) for row in rows}
    # Two hospitals of four cases.
    assert len(rows) == len(keys) == 2 * 2 * 8
    # All strategies and seeds have the same split.
    assert len({(row["site"], row["case"], row["fold"]) for row in rows}) == 8
    # Of a cell that has ended its model is left, and no state.
    cell = compared / "cells" / "FedAvg" / "seed-1-fold-0"
    assert (cell / "models" / "global.pt").is_file()
    assert not list(cell.glob("sites/*/state/*.pt")) and not (cell / "checkpoints").exists()


def test_the_numbers_are_those_of_scipy(compared: Path, sites: Path, cli: Commands) -> None:
    values: dict[str, Any] = {}
    for name in NAMES:
        rows = [row for row in dice_in(compared) if row["strategy"] == name]
        rows.sort(key=lambda row: (row["seed"], row["site"], row["case"]))
        values[name] = np.array([float(row["value"]) for row in rows]).reshape(2, 2, 4)
    before = bytes_of(compared, *FILES, *MODELS)
    found = cli.json(*command(sites, compared))
    # The same command trains nothing again, and prints what its file has.
    assert bytes_of(compared, *FILES, *MODELS) == before
    assert found["metrics"] == json.loads((compared / "comparison.json").read_text())["metrics"]
    dice = found["metrics"]["test_score:dice"]
    for entry in dice["strategies"]:
        of_seeds = values[entry["strategy"]].mean(axis=2).mean(axis=1)
        assert entry["mean"] == pytest.approx(of_seeds.mean(), abs=1e-9), entry
    [pair] = dice["pairs"]
    difference = values["FedCE-sum"] - values["FedAvg"]
    assert pair["difference"]["estimate"] == pytest.approx(difference.mean(), abs=1e-9)
    assert pair["difference"]["low"] < difference.mean() < pair["difference"]["high"]
    by_case = np.round(difference.mean(axis=0).ravel(), 12)
    assert pair["p_value"] == pytest.approx(stats.wilcoxon(by_case).pvalue, rel=1e-9)


def test_a_cell_is_the_run_of_train_with_its_seed_and_split(
    compared: Path, sites: Path, tmp_path: Path
) -> None:
    split = {"split_seed": 0, "split_folds": 2, "split_fold": 1}
    words = ["train", sites, "--out", tmp_path / "run", *QUICK, "--strategy", "FedAvg", "--seed", 1]
    words += ["--overrides", json.dumps({**OVERRIDES, **split})]
    assert main([str(word) for word in words]) == 0
    alone = read_ledger(tmp_path / "run" / "ledger.jsonl")
    cell = read_ledger(compared / "cells" / "FedAvg" / "seed-1-fold-1" / "ledger.jsonl")
    for name in ("aggregation", "contributions", "digests", "model"):
        assert [record.get(name) for record in alone] == [record.get(name) for record in cell]
    assert alone[-1]["scores"] == cell[-1]["scores"]


def test_killed_workers_and_ctrl_c_leave_the_files_of_one_process(
    compared: Path, sites: Path, tmp_path: Path
) -> None:
    out, shown, log = tmp_path / "out", tmp_path / "shown", tmp_path / "log"
    words = ["-m", "monai_fairfl", *command(sites, out, "--jobs", "2")]
    process = warm_python.start(words, tmp_path, shown, log)
    first, second = (out / "cells" / name / "seed-1-fold-0" / "ledger.jsonl" for name in NAMES)
    wait_until(lambda: lines_in(first) >= 1 and lines_in(second) >= 1, process, log)
    workers = descendants_of(process.pid or 0)
    assert len(workers) >= 2
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    third = out / "cells" / "FedAvg" / "seed-1-fold-1" / "ledger.jsonl"
    wait_until(lambda: lines_in(third) >= 1, process, log)
    later = descendants_of(process.pid or 0)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    assert process.exitcode == 2
    assert all_end(later)
    assert not (out / "comparison.json").exists()

    # It goes on by the line of MONAI that it printed.
    logged = (out / "log.txt").read_text().splitlines()
    line = next(line for line in logged if line.startswith("python -m monai.bundle"))
    done = warm_python.run([*shlex.split(line)[1:], "--jobs", "1"], tmp_path)
    assert done.returncode == 0, done.stderr
    for pattern in (*FILES, *MODELS):
        assert bytes_of(out, pattern) == bytes_of(compared, pattern), pattern


def test_a_training_that_fails_does_not_stop_the_others_and_is_tried_again(
    sites: Path,
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    names = ["helpers.failing_strategy.Failing", "FedAvg", "FedCE"]
    short = ["--local-epochs", "1"]
    words = ["compare", sites, "--out", out, "--strategy", *names, *TINY, *short]
    found = cli.json(*words, code=2)
    assert found["failed"] == {"Failing/seed-0": "it fails on purpose"}
    dice = found["metrics"]["test_score:dice"]
    assert [each["strategy"] for each in dice["strategies"]] == ["FedAvg", "FedCE"]
    assert "it fails on purpose" in (out / "comparison.html").read_text()

    # What failed is FedAvg in all but its name, and goes on from its first round.
    monkeypatch.setattr(Failing, "fails", False)
    found = cli.json(*words)
    assert found["failed"] == {}
    mended, plain, _ = found["metrics"]["test_score:dice"]["strategies"]
    assert mended["by_site"] == plain["by_site"]


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
        ([], {"overrides": {"sise": [32, 32]}}, "'sise' 'size'"),
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
    # A valuation needs what no cell keeps, also to train anew.
    said = cli.refusal("value", next((compared / "cells" / "FedAvg").iterdir()))
    assert "checkpoints" in said and "--retrain" not in said
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
