# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A server and clients of NVIDIA FLARE with mTLS on loopback: policy, crashes, certificates.

One system for all tests of this file, which run in their order.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

import psutil  # noqa: E402
import yaml  # noqa: E402
from helpers.checkout import BIN, CHECKOUT, free_port, wait_for  # noqa: E402
from helpers.federations import CLIENTS, LAST_MILE, assert_same_run, recipe  # noqa: E402
from nvflare.recipe.prod_env import ProdEnv  # noqa: E402

from monai_fairfl import read_ledger  # noqa: E402

pytestmark = pytest.mark.engines

DONE = "FINISHED:COMPLETED"
KILLS = int(os.environ.get("MONAI_FAIRFL_TEST_KILLS", "2"))
"""How many jobs are killed; ten take half an hour."""


class Poc:
    """Server and clients of ``nvflare poc prepare``, started and stopped one by one."""

    def __init__(self, folder: Path, clients: Sequence[str]):
        self.folder, self.clients, self.started = folder, list(clients), {}
        home = folder / "home"
        home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "NVFLARE_POC_WORKSPACE": str(folder / "poc"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        self.nvflare("poc", "prepare", "-c", *clients, "--force")
        project = yaml.safe_load((folder / "poc" / "project.yml").read_text())
        server = next(p for p in project["participants"] if p["type"] == "server")
        server["fed_learn_port"] = server["admin_port"] = free_port()
        (folder / "project.yml").write_text(yaml.safe_dump(project))
        shutil.rmtree(folder / "poc")
        self.nvflare("poc", "prepare", "-i", str(folder / "project.yml"), "--force")
        self.kits = folder / "poc" / project["name"] / "prod_00"
        self.admin = str(self.kits / "admin@nvidia.com")

    def nvflare(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """NVFlare's own command line."""
        done = subprocess.run(
            [str(BIN / "nvflare"), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (
            done.returncode == 0 or not check
        ), f"nvflare {' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done

    def start(self, *names: str) -> None:
        """Start the server, or clients, as their start scripts do.

        The code in a site's ``local/custom``, where NVFlare expects it, is found by that site only.
        """
        for name in names or ("server", *self.clients):
            log = open(self.folder / f"{name}.log", "ab")
            script = self.kits / name / "startup" / "sub_start.sh"
            own_code, path = (
                str(self.kits / name / "local" / "custom"),
                self.environment["PYTHONPATH"],
            )
            self.started[name] = subprocess.Popen(
                ["bash", str(script), "--once"],
                env={**self.environment, "PYTHONPATH": os.pathsep.join([own_code, path])},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def processes(self, name: str = "", running: str = "") -> list[psutil.Process]:
        """All processes of a site, its jobs and their trainers included, or of all; or those that
        run a script.
        """
        kit, found = str(self.kits / name if name else self.folder), []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
            if any(word == kit or word.startswith(kit + "/") for word in words):
                if not running or any(word.endswith(running) for word in words):
                    found.append(process)
        return found

    def wait_until_ready(self) -> None:
        """Until all clients are connected."""

        def connected() -> bool:
            words = ("--format", "json", "system", "status", "--startup-kit", self.admin)
            found = self.nvflare(*words, check=False).stdout
            return all(f'"{client}"' in found for client in self.clients)

        wait_for("the connection of all clients", connected)

    def kill(self, *names: str) -> None:
        """``kill -9`` of everything that a site or the server runs."""
        for name in names or ("server", *self.clients):
            _kill(self.processes(name))
            if name in self.started:
                self.started.pop(name).wait(timeout=30)

    def log(self, name: str) -> str:
        """What a server or client printed, and its jobs' logs."""
        files = [self.folder / f"{name}.log", *sorted((self.kits / name).glob("*/log.txt"))]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    """A running system: a server and three clients, as ``nvflare poc`` provisions them."""
    running = Poc(tmp_path_factory.mktemp("poc"), CLIENTS)
    try:
        running.start()
        running.wait_until_ready()
        yield running
    finally:
        running.kill()
        _kill(running.processes())  # whatever else was started below this folder


def submitted(system: Poc, job: Any) -> Any:
    """A job on its way."""
    return job.execute(ProdEnv(startup_kit_location=system.admin, login_timeout=30))


def run_of(system: Poc, name: str) -> Path:
    return system.kits / "server" / "fairfl" / name


def rounds(system: Poc, name: str) -> list[Any]:
    ledger = run_of(system, name) / "ledger.jsonl"
    if not ledger.exists():
        return []
    return [record for record in read_ledger(ledger) if record["kind"] == "round"]


def ended(run: Path) -> bool:
    ledger = run / "ledger.jsonl"
    return ledger.exists() and read_ledger(ledger)[-1]["kind"] == "end"


def last_round(files: Iterable[Path]) -> int:
    """The number, from 1, of the last round that has a file; 0: none has."""
    return max([int(file.stem[-4:]) + 1 for file in files], default=0)


def test_a_job_without_code_runs_where_every_kit_allows_it(
    system: Poc, hospitals: Path, one_process: Callable[..., Path]
) -> None:
    settings = {"name": "FedCE", **LAST_MILE}

    def finished() -> Any:
        started = submitted(system, recipe("FedCE", hospitals, custom_code=False, **settings))
        return started, started.get_result(timeout=300)

    refused, _ = finished()
    assert refused.get_status() != DONE
    assert "--flare-policy" in system.log("server")

    system.kill()
    for name in ("server", *CLIENTS):
        kit = str(system.kits / name)
        words = [
            str(BIN / "python"),
            "-m",
            "monai_fairfl",
            "doctor",
            kit,
            "--flare-policy",
            "--add",
        ]
        subprocess.run(words, check=True, env=system.environment)
    system.start()
    system.wait_until_ready()
    started, result = finished()

    assert started.get_status() == DONE, system.log("server")[-3000:]
    assert_same_run(one_process("FedCE", **LAST_MILE), run_of(system, "FedCE"))
    assert list(Path(result).rglob("fairfl/models/global.pt")), "a download brings the model"


@pytest.mark.parametrize("number", range(KILLS))
def test_a_job_that_is_killed_at_a_random_moment_resumes_to_the_same_bits(
    number: int, system: Poc, hospitals: Path, one_process: Callable[..., Path]
) -> None:
    """``kill -9`` of the server, of a site, of the process of a site's job alone, or of all.

    It comes once so many rounds are on the server's disk or on that of a site.
    """
    who = ("server", "job", "site", "all")[number % 4]
    moment = random.Random(number)
    wanted = moment.randrange(4)
    job = {"rounds": 4, "local_epochs": 10, "name": f"crashed-{who}"}
    run = run_of(system, job["name"])
    states = system.kits / "cedar" / "fairfl" / "cedar" / "state"
    written = [(run / "checkpoints", "round-*"), (states, f"{run.name}-round-*.pt")]
    folder, files = moment.choice(written)

    jobs = [submitted(system, recipe("FedCE", hospitals, timeout=60, **job))]
    wait_for(f"{wanted} of {folder}", lambda: last_round(folder.glob(files)) >= wanted, 300)
    done = len(rounds(system, run.name))
    if who == "job":
        for process in system.processes("cedar", "client.worker_process"):
            process.kill()
    else:
        killed = {"server": ["server"], "site": ["cedar"], "all": ["server", *CLIENTS]}[who]
        system.kill(*killed)
        system.start(*killed)
        system.wait_until_ready()
    if who in ("job", "site"):
        # It ends by itself, when the site was missed twice.
        jobs[0].get_result(timeout=300)
    while not ended(run):
        assert len(jobs) < 3, system.log("server")[-3000:]
        jobs.append(submitted(system, recipe("FedCE", hospitals, timeout=60, **job)))
        jobs[-1].get_result(timeout=300)

    print(f"{who} killed after {wanted} in {folder}, {done} done: {len(jobs)} jobs")
    assert_same_run(one_process("FedCE", **job), run)
    shutil.rmtree(run)
