# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's simulator where it has lost the process of a client."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)

from helpers.federations import CLIENTS, assert_same_run, recipe
from nvflare.recipe.sim_env import SimEnv

from monai_fairfl.transports.flare.job import simulator
from monai_fairfl.transports.flare.job.fairfl_recipe import FairFLRecipe
from monai_fairfl.transports.flare.job.simulator import LostClientError, ending_without_a_client

pytestmark = pytest.mark.nvflare

LINE = "2026-11-27 04:25:23,524 - SimulatorClientRunner - ERROR - "
WAIT = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def simulated() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the name of the simulator's."""
    process = subprocess.Popen([*WAIT, f"{simulator.SIMULATOR}.simulator"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "Failed to create connection to the child process",
        "Communication error with client",
        "Subprocess died for client",
    ],
)
def test_a_simulator_that_lost_a_client_is_ended(
    words: str,
    simulated: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulator, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(simulator, "SECONDS_TO_END", 0.1)
    log = tmp_path / "log.txt"
    log.write_text(f"{LINE}{words}, of an earlier run")
    another = subprocess.Popen(WAIT)
    try:
        with (
            pytest.raises(LostClientError, match=f"{words} cedar.*start it again"),
            ending_without_a_client(log),
        ):
            time.sleep(0.3)
            assert simulated.poll() is None
            log.write_text(f"{LINE}{words} cedar")
            assert simulated.wait(timeout=10) != 0
            raise RuntimeError("Simulation failed with return code -9")
        assert another.poll() is None
    finally:
        another.kill()
        another.wait()


@pytest.mark.slow
def test_a_simulator_that_ends_itself_is_left_alone(
    simulated: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "SECONDS_BETWEEN_LOOKS", 0.05)
    log = tmp_path / "log.txt"
    with ending_without_a_client(log):
        log.write_text(f"{LINE}{simulator.LOST[1]} cedar")
        time.sleep(0.3)
    assert simulated.poll() is None


def test_another_failure_keeps_its_words(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="^return code 2$"),
        ending_without_a_client(tmp_path / "log.txt"),
    ):
        raise RuntimeError("return code 2")


@pytest.mark.parametrize("resume", [True, False])
def test_the_simulator_begins_again_once_where_the_run_may_go_on(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def loses(recipe: FairFLRecipe, env: SimEnv) -> None:
        begun.append(env)
        raise LostClientError("NVFlare's simulator has lost a process")

    monkeypatch.setattr(FairFLRecipe, "_simulate", loses)
    job = recipe("FedAvg", tmp_path, resume=resume)
    with pytest.raises(LostClientError):
        job.run(SimEnv(clients=CLIENTS, workspace_root=str(tmp_path)))
    assert len(begun) == (2 if resume else 1)


# In the process that NVFlare starts for cedar, once: a server that does not answer, or an end.
LOSSES = {
    "not connected": "from nvflare.fuel.f3.cellnet.cell import Cell\n"
    "    Cell.is_cell_connected = lambda *given: False",
    "killed": "import threading\n    threading.Timer(15, os._exit, [9]).start()",
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.simulator
@pytest.mark.extended
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_job_that_lost_a_client_has_the_same_result(
    loss: str,
    hospitals: Path,
    one_process: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = tmp_path / "once"
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "words = open('/proc/self/cmdline').read().split(chr(0))\n"
        f"if '{simulator.SIMULATOR}.simulator_worker' in words and 'cedar' in words:\n"
        f"  if not os.path.exists({str(once)!r}):\n"
        f"    open({str(once)!r}, 'w').close()\n"
        f"    {LOSSES[loss]}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expected = one_process("FedCE")

    recipe("FedCE", hospitals).execute(
        SimEnv(clients=CLIENTS, workspace_root=str(tmp_path / "there"))
    )

    assert once.exists()
    assert_same_run(expected, tmp_path / "there" / "FedCE" / "server" / "fairfl" / "FedCE")
