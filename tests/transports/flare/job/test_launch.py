# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs that the simulator makes, and those that it does not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.data.synthetic import write_sites
from monai_fairfl.errors import FederationError
from monai_fairfl.run_folder.ledger import Ledger

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)

from monai_fairfl.transports.flare.job import launch as jobs

pytestmark = pytest.mark.nvflare


def test_a_simulated_job_that_never_began_is_not_taken_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "kept" / "server" / "prostate_mri_segmentation-FedAvg"
    older.mkdir(parents=True)
    Ledger(older / "ledger.jsonl").append({"kind": "end"})
    write_sites(tmp_path / "sites", seed=0, size=(16, 16, 4), cases=1)
    monkeypatch.setattr(jobs.FairFLRecipe, "execute", lambda recipe, environment: None)
    for strategy in ("FedCE", "FedAvg"):
        with pytest.raises(FederationError, match="the run did not end"):
            jobs.simulate_job(
                tmp_path, tmp_path / "sites", bundle="prostate_mri_segmentation", strategy=strategy
            )


def test_a_simulated_job_gives_the_folder_of_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "kept" / "server" / "prostate_mri_segmentation-FedAvg-2"

    def execute(recipe: Any, environment: Any) -> None:
        for folder in (own, own.parent / "another"):
            folder.mkdir()
            Ledger(folder / "ledger.jsonl").append({"kind": "end"})

    (own.parent / "prostate_mri_segmentation-FedAvg").mkdir(parents=True)
    Ledger(own.parent / "prostate_mri_segmentation-FedAvg" / "ledger.jsonl").append({"kind": "end"})
    write_sites(tmp_path / "sites", seed=0, size=(16, 16, 4), cases=1)
    monkeypatch.setattr(jobs.FairFLRecipe, "execute", execute)
    arguments = {"bundle": "prostate_mri_segmentation", "strategy": "FedAvg"}
    assert jobs.simulate_job(tmp_path, tmp_path / "sites", **arguments) == own


@pytest.mark.slow
def test_a_simulator_whose_clients_got_the_same_port_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SECONDS_BETWEEN_LOOKS", 0.05)
    log = tmp_path / "log.txt"
    log.write_text(f"{jobs.SAME_PORT}, of an earlier run")
    wait = [sys.executable, "-c", "import time; time.sleep(60)"]
    simulator = subprocess.Popen([*wait, f"{jobs.SIMULATOR}.simulator"])
    another = subprocess.Popen(wait)
    try:
        with jobs.ending_at_the_same_port(log):
            time.sleep(0.3)
            assert simulator.poll() is None
            log.write_text(f"ERROR - RuntimeError: {jobs.SAME_PORT} in SimulatorClientRunner")
            assert simulator.wait(timeout=10) != 0
        assert another.poll() is None
    finally:
        for process in (simulator, another):
            process.kill()
            process.wait()


@pytest.mark.parametrize("resume", [True, False])
def test_the_simulator_begins_again_once_where_the_run_may_go_on(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(*given: object, **arguments: object) -> Path:
        calls.append(arguments)
        if len(calls) == 1:
            raise jobs.SamePortError("two clients got the same port")
        return tmp_path

    monkeypatch.setattr(jobs, "_simulate", once)
    if resume:
        assert jobs.simulate_job(tmp_path, tmp_path) == tmp_path and len(calls) == 2
    else:
        with pytest.raises(jobs.SamePortError):
            jobs.simulate_job(tmp_path, tmp_path, resume=False)
        assert len(calls) == 1
