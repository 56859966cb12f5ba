# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real SuperLink and SuperNodes with TLS and keys on loopback, set up by the commands of
``docs/flower_production.md``: the run of one process, crashes, identity, attacks.

One system for all tests of this file; each leaves it with all sites connected, but the last.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from helpers.checkout import BIN, CHECKOUT, free_port, wait_for  # noqa: E402
from helpers.federations import (  # noqa: E402
    CLIENTS,
    SETTINGS,
    assert_same_run,
    in_one_process,
)
from helpers.page_blocks import blocks_in  # noqa: E402

from monai_fairfl import read_ledger  # noqa: E402
from monai_fairfl.audit import check_receipts, read_receipts  # noqa: E402
from monai_fairfl.strategies import FedCE  # noqa: E402

pytestmark = pytest.mark.engines

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


@pytest.fixture(scope="module")
def system(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerSystem]:
    """A running system: a server and three sites, each of which names its own images."""
    running = FlowerSystem(tmp_path_factory.mktemp("flower"), CLIENTS)
    try:
        for site in CLIENTS:
            write_own_settings(running, hospitals, site)
        running.start_server()
        running.register()
        for site in CLIENTS:
            running.start(site)
        yield running
    finally:
        running.kill()


def write_own_settings(system: FlowerSystem, hospitals: Path, site: str) -> None:
    """The page's file of a site's own settings, with the test's images."""
    [shown] = blocks_in(PAGE, "json")
    here = {"dataset_dir": str(hospitals / site), "device": "cpu"}
    own = {**json.loads(shown), **here, "overrides": {"num_workers": 0}}
    file = system.folder / "sites" / site / "local" / "fairfl.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(own))


def export(system: FlowerSystem, rounds: int, *options: str) -> None:
    """The page's command, of a tiny training."""
    small = ["--rounds", str(rounds), "--local-epochs", "1", "--overrides"]
    system.run("monai-fairfl", "export", more=[*small, json.dumps(SETTINGS), *options])


def rounds_of(system: FlowerSystem, name: str) -> list[dict[str, Any]]:
    file = system.runs / name / "ledger.jsonl"
    records = read_ledger(file) if file.exists() else []
    return [record for record in records if record["kind"] == "round"]


def test_the_pages_commands_give_the_run_of_one_process_also_after_a_kill_of_the_server(
    system: FlowerSystem, hospitals: Path, tmp_path: Path
) -> None:
    for secret in (system.authority.with_name("server.key"), system.folder / "alder"):
        assert secret.stat().st_mode & 0o77 == 0
    export(system, 2)
    # With --stream the command would only return at the end of the run.
    system.run("flwr", "run", **{"--stream": "--format=json"})
    wait_for("the first round", lambda: len(rounds_of(system, "fedce")) >= 1)
    system.kill("server")
    assert len(rounds_of(system, "fedce")) == 1
    system.start_server()
    system.run("flwr", "run")

    assert "finished:completed" in system.run("flwr", "list", more=["--format", "json"])
    run = system.runs / "fedce"
    own = {"strategies": FedCE(), "local_epochs": 1}
    assert_same_run(run, in_one_process(hospitals, tmp_path / "fedce", 2, **own))
    assert {file.name for file in run.iterdir()} >= {"models", "report.html", "checkpoints"}
    for site in CLIENTS:
        own_files = system.folder / "sites" / site / "fairfl" / site
        proof = check_receipts(run, read_receipts(own_files / "state" / "receipts.jsonl"))
        assert (proof.covered, proof.problems) == (len(read_ledger(run / "ledger.jsonl")), ())


def test_a_node_without_a_known_key_or_the_right_authority_does_not_connect(
    system: FlowerSystem,
) -> None:
    system.stop("cedar")
    system.make_key("mallory")
    system.start("cedar", key="mallory", until="Failed to activate SuperNode")
    system.kill("cedar")
    other = system.folder / "other"
    system.make_certificates(other)
    system.start("cedar", authority=other / "ca.crt", until="verify failed")
    system.kill("cedar")
    system.start("cedar")


def test_an_impostor_and_a_killed_site_are_missing_with_the_reason(system: FlowerSystem) -> None:
    # Node and key are cedar's; it says that it is birch.
    system.stop("cedar")
    system.start("cedar", name="birch")
    export(
        system,
        3,
        *("--strategy", "FedAvg", "--name", "trouble", "--out", "apps/trouble"),
        *("--min-clients", "2", "--timeout", "300"),
    )
    system.run("flwr", "run", **{"apps/fedce": "apps/trouble", "--stream": "--format=json"})

    wait_for("the impostor's round", lambda: bool(rounds_of(system, "trouble")))
    system.kill("cedar")
    trouble = system.runs / "trouble" / "report.html"
    wait_for("the end of the run", trouble.exists, 900)

    found = rounds_of(system, "trouble")
    assert len(found) == 3 and "birch" in found[0]["missing"]["cedar"]
    for record in found:
        assert set(record["aggregation"]) == {"alder", "birch"}
    last = found[-1]
    assert "cedar" not in last["clients"] or last["missing"]["cedar"]
