# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, which gives every client a model of its own: time of a round, memory and disk.

The clients answer at once::

    python benchmarks/rewards.py [--clients 16] [--parameters 1.6] [--rounds 6] [--unequal]

It prints the median CPU time of a round, the memory above what the updates take at most, and the
size of the stored checkpoints.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from functools import partial
from pathlib import Path

import torch
from server_step import Clock, PromptClient, updates_of

from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import CGSV
from monai_fairfl.transports.in_process import InProcess


def make_unequal(updates: dict[str, dict[str, torch.Tensor]]) -> None:
    """Give every client a common direction and noise of its own, the later the more."""
    generator = torch.Generator().manual_seed(9)
    first = next(iter(updates.values()))
    common = {name: torch.randn(first[name].shape, generator=generator) for name in first}
    for number, update in enumerate(updates.values()):
        for name, tensor in update.items():
            tensor.mul_(0.2 + 0.3 * number).add_(common[name])


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--parameters", type=float, default=1.6, help="in millions")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--unequal", action="store_true", help="clients of different quality")
    arguments = parser.parse_args()

    updates, spec = updates_of(arguments.clients, int(arguments.parameters * 1e6))
    if arguments.unequal:
        make_unequal(updates)
    start = {
        name: torch.zeros_like(tensor) for name, tensor in next(iter(updates.values())).items()
    }
    makers = {client: partial(PromptClient, update, {}) for client, update in updates.items()}

    clock = Clock()
    kilobytes_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        Federation(
            CGSV(),
            InProcess(makers),
            arguments.rounds,
            lambda: (start, spec),
            (),
            run_dir,
            observer=clock,
            evaluate=(),
            final=(),
        ).run()
        sizes = [file.stat().st_size for file in run_dir.glob("checkpoints/**/*") if file.is_file()]
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kilobytes_before

    print("| clients | parameters | rounds | CPU ms a round | memory, MB | checkpoints, MB |")
    print("| --- " * 6 + "|")
    milliseconds = 1000 * statistics.median(clock.seconds)
    print(
        f"| {arguments.clients} | {arguments.parameters} M | {arguments.rounds} "
        f"| {milliseconds:.0f} | {kilobytes / 1000:.0f} | {sum(sizes) / 1e6:.0f} |"
    )


if __name__ == "__main__":
    main()
