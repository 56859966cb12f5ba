# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six methods in Flower's simulation: the same models, weights and contributions as in this
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")

from helpers import warm_python  # noqa: E402
from helpers.federations import (  # noqa: E402
    BUNDLE,
    CLIENTS,
    LAST_MILE,
    METHODS,
    ROUNDS,
    SETTINGS,
    assert_same_run,
    strategy,
)
from helpers.flare_poc import wait_for  # noqa: E402

from monai_fairfl.audit import check_receipts, read_receipts  # noqa: E402
from monai_fairfl.run_folder.ledger import read_ledger  # noqa: E402

# On a machine that other programs use, Ray ends workers where memory is short, and lets them wait.
RAY = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
ENVIRONMENT = {**os.environ, **RAY}

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.long]


def command(hospitals: Path, workspace: Path, method: str, rounds: int = ROUNDS) -> list[str]:
    """The command that simulates a federation; a process of its own, since Ray stays in one."""
    words = [sys.executable, "-W", "ignore", "-m", "monai_fairfl", "simulate-flower"]
    words += ["--bundle", BUNDLE, "--strategy", json.dumps(strategy(method)), "--name", method]
    words += ["--sites-root", str(hospitals), "--site-names", *CLIENTS, "--json"]
    words += ["--workspace", str(workspace), "--num-rounds", str(rounds), "--local-epochs", "1"]
    words += ["--overrides", str(SETTINGS), "--processes", "2"]
    return words


def simulate(
    hospitals: Path, workspace: Path, method: str, rounds: int = ROUNDS
) -> subprocess.CompletedProcess[str]:
    _, *arguments = command(hospitals, workspace, method, rounds)
    return warm_python.run(arguments, workspace, timeout=900, **RAY)


@pytest.mark.parametrize("method", METHODS)
def test_the_simulation_does_what_one_process_does(
    method: str, hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    expected = one_process(method)

    done = simulate(hospitals, tmp_path, method)

    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    run = tmp_path / "server" / method
    assert json.loads(done.stdout)["run"] == str(run)
    assert_same_run(expected, run)
    assert (run / "ledger.jsonl").read_bytes() == (expected / "ledger.jsonl").read_bytes()
    assert {path.name for path in run.iterdir()} >= {"models", "report.html", "config.json"}
    config = json.loads((run / "config.json").read_text())
    assert config["engine"] == "Flower"
    assert (config["rounds"], config["local_epochs"], config["full_run"]["rounds"]) == (2, 1, 100)

    # Each site has its state and its receipts in its own folder, and they prove the ledger.
    records = read_ledger(run / "ledger.jsonl")
    for site in CLIENTS:
        own = tmp_path / "sites" / site / "fairfl" / site / "state"
        proof = check_receipts(run, read_receipts(own / "receipts.jsonl"))
        assert (proof.covered, proof.problems) == (len(records), ())


def test_the_last_mile_is_the_same_too(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    script = tmp_path / "simulate.py"
    settings = {**LAST_MILE, "bundle": BUNDLE, "strategy": "FedCE", "num_rounds": ROUNDS}
    settings |= {"name": "FedCE", "overrides": SETTINGS, "site_names": CLIENTS}
    script.write_text(
        "from monai_fairfl.transports.flower import simulate_job\n"
        f"simulate_job({str(tmp_path)!r}, {str(hospitals)!r}, **{settings!r})\n"
    )

    words = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env=ENVIRONMENT)

    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert_same_run(one_process("FedCE", **LAST_MILE), tmp_path / "server" / "FedCE")


def test_the_command_goes_on_after_a_crash_to_the_same_bits(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    expected = one_process("FedCE", rounds=4)
    ledger = tmp_path / "server" / "FedCE" / "ledger.jsonl"

    words = command(hospitals, tmp_path, "FedCE", rounds=4)
    quiet = subprocess.DEVNULL
    first = subprocess.Popen(words, stdout=quiet, stderr=quiet, env=ENVIRONMENT)
    wait_for("the second round", lambda: ledger.exists() and len(read_ledger(ledger)) >= 3, 600)
    family = psutil.Process(first.pid)
    for process in [*family.children(recursive=True), family]:
        process.kill()
    first.wait(timeout=60)
    assert read_ledger(ledger)[-1]["kind"] == "round"
    again = simulate(hospitals, tmp_path, "FedCE", rounds=4)

    assert again.returncode == 0, again.stderr[-3000:]
    assert_same_run(expected, ledger.parent)


def test_a_site_that_cannot_answer_ends_the_command_in_one_line(
    hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "hospitals").mkdir()
    for site in CLIENTS:
        (tmp_path / "hospitals" / site).symlink_to(hospitals / site)
    (tmp_path / "sites" / "cedar" / "local").mkdir(parents=True)
    own = tmp_path / "sites" / "cedar" / "local" / "fairfl.json"
    own.write_text(json.dumps({"no_such_setting": 1}))

    done = simulate(tmp_path / "hospitals", tmp_path, "FedCE")

    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert f"cedar (error: ConfigError: {own} sets 'no_such_setting'" in error
    assert error.endswith("the same command goes on where it stopped")
