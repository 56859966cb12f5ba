# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real Flower system on loopback, set up by the commands of ``docs/flower_production.md``: a
SuperLink with TLS and SuperNodes with keys, its own port, home and folders; ended by process id.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from helpers.flare_poc import free_port, wait_for
from helpers.page_blocks import Block, blocks_of_page
from helpers.warm_flower import WarmPrograms

BIN = Path(sys.executable).parent
CHECKOUT = Path(__file__).parents[2]
BLOCKS = blocks_of_page("docs/flower_production.md")


def page_command(*begin: str) -> list[str]:
    """The words of the one command of the page that begins so, assignments before it included."""
    found = []
    for block in BLOCKS:
        if block.language == "bash":
            text = block.text.replace("\\\n", " ")
            found += [shlex.split(line, comments=True) for line in text.splitlines()]
    matching = [words for words in found if _without_assignments(words)[: len(begin)] == [*begin]]
    assert matching, f"the page has no command {' '.join(begin)}"
    return matching[0]


def page_block(language: str) -> Block:
    """The one block of the page in a language."""
    [found] = [block for block in BLOCKS if block.language == language]
    return found


def _without_assignments(words: Sequence[str]) -> list[str]:
    return [word for word in words if not re.match("[A-Z_]+=", word)]


class FlowerSystem:
    """A SuperLink and SuperNodes, started and stopped one by one.

    ``server/`` is the server's home with ``keys/`` and ``runs/``, ``SITE/`` each site's folder.
    Names of the page's machines and folders become those of this system, and nothing else.
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
        self.warm = WarmPrograms(folder / "warm")
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": os.pathsep.join([str(self.warm.bin), str(BIN), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        self.make_certificates(self.certificates)
        for site in self.sites:
            self.make_key(site)
            public = (folder / site / "key.pub").read_bytes()
            (folder / f"{site}.pub").write_bytes(public)
        self._run(page_command("mkdir"))
        self._run(page_command("cp"))
        (folder / "flwr").mkdir()
        config = self._here(page_block("toml").text)
        (folder / "flwr" / "config.toml").write_text(config)

    def _here(self, text: str) -> str:
        """A text of the page with this system's names for the page's."""
        names = {
            "/data/fl/certificates": self.certificates,
            "/data/fl": self.server,
            "fl.example.org:9443": self.address,
            "9443": self.port,
            "0.0.0.0": "127.0.0.1",
        }
        for name, here in names.items():
            text = re.sub(rf"(?<![\w/]){re.escape(name)}", str(here), text)
        return text

    def _run(self, words: Sequence[str]) -> None:
        """Run a command of the page."""
        here = [self._here(word) for word in words]
        subprocess.run(
            here,
            check=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    # ---- keys

    def make_certificates(self, folder: Path) -> None:
        """An authority, and a certificate of this machine, in a new folder."""
        bash, script, _, _, _ = page_command("bash")
        self._run([bash, str(CHECKOUT / script), str(folder), "localhost", "127.0.0.1"])

    def make_key(self, site: str) -> Path:
        """A key pair of a site, in its folder; the private one is returned."""
        key = self.folder / site / "key"
        key.parent.mkdir(exist_ok=True)
        self._run([*page_command("ssh-keygen")[:-1], str(key)])
        return key

    def register(self, *sites: str) -> None:
        """Tell the SuperLink which keys may connect."""
        for site in sites or self.sites:
            words = page_command("flwr", "supernode", "register", f"/data/fl/keys/{site}.pub")
            self.flwr(*map(self._here, words[1:]))

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
        self._start("server", [self._here(word) for word in page_command("flower-superlink")])
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
            here = {
                "ca.crt": str(authority or self.certificates / "ca.crt"),
                "alder": str(key or folder / "key"),
                'name="alder" folder="/data/site"': f'name="{name or site}" folder="{folder}"',
            }
            words = []
            for word in page_command("flower-supernode"):
                words.append(here.get(word, self._here(word)))
            self._start(site, [*words, "--port", str(free_port())])

    def _start(self, name: str, command: Sequence[str]) -> None:
        self._begun[name] = len(self.log(name))
        words = _without_assignments(command)
        assignments = [word.split("=", 1) for word in command if word not in words]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.started[name] = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                env={**self.environment, **dict(assignments)},
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
        """The processes of a site or the server: the one that was started, its children, and what
        runs warm for them.
        """
        if name not in self.started:
            return []
        try:
            root = psutil.Process(self.started[name].pid)
            family = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        for fork in self.warm.forks_of(process.pid for process in family):
            with suppress(psutil.NoSuchProcess):
                family.append(psutil.Process(fork))
        return family

    def stop(self, site: str) -> None:
        """End a site as its admin does; it says good-bye to the server.

        After a ``kill -9`` the server takes the node for connected for up to a minute, and refuses
        another one with its key.
        """
        process = self.started.pop(site)
        process.terminate()
        process.wait(timeout=60)

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
        system.warm.stop()
