# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real NVFlare system on loopback: provisioned with mTLS, its own port, home and workspace; ended
by process id.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import yaml
from helpers.checkout import BIN, CHECKOUT, free_port, wait_for


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


@contextmanager
def poc(folder: Path, clients: Sequence[str]) -> Iterator[Poc]:
    """A system, stopped at the end whatever happened."""
    system = Poc(folder, clients)
    try:
        yield system
    finally:
        system.kill()
        _kill(system.processes())  # whatever else was started below this folder


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
