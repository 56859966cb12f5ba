# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real Flower system on loopback, set up by the commands of ``docs/flower_production.md``: a
SuperLink with TLS and SuperNodes with keys, its own port, home and folders; ended by process id.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from helpers.checkout import BIN, CHECKOUT, free_port, wait_for
from helpers.page_blocks import blocks_in

PAGE = "docs/flower_production.md"


class FlowerSystem:
    """A SuperLink and SuperNodes, started and stopped one by one.

    ``server/`` is the server's home with ``keys/`` and ``runs/``, ``SITE/`` each site's folder.
    Names of the page's machines and folders become those of this system, and nothing else.
    """

    def __init__(self, folder: Path, sites: Sequence[str]):
        self.folder = folder
        self.sites = list(sites)
        self.runs = folder / "server" / "runs"
        self.authority = folder / "ca" / "ca.crt"
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._port = free_port()
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "PYTHONPATH": str(CHECKOUT),
            "OMP_NUM_THREADS": "1",
        }
        self.make_certificates(self.authority.parent)
        for site in self.sites:
            self.make_key(site)
        self.run("mkdir")
        self.run("cp")
        (folder / "flwr").mkdir()
        [config] = blocks_in(PAGE, "toml")
        (folder / "flwr" / "config.toml").write_text(self._here(config))

    # ---- the page's commands

    def command(self, *begin: str, **instead: str) -> list[str]:
        """The words of the page's command that begins so; some words may be others."""
        text = "\n".join(blocks_in(PAGE, "bash")).replace("\\\n", " ")
        commands = [shlex.split(line, comments=True) for line in text.splitlines()]
        found = [words for words in commands if [*begin] == plain(words)[: len(begin)]]
        assert found, f"the page has no command {' '.join(begin)}"
        return [instead.get(word, self._here(word)) for word in found[0]]

    def _here(self, text: str) -> str:
        """A text of the page with this system's names for the page's."""
        names = {
            "/data/fl/certificates": str(self.authority.parent),
            "/data/fl": str(self.folder / "server"),
            "fl.example.org:9443": f"127.0.0.1:{self._port}",
            "9443": str(self._port),
            "0.0.0.0": "127.0.0.1",
        }
        for name, here in names.items():
            text = re.sub(rf"(?<![\w/]){re.escape(name)}", here, text)
        return text

    def run(self, *begin: str, more: Sequence[str] = (), **instead: str) -> str:
        """Run a command of the page to its end; returns what it printed."""
        words = [*self.command(*begin, **instead), *more]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def make_certificates(self, folder: Path) -> None:
        """An authority, and a certificate of this machine, in a new folder."""
        script = "docs/examples/flower/certificates.sh"
        here = {"fl.example.org": "localhost", "192.0.2.10": "127.0.0.1"}
        given = {script: str(CHECKOUT / script), "/data/fl/certificates": str(folder)}
        self.run("bash", **here, **given)

    def make_key(self, site: str) -> None:
        """A key pair ``SITE``, ``SITE.pub``."""
        self.run("ssh-keygen", alder=site)

    def register(self) -> None:
        """Tell the SuperLink which keys may connect."""
        for site in self.sites:
            self.run("flwr", "supernode", "register", f"/data/fl/keys/{site}.pub")

    # ---- processes

    def start_server(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        self._start("server", self.command("flower-superlink"), "startup complete")

    def start(
        self,
        site: str,
        name: str = "",
        key: str = "",
        authority: Path | None = None,
        until: str = "SuperNode ID:",
    ) -> None:
        """Start a SuperNode, and wait for a line that it prints.

        Args:
            site: whose folder it uses.
            name: that it gives itself; the site's by default.
            key: whose key it has; the site's by default.
            authority: that it trusts; the right one by default.
            until: the line.
        """
        here = {
            "ca.crt": str(authority or self.authority),
            "alder": key or site,
            'name="alder" folder="/data/site"': f'name="{name or site}" '
            f'folder="{self.folder / "sites" / site}"',
        }
        words = [*self.command("flower-supernode", **here), "--port", str(free_port())]
        self._start(site, words, until)

    def _start(self, name: str, words: Sequence[str], until: str) -> None:
        known = len(self.log(name))
        assignments = [word.split("=", 1) for word in words if word not in plain(words)]
        with open(self.folder / f"{name}.log", "ab") as log:
            self._started[name] = subprocess.Popen(
                plain(words),
                cwd=self.folder,
                env={**self._environment, **dict(assignments)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        wait_for(f"{until!r} of {name}", lambda: until in self.log(name)[known:])

    def stop(self, name: str) -> None:
        """End a process as its admin does; a site says good-bye to the server."""
        process = self._started.pop(name)
        process.terminate()
        process.wait(timeout=60)

    def kill(self, *names: str) -> None:
        """``kill -9`` of everything that a site or the server runs."""
        for name in names or tuple(self._started):
            process = self._started.pop(name)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)

    def log(self, name: str) -> str:
        """What a site or the server printed."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""


def plain(words: Sequence[str]) -> list[str]:
    """A command without the assignments before it."""
    return [word for word in words if not re.match("[A-Z_]+=", word)]
