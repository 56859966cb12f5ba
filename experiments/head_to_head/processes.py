# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs a command with all that it starts on one core, and measures what it takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from study import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from engines_watch import end  # noqa: E402

EVERY = 0.5
"""Seconds between two looks at the processes."""


@dataclass(frozen=True)
class Took:
    """What a command took.

    Args:
        code: its exit status; ``None``: it was ended after ``timeout`` seconds.
        began: seconds since the epoch.
        seconds: by the clock.
        processor_seconds: of all its processes; of one that ends, up to the last look at it.
    """

    code: int | None
    began: float
    seconds: float
    processor_seconds: float


def run_on_one_core(
    command: Sequence[str], output: Path, environment: Mapping[str, str], timeout: float
) -> Took:
    """Run a command, wait for it, and end what is left of its processes.

    Args:
        command: and its arguments.
        output: file for what it prints.
        environment: of the processes.
        timeout: seconds.
    """
    used: dict[psutil.Process, float] = {}
    code = None
    with output.open("w") as printed:
        began = time.time()
        clock = time.monotonic()
        process = subprocess.Popen(
            command, env=dict(environment), stdout=printed, stderr=subprocess.STDOUT
        )
        root = psutil.Process(process.pid)
        try:
            _stay_on_one_core(root)
            while code is None and time.monotonic() - clock < timeout:
                _look_at(root, used)
                time.sleep(EVERY)
                code = process.poll()
            seconds = time.monotonic() - clock
        finally:
            end([root, *used])
            process.wait()
    return Took(code, began, seconds, sum(used.values()))


def _stay_on_one_core(process: psutil.Process) -> None:
    """Give a process, and what it starts later, one core, where the system can do that."""
    if hasattr(process, "cpu_affinity"):
        process.cpu_affinity([max(process.cpu_affinity())])


def _look_at(root: psutil.Process, used: dict[psutil.Process, float]) -> None:
    """Record the processor seconds of ``root`` and of all that it started."""
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        # It has ended.
        return
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used[process] = times.user + times.system
