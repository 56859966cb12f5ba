# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of ``make demo`` with several jobs at a time: time, processors and memory.

::

    python benchmarks/jobs.py [--jobs 1 2] [--rounds 20] [--hospitals DIR]

    # the same by monai-fairfl compare, for some seeds
    python benchmarks/jobs.py --seeds 0 1 --rounds 5

Three methods are trained on four generated hospitals, first with one job, then with more; the
ledgers are checked to be equal. For each number of jobs it prints the load of the machine in the
minute before, the time that passed, the processor time of the first process and of each worker, and
their sum. ``longest`` is the processor time of the first process and of its busiest worker
together: what would pass at most, if every process had a core for itself. Other work on the machine
changes that number less than the time that passed. Memory is the sum of the peak resident sets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.cli import main as monai_fairfl

BUNDLE = "prostate_mri_segmentation"
METHODS = ("Standalone", "FedAvg", "FedCE")
OVERRIDES = {"size": [64, 64], "channels": [16, 32, 64, 128]}
FEDERATE = ("federate", "federate_light")
LOCAL_EPOCHS = 4


@dataclass(frozen=True)
class Found:
    """What one run took.

    Args:
        load: of the machine in the minute before.
        seconds: that passed.
        server: seconds of processor time of the federation's process.
        workers: of each worker.
        memory: peak resident sets of all processes together, in MiB.
    """

    load: float
    seconds: float
    server: float
    workers: Sequence[float]
    memory: float

    @property
    def longest(self) -> float:
        """Processor time of the federation's process and of the busiest worker."""
        return self.server + max(self.workers, default=0.0)

    @property
    def all(self) -> float:
        """Processor time of all processes."""
        return self.server + sum(self.workers)


def comparison(
    jobs: int, rounds: int, seeds: Sequence[int], hospitals: Path, folder: Path
) -> list[str]:
    """Return the words of the command that compares the demo's methods over seeds."""
    words = [sys.executable, "-W", "ignore", "-m", "monai_fairfl", "compare", str(hospitals)]
    words += ["--strategy", *METHODS, "--seeds", *map(str, seeds), "--out", str(folder)]
    words += ["--recipe", "light", "--rounds", str(rounds), "--local-epochs", str(LOCAL_EPOCHS)]
    return [*words, "--overrides", json.dumps(OVERRIDES), "--jobs", str(jobs)]


def command(jobs: int, rounds: int, hospitals: Path, folder: Path) -> list[str]:
    """Return the words of the command that trains the demo's federation."""
    root = find_bundle(BUNDLE)
    strategies = [{"_target_": f"monai_fairfl.strategies.{name}"} for name in METHODS]
    values = {
        "config_file": [str(root / "configs" / f"{name}.json") for name in FEDERATE],
        "bundle_root": root,
        "sites_root": hospitals,
        "run_dir": folder,
        "rounds": rounds,
        "local_epochs": LOCAL_EPOCHS,
        "overrides": OVERRIDES,
        "strategies": strategies,
        "device": "cpu",
        "jobs": jobs,
    }
    words = [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run"]
    for name, value in values.items():
        words += [f"--{name}", str(value)]
    return words


def measure(words: Sequence[str], folder: Path) -> Found:
    """Run a command once, and look at its processes five times a second.

    Args:
        words: of the command.
        folder: beside which its log is written.
    """
    load, _, _ = os.getloadavg()
    # Process -> its processor time and peak memory, as last seen.
    seen: dict[psutil.Process, tuple[float, float]] = {}
    begun = time.monotonic()
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        server = psutil.Popen(
            words,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        while server.poll() is None:
            look_at(server, seen)
            time.sleep(0.2)
    seconds = time.monotonic() - begun
    if server.returncode:
        sys.exit(f"{folder.name} failed: {Path(log.name).read_text()[-2000:]}")
    times = {process.pid: times for process, (times, _) in seen.items()}
    memory = sum(peak for _, peak in seen.values())
    in_server = times.pop(server.pid)
    return Found(load, seconds, in_server, sorted(times.values()), memory)


def look_at(server: psutil.Process, seen: dict[psutil.Process, tuple[float, float]]) -> None:
    """Note the processor time and the memory of all processes that run now."""
    try:
        processes = [server, *server.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            used = process.cpu_times()
            memory = process.memory_info().rss / 2**20
        except psutil.Error:
            continue
        _, before = seen.get(process, (0.0, 0.0))
        seen[process] = (used.user + used.system, max(before, memory))


def table(found: dict[int, Found]) -> str:
    """Return the results as a table of Markdown; ratios are to the first row."""
    lines = [
        "| jobs | load before | time, s | first process, s | each worker, s | all, s | longest, s "
        "| ratio | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    first = next(iter(found.values()))
    for jobs, run in found.items():
        workers = ", ".join(f"{seconds:.0f}" for seconds in run.workers)
        cells = [
            str(jobs),
            f"{run.load:.1f}",
            f"{run.seconds:.0f}",
            f"{run.server:.0f}",
            workers,
            f"{run.all:.0f}",
            f"{run.longest:.0f}",
            f"{run.longest / first.longest:.2f}",
            f"{run.memory:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ledgers(folder: Path) -> dict[str, bytes]:
    """Return the content of every training's ledger."""
    files = sorted(folder.rglob("ledger.jsonl"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def main() -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--rounds", type=int, default=20, help="of each method; default: 20")
    parser.add_argument("--seeds", type=int, nargs="+", help="compare over them; default: the demo")
    parser.add_argument("--hospitals", type=Path, help="default: those of make demo are made")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        hospitals = arguments.hospitals
        if hospitals is None:
            hospitals = folder / "hospitals"
            monai_fairfl(["demo", "--data-only", "--out", str(hospitals)])
        found: dict[int, Found] = {}
        first: dict[str, bytes] = {}
        for jobs in arguments.jobs:
            run = folder / f"jobs-{jobs}"
            words = command(jobs, arguments.rounds, hospitals.absolute(), run)
            if arguments.seeds:
                words = comparison(
                    jobs, arguments.rounds, arguments.seeds, hospitals.absolute(), run
                )
            found[jobs] = measure(words, run)
            first = first or ledgers(run)
            if ledgers(run) != first:
                sys.exit(f"the ledgers with {jobs} jobs differ from those of the first run")
        print(table(found))


if __name__ == "__main__":
    main()
