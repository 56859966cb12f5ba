# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six methods in NVFlare's simulator: the same models, weights and contributions as in this
process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare")

from helpers.federations import (  # noqa: E402
    BUNDLE,
    CLIENTS,
    LAST_MILE,
    METHODS,
    ROUNDS,
    SETTINGS,
    assert_same_run,
    methods,
    recipe,
)
from helpers.flare_poc import wait_for  # noqa: E402
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy  # noqa: E402
from nvflare.app_common.filters.svt_privacy import SVTPrivacy  # noqa: E402
from nvflare.recipe.sim_env import SimEnv  # noqa: E402

from monai_fairfl.audit import check_receipts, read_receipts, replay  # noqa: E402
from monai_fairfl.run_folder.ledger import read_ledger  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.nvflare, pytest.mark.simulator]


# Over mTLS, in test_poc.py, three methods run each time.
@pytest.mark.parametrize("method", methods(extended=METHODS.keys() - {"FedCE"}))
def test_the_simulator_does_what_one_process_does(
    method: str, hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    expected = one_process(method, **LAST_MILE)

    recipe(method, hospitals, federation=LAST_MILE).execute(
        SimEnv(clients=CLIENTS, workspace_root=str(tmp_path / "there"))
    )

    job = tmp_path / "there" / method / "server"
    assert_same_run(expected, job / "fairfl" / method)
    results = job / "simulate_job" / "fairfl"  # what a download brings
    assert {path.name for path in results.iterdir()} >= {
        "ledger.jsonl",
        "models",
        "report.html",
        "report.json",
    }
    assert (results / "ledger.jsonl").read_bytes() == (expected / "ledger.jsonl").read_bytes()
    config = json.loads((results / "config.json").read_text())
    assert config["engine"] == "NVIDIA FLARE"
    assert (config["rounds"], config["local_epochs"], config["full_run"]["rounds"]) == (
        ROUNDS,
        1,
        100,
    )
    report = json.loads((results / "report.json").read_text())
    (found,) = report["strategies"].values()
    assert found["not_judged"].endswith("a full run of the bundle has 600 (100 rounds of 6)")


@pytest.mark.simulator
def test_sites_store_receipts_that_prove_the_servers_ledger(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONAI_FAIRFL_HOME", str(tmp_path / "stored"))
    recipe("FedLWR", hospitals).execute(
        SimEnv(clients=CLIENTS, workspace_root=str(tmp_path / "there"))
    )
    (run,) = (path.parent for path in (tmp_path / "stored").rglob("ledger.jsonl"))
    files = sorted((tmp_path / "stored").rglob("receipts.jsonl"))
    assert [file.parents[1].name for file in files] == CLIENTS

    records = read_ledger(run / "ledger.jsonl")
    for file in files:
        receipts = read_receipts(file)
        # Two phases in each round, the closing measurement, and the last head.
        assert len(receipts) == 2 * ROUNDS + 2 and receipts[-1].ended
        proof = check_receipts(run, receipts)
        assert (proof.covered, proof.problems) == (len(records), ())
    assert all(sorted(record["digests"]) == CLIENTS for record in records[1:-1])
    assert replay(run).largest < 1e-9


@pytest.mark.simulator
@pytest.mark.extended
def test_restarts_of_a_clients_process_between_tasks_change_nothing(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    expected = one_process("FedLWR")

    job = recipe("FedLWR", hospitals, check=False)
    job.execute(
        SimEnv(clients=CLIENTS, num_threads=2, workspace_root=str(tmp_path / "there"))
    )  # a process per task

    assert_same_run(expected, tmp_path / "there" / "FedLWR" / "server" / "fairfl" / "FedLWR")


@pytest.mark.simulator
def test_a_job_without_code_does_the_same(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    expected = one_process("FedCE")

    job = recipe("FedCE", hospitals, custom_code=False)
    job.execute(SimEnv(clients=CLIENTS, workspace_root=str(tmp_path / "there")))

    assert_same_run(expected, tmp_path / "there" / "FedCE" / "server" / "fairfl" / "FedCE")


@pytest.mark.extended
@pytest.mark.simulator
def test_the_command_goes_on_after_a_crash_to_the_same_bits(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    expected = one_process("FedCE", rounds=4)
    words = [
        *(
            sys.executable,
            "-m",
            "monai_fairfl",
            "simulate-flare",
            "--bundle",
            BUNDLE,
            "--strategy",
            "FedCE",
        )
    ]
    words += [
        "--sites-root",
        str(hospitals),
        "--site-names",
        *CLIENTS,
        "--workspace",
        str(tmp_path / "there"),
    ]
    words += [
        "--num-rounds",
        "4",
        "--local-epochs",
        "1",
        "--overrides",
        str(SETTINGS),
        "--name",
        "FedCE",
        "--json",
    ]
    run = tmp_path / "there" / "kept" / "server" / "FedCE"

    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger = run / "ledger.jsonl"
    wait_for("the second round", lambda: ledger.exists() and len(read_ledger(ledger)) >= 3)
    family = psutil.Process(first.pid)
    for process in [*family.children(recursive=True), family]:
        process.kill()
    first.wait(timeout=60)
    assert read_ledger(ledger)[-1]["kind"] == "round"
    answer = subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout

    assert json.loads(answer)["run"] == str(run)
    assert_same_run(expected, run)


@pytest.mark.extended
@pytest.mark.simulator
def test_nvflares_privacy_filters_change_what_leaves_a_site_and_the_run_goes_on(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    plain = read_ledger(one_process("FedCE") / "ledger.jsonl")

    job = recipe("FedCE", hospitals)
    job.add_client_output_filter(PercentilePrivacy(percentile=50, gamma=0.01), tasks=["train"])
    job.add_client_output_filter(SVTPrivacy(fraction=0.5, epsilon=10.0), tasks=["train"])
    job.execute(SimEnv(clients=CLIENTS, workspace_root=str(tmp_path / "there")))

    filtered = read_ledger(
        tmp_path / "there" / "FedCE" / "server" / "fairfl" / "FedCE" / "ledger.jsonl"
    )
    assert len(filtered) == len(plain) and not any(record.get("missing") for record in filtered)
    lengths = [np.diag(ledger[1]["gram"]["whole"]) for ledger in (filtered, plain)]
    assert (lengths[0] < lengths[1]).all() and (lengths[0] > 0).all()
    assert (
        filtered[1]["measurements"] == plain[1]["measurements"]
    )  # of the model that everybody received
