# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Flower's simulation, by the command and the Python of ``docs/flower_simulation.md``."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from helpers.checkout import CHECKOUT  # noqa: E402
from helpers.federations import (  # noqa: E402
    BUNDLE,
    CLIENTS,
    SETTINGS,
    assert_same_run,
    in_one_process,
)
from helpers.page_blocks import blocks_in  # noqa: E402

from monai_fairfl import read_ledger  # noqa: E402
from monai_fairfl.audit import check_receipts, read_receipts  # noqa: E402
from monai_fairfl.strategies import CGSV, FedCE  # noqa: E402

pytestmark = pytest.mark.engines

PAGE = "docs/flower_simulation.md"
COMMAND = [sys.executable, "-W", "ignore", "-m", "monai_fairfl"]
# On a machine that other programs use, Ray ends workers where memory is short, and lets them wait.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(CHECKOUT),
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}


def run_here(words: list[str], folder: Path, status: int = 0) -> str:
    """Run a program in a folder; returns what it printed. Ray would stay in this process."""
    done = subprocess.run(
        words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == status, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture
def place(hospitals: Path, tmp_path: Path) -> Path:
    """A folder with ``hospitals``, three of them."""
    (tmp_path / "hospitals").mkdir()
    for site in CLIENTS:
        (tmp_path / "hospitals" / site).symlink_to(hospitals / site)
    return tmp_path


def test_the_pages_python_gives_the_run_of_one_process(hospitals: Path, place: Path) -> None:
    [block] = blocks_in(PAGE, "python")
    (place / "simulate.py").write_text(block + "print(run)\n")
    run = Path(run_here([sys.executable, "-W", "ignore", "simulate.py"], place).split()[-1])

    own = {"strategies": CGSV(beta=2), "local_epochs": 1}
    small = {"size": [32, 32], "channels": [4, 8, 8]}
    expected = in_one_process(hospitals, place / "expected" / run.name, 1, overrides=small, **own)
    assert_same_run(run, expected)
    for site in CLIENTS:
        own_files = place / "workspace" / "sites" / site / "fairfl" / site
        proof = check_receipts(run, read_receipts(own_files / "state" / "receipts.jsonl"))
        assert (proof.covered, proof.problems) == (len(read_ledger(run / "ledger.jsonl")), ())


def test_the_pages_command_goes_on_after_a_crash_to_the_same_bits(
    hospitals: Path, place: Path
) -> None:
    lines = "\n".join(blocks_in(PAGE, "bash")).replace("\\\n", " ").splitlines()
    [shown] = [line for line in lines if "--engine flower" in line]
    words = [*COMMAND, *shlex.split(shown)[1:], "--rounds", "3", "--local-epochs", "1"]
    # A first look has another network.
    words.remove("--quick")
    words += ["--overrides", json.dumps(SETTINGS), "--jobs", "2"]
    run = place / "flower" / "server" / f"{BUNDLE}-FedCE"

    quiet = subprocess.DEVNULL
    first = subprocess.Popen(words, cwd=place, env=ENVIRONMENT, stdout=quiet, stderr=quiet)
    ledger = run / "ledger.jsonl"
    while not ledger.exists() or len(read_ledger(ledger)) < 2:
        assert first.poll() is None
        time.sleep(0.1)
    # Ray's own processes end with the one that started them.
    first.kill()
    first.wait()
    assert read_ledger(ledger)[-1]["kind"] == "round"
    run_here(words, place)

    own = {"strategies": FedCE(), "local_epochs": 1}
    assert_same_run(run, in_one_process(hospitals, place / "expected" / run.name, 3, **own))
    assert (run / "report.html").exists()
    assert (place / "flower" / "log.txt").stat().st_size > 0


def test_a_site_that_cannot_answer_ends_the_command_with_its_reason(place: Path) -> None:
    own = place / "work" / "sites" / "cedar" / "local" / "fairfl.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"no_such_setting": 1}))
    words = ["train", "hospitals", "--engine", "flower", "--bundle", BUNDLE, "--json"]
    printed = run_here([*COMMAND, *words, "--out", "work", "--quick"], place, status=2)
    error = json.loads(printed)["error"]
    assert "cedar" in error and "no_such_setting" in error
