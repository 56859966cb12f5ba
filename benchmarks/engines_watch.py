# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs a federation in processes of its own, for ``engines.py``, and watches what it takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import psutil
from engines_runs import Run

BENCHMARKS = Path(__file__).parent.absolute()
CHECKOUT = BENCHMARKS.parent
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # else other programs of the machine come before Ray's
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
}
ROUND = (
    '"kind":"round"',  # in our ledger
    "End persist model on server",  # in NVFlare's log
    "Aggregated MetricRecord",  # in what Flower prints
)
LOST_CLIENT = "LostClientError"
"""In the last words of a run whose simulator lost the process of a client."""

SERVER = "nvflare.private.fed.app.simulator.simulator"
WORKERS = (
    "nvflare.private.fed.app.simulator.simulator_worker",
    "ray::ClientAppActor",
    "multiprocessing.forkserver",
)


@dataclass(frozen=True)
class Found:
    """What a run took.

    Args:
        each: seconds a round.
        rest: seconds of everything else.
        server: MiB of the server.
        client: MiB of the largest client; 0 where the server's process has all clients.
        all: MiB of server, clients and Ray's own processes.
    """

    each: float
    rest: float
    server: float
    client: float
    all: float


def measure(run: Run, timeout: float = 900) -> Found:
    """Run a federation in processes of its own, watch these, and end what is left of them.

    NVFlare's simulator may lose the process of a client: then the run is begun again, once.

    Raises:
        RuntimeError: when it fails or takes too long; with the end of what it printed.
    """
    try:
        return _measure(run, timeout)
    except RuntimeError as error:
        if LOST_CLIENT not in str(error):
            raise
    shutil.rmtree(run.folder)
    return _measure(run, timeout)


def _measure(run: Run, timeout: float) -> Found:
    folder = Path(run.folder)
    folder.mkdir(parents=True)
    environment = {**os.environ, **ENVIRONMENT, "HOME": str(folder)}
    paths = [str(CHECKOUT), str(BENCHMARKS), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    program = str(BENCHMARKS / "engines_runs.py")
    command = [sys.executable, "-W", "ignore", program, json.dumps(asdict(run))]
    seen: dict[psutil.Process, tuple[str, float]] = {}
    round_ends = [0.0]  # seconds after the start; the first is the start itself
    with (folder / "printed.txt").open("w") as printed:
        begun = time.monotonic()
        seconds = 0.0
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT
        )
        root = psutil.Process(process.pid)
        try:
            for tick in count():
                running = process.poll() is None
                seconds = time.monotonic() - begun
                new_rounds = rounds_done(run) + 1 - len(round_ends)
                round_ends += [seconds] * new_rounds
                if not running or seconds > timeout:
                    break
                if tick % 4 == 0:  # looking costs more time than reading the log
                    look_at(root, seen)
                time.sleep(0.05)
        finally:
            end([root, *seen])
    if process.returncode != 0 or not run.file("model").exists():
        text = (folder / "printed.txt").read_text()[-3000:]
        raise RuntimeError(f"{run.engine}, {run.method}: not done after {seconds:.0f} s\n{text}")
    each = (round_ends[run.rounds] - round_ends[run.warm]) / (run.rounds - run.warm)
    rest = seconds - run.rounds * each
    server, clients, daemons = memory_of(list(seen.values()))
    everything = server + sum(clients) + daemons
    return Found(each, rest, server, max(clients, default=0.0), everything)


def rounds_done(run: Run) -> int:
    """Count the rounds that have ended."""
    log = run.file("log")
    if not log.exists():
        return 0
    text = log.read_text()
    return sum(text.count(each) for each in ROUND)


def look_at(root: psutil.Process, seen: dict[psutil.Process, tuple[str, float]]) -> None:
    """Record command and peak resident set, in MiB, of ``root`` and all that it started."""
    for process in [root, *root.children(recursive=True)]:
        # A process that is ending has neither command nor memory.
        try:
            command = " ".join(process.cmdline())
            peak = peak_of(process)
        except (psutil.Error, OSError):
            continue
        if command and peak is not None:
            seen[process] = (command, peak)


def peak_of(process: psutil.Process) -> float | None:
    """Read the peak resident set of a process, in MiB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return None


def memory_of(processes: Sequence[tuple[str, float]]) -> tuple[float, list[float], float]:
    """Sort commands and peaks into that of the server, those of the clients, and those of Ray.

    Where no server has a process of its own, it is in the largest of those without clients.
    """
    clients = []
    servers = []
    daemons = []
    others = []
    for command, peak in processes:
        if is_worker(command):
            clients.append(peak)
        elif SERVER in command:
            servers.append(peak)
        elif is_of_ray(command):
            daemons.append(peak)
        else:
            others.append(peak)
    return max(servers or others), clients, sum(daemons)


def is_worker(command: str) -> bool:
    """Whether a command is that of a process with clients: NVFlare's, Ray's or ours."""
    return any(worker in command for worker in WORKERS)


def is_of_ray(command: str) -> bool:
    """Whether a command is that of one of Ray's own processes."""
    return command.startswith("ray::") or "/ray/" in command


def end(processes: list[psutil.Process]) -> None:
    """Wait five seconds for processes to end, then end them.

    psutil makes sure that an id still belongs to the same process.
    """
    alive = psutil.wait_procs(processes, timeout=5)[1]
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            pass
