# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Times the steps of a benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def milliseconds(step: Callable[[], Any], repeats: int) -> float:
    """Measure the median CPU time of ``step`` after one warm-up."""
    step()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        step()
        times.append(1000 * (time.process_time() - begun))
    return statistics.median(times)


@dataclass(frozen=True)
class Times:
    """Milliseconds of one step: medians of CPU and wall time."""

    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{self.cpu:.1f} ({self.wall:.1f})"


def alternating(steps: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Times]:
    """Measure steps in turns, after one warm-up of each."""
    for step in steps.values():
        step()
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    wall: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            cpu_begun = time.process_time()
            wall_begun = time.perf_counter()
            step()
            cpu[name].append(1000 * (time.process_time() - cpu_begun))
            wall[name].append(1000 * (time.perf_counter() - wall_begun))
    found = {}
    for name in steps:
        found[name] = Times(statistics.median(cpu[name]), statistics.median(wall[name]))
    return found
