# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How the server's work grows with clients, parameters and cases.

::

    python benchmarks/growth.py [--repeats 7]

Three tables: the step of a round by the number of clients (0.4 million parameters), by the number
of parameters (8 clients), and the comparison of two strategies by the number of cases (3 seeds, a
bootstrap of 9,999). CPU time, medians of steps that alternate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from server_step import our_step, reading, updates_of
from stopwatch import alternating

from monai_fairfl.guards import DEFAULT
from monai_fairfl.statistics.paired import CaseScore, compare_paired
from monai_fairfl.strategies import FedAvg, FedCE

CLIENTS = (4, 8, 16, 32, 64)
MILLIONS = (0.1, 0.4, 1.6, 6.4, 16.0)
CASES = (10, 30, 100, 300, 1000)

Steps = Mapping[str, Callable[[], Any]]
Lines = dict[str, list[float]]


def steps_of(clients: int, millions: float) -> Steps:
    """Return the steps of a round of one size."""
    updates, spec = updates_of(clients, int(millions * 1e6))
    return {
        "one reading of all updates": reading(updates),
        "average": our_step(FedAvg(), updates, spec),
        "average, guards, Gram matrix": our_step(FedAvg(), updates, spec, guards=DEFAULT),
        "FedCE": our_step(FedCE("multi", "revised"), updates, spec),
    }


def comparison_of(cases: int) -> Steps:
    """Return the comparison of two strategies over three seeds and so many cases."""
    generator = np.random.default_rng(0)
    scores = []
    for strategy in ("FedAvg", "FedCE"):
        for seed in range(3):
            for case in range(cases):
                value = float(generator.uniform(0.5, 0.9))
                scores.append(CaseScore(strategy, seed, 0, f"site-{case % 4}", str(case), value))
    return {"comparison of two strategies": partial(compare_paired, scores, ["FedAvg", "FedCE"])}


def measured(sizes: Sequence[float], make: Callable[[Any], Steps], repeats: int) -> Lines:
    """Milliseconds of CPU time of each step, size by size."""
    lines: Lines = {}
    for size in sizes:
        for name, times in alternating(make(size), repeats).items():
            lines.setdefault(name, []).append(times.cpu)
    return lines


def print_table(title: str, sizes: Sequence[float], lines: Lines) -> None:
    """Print one table."""
    print(f"| {title} | " + " | ".join(f"{size:g}" for size in sizes) + " |")
    print("| --- " * (1 + len(sizes)) + "|")
    for name, milliseconds in lines.items():
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in milliseconds) + " |")
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    found = measured(CLIENTS, lambda clients: steps_of(clients, 0.4), arguments.repeats)
    print_table("clients, of 0.4 million parameters", CLIENTS, found)
    found = measured(MILLIONS, lambda millions: steps_of(8, millions), arguments.repeats)
    print_table("million parameters, of 8 clients", MILLIONS, found)
    found = measured(CASES, comparison_of, arguments.repeats)
    print_table("cases, of 3 seeds", CASES, found)


if __name__ == "__main__":
    main()
