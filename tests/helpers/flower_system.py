# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real Flower system on loopback: a SuperLink with TLS, SuperNodes with keys, its own port, home
and folders; ended by process id.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from helpers.flare_poc import free_port, wait_for

BIN = Path(sys.executable).parent
CHECKOUT = Path(__file__).parents[2]
CERTIFICATES = CHECKOUT / "docs" / "examples" / "flower" / "certificates.sh"


class FlowerSystem:
    """A SuperLink and SuperNodes, started and stopped one by one.

    ``server/`` is the server's home with ``keys/`` and ``runs/``, ``SITE/`` each site's folder.
    """

    def __init__(self, folder: Path, sites: Sequence[str]):
        self.folder, self.sites = folder, list(sites)
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, int] = {}  # where the log of the present process begins
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.server = folder / "server"
        self.runs = self.server / "runs"
        self.certificates = folder / "certificates"
        words = ["bash", str(CERTIFICATES), str(self.certificates), "localhost", "127.0.0.1"]
        subprocess.run(words, check=True, capture_output=True)
        (self.server / "keys").mkdir(parents=True)
        for site in self.sites:
            self.make_key(site)
            self.enter_key(site, site)
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "consortium"\n\n[superlink.consortium]\n'
            f'address = "{self.address}"\n'
            f'root-certificates = "{self.certificates / "ca.crt"}"\n'
        )

    # ---- keys

    def make_key(self, site: str) -> Path:
        """A key pair of a site, in its folder; the private one is returned."""
        key = self.folder / site / "key"
        key.parent.mkdir(exist_ok=True)
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        return key

    def enter_key(self, site: str, name: str) -> None:
        """Put a site's public key into the server's folder, under a name."""
        public = (self.folder / site / "key.pub").read_bytes()
        (self.server / "keys" / f"{name}.pub").write_bytes(public)

    def register(self, *sites: str) -> None:
        """Tell the SuperLink which keys may connect."""
        for site in sites or self.sites:
            self.flwr("supernode", "register", str(self.server / "keys" / f"{site}.pub"))

    # ---- processes

    def flwr(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Flower's own command line."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0 or not check, f"flwr {words}: {done.stdout}\n{done.stderr}"
        return done

    def start_server(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--ssl-ca-certfile", str(self.certificates / "ca.crt")]
        words += ["--ssl-certfile", str(self.certificates / "server.pem")]
        words += ["--ssl-keyfile", str(self.certificates / "server.key")]
        words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        words += ["--database", str(self.server / "superlink.db")]
        self._start("server", words, MONAI_FAIRFL_HOME=str(self.server))
        self._wait_for_line("server", "startup complete")

    def start(
        self,
        *sites: str,
        authority: Path | None = None,
        key: Path | None = None,
        name: str = "",
    ) -> None:
        """Start SuperNodes.

        Args:
            sites: all by default.
            name: that they give themselves; their own by default.
            authority: file of the authority that they trust; the right one by default.
            key: file of the private key; their own by default.
        """
        for site in sites or self.sites:
            folder = self.folder / site
            own = {"name": name or site, "folder": str(folder)}
            config = " ".join(f'{name}="{value}"' for name, value in own.items())
            words = ["flower-supernode", "--superlink", self.address]
            words += ["--root-certificates", str(authority or self.certificates / "ca.crt")]
            words += ["--auth-supernode-private-key", str(key or folder / "key")]
            words += ["--host", "127.0.0.1", "--port", str(free_port())]
            words += ["--node-config", config]
            self._start(site, words)

    def _start(self, name: str, words: Sequence[str], **environment: str) -> None:
        self._begun[name] = len(self.log(name))
        with open(self.folder / f"{name}.log", "ab") as log:
            self.started[name] = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                env={**self.environment, **environment},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Until all sites are connected.

        It reads the server's log: each question by Flower's command line takes seconds.
        """
        for site in self.sites:
            self._wait_for_line(site, "SuperNode ID:")

    def _wait_for_line(self, name: str, line: str) -> None:
        """Wait until a process has printed a line since it was started."""
        wait_for(f"{line!r} of {name}", lambda: line in self.log(name)[self._begun[name] :], 300)

    def processes(self, name: str) -> list[psutil.Process]:
        """The processes of a site or the server: the one that was started, and its children."""
        if name not in self.started:
            return []
        try:
            root = psutil.Process(self.started[name].pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self, *names: str) -> None:
        """``kill -9`` of everything that a site or the server runs."""
        for name in names or ("server", *self.sites):
            for process in self.processes(name):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            if name in self.started:
                self.started.pop(name).wait(timeout=30)

    def log(self, name: str) -> str:
        """What a site or the server printed."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    # ---- runs

    def submit(self, app: Path, *words: str) -> str:
        """Submit an app; returns the number of Flower's run."""
        done = self.flwr("run", str(app), "--format", "json", *words)
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return str(found["run-id"])

    def has_ended(self, run: str) -> bool:
        """Whether the SuperLink says so in its log; a question takes Flower's command seconds."""
        return bool(re.search(f"Finished task [0-9]+ of run {run}", self.log("server")))

    def status(self, run: str) -> str:
        """Status of Flower's run, such as ``finished:completed``."""
        done = self.flwr("list", "--run-id", run, "--format", "json", check=False)
        if "{" not in done.stdout:
            return ""
        found = json.loads(done.stdout[done.stdout.index("{") :])
        return str(found["runs"][0]["status"])

    def wait_for_end(self, run: str, seconds: float = 600) -> str:
        """Wait until a run is finished; returns its status."""
        wait_for(f"the end of run {run}", lambda: self.has_ended(run), seconds)
        return self.status(run)


@contextmanager
def flower_system(folder: Path, sites: Sequence[str]) -> Iterator[FlowerSystem]:
    """A system, stopped at the end whatever happened."""
    system = FlowerSystem(folder, sites)
    try:
        yield system
    finally:
        system.kill()
