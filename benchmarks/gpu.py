# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a GPU does for a federation: rounds of each method, precisions, several sites on one GPU.

::

    python benchmarks/gpu.py [--device cuda:0] [--size 256] [--profile-dir DIR]

Six generated hospitals train the prostate bundle at the papers' size, 256 x 256 with 8 slices a
batch. Seconds are those of a round after the first, medians of the repeats, validation and
recording included. Peak memory is what torch had allocated on the GPU. Four tables:

1. a round of each method in float32;
2. FedAvg in float32, and with ``amp`` in float16 and in bfloat16, with the test Dice;
3. FedAvg with 1, 2, 4 and 6 sites at a time on the one device, with ledgers compared;
4. the operators that take most of a FedAvg round, by torch's profiler, and how often the processor
   waited for the GPU.

It ends with an error where two runs of the same seed differ. It also runs on a processor
(``--device cpu --size 48``), which shows only that it works.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from monai.utils import set_determinism
from torch.profiler import ProfilerActivity, profile

from monai_fairfl.bundle import BundleFederation
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.data import write_sites
from monai_fairfl.strategies.catalogue import strategy_of

BUNDLE = "prostate_mri_segmentation"
METHODS = ("FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM", "Ditto")
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"amp": True, "amp_dtype": "float16"},
    "bfloat16": {"amp": True, "amp_dtype": "bfloat16"},
}
SITES_AT_A_TIME = (1, 2, 4, 6)
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::item")
"""Events of the profiler in which the processor waits for the GPU."""


@dataclass(frozen=True)
class Setting:
    """What all runs have in common.

    Args:
        device: of the training.
        size: pixels of a side.
        rounds: of a measured run; one round is taken off, see :func:`seconds_of_a_round`.
        repeats: of each measurement.
        hospitals: folder of the sites.
        folder: of the runs.
        profiles: folder of the profiler's traces; ``None``: none are written.
    """

    device: str
    size: int
    rounds: int
    repeats: int
    hospitals: Path
    folder: Path
    profiles: Path | None
    _runs: list[Path] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    def run(self, method: str, rounds: int, jobs: int = 1, **changes: Any) -> Path:
        """Train in a new folder; that folder."""
        # The ledger names its folder: the same name in each.
        run_dir = self.folder / f"{len(self._runs)}" / "run"
        self._runs.append(run_dir)
        amp = changes.pop("amp", False)
        # Two volumes of four slices each are a batch of eight.
        overrides = {"size": [self.size, self.size], "batch_size": 2, "slices_per_volume": 4}
        set_determinism(seed=0)
        BundleFederation(
            str(find_bundle(BUNDLE)),
            str(self.hospitals),
            strategy_of(method),
            rounds,
            str(run_dir),
            overrides={**overrides, **changes},
            device=self.device,
            amp=amp,
            jobs=jobs,
            report=False,
        ).run()
        return run_dir


def seconds_of_a_round(setting: Setting, method: str, jobs: int = 1, **changes: Any) -> float:
    """The time of a run less that of one with a single round, for each further round."""
    times = {}
    for rounds in (1, setting.rounds):
        begun = time.perf_counter()
        setting.run(method, rounds, jobs, **changes)
        times[rounds] = time.perf_counter() - begun
    return (times[setting.rounds] - times[1]) / (setting.rounds - 1)


def measured(setting: Setting, method: str, jobs: int = 1, **changes: Any) -> str:
    """Median seconds of a round, the lowest and the highest."""
    times = []
    for _ in range(setting.repeats):
        times.append(seconds_of_a_round(setting, method, jobs, **changes))
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def peak_memory(setting: Setting) -> str:
    """MiB that torch had allocated on the GPU at most, since it was asked last."""
    if not setting.on_gpu:
        return "-"
    peak = torch.cuda.max_memory_allocated(setting.device) / 2**20
    torch.cuda.reset_peak_memory_stats(setting.device)
    return f"{peak:.0f}"


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table of Markdown."""
    print(f"\n| {' | '.join(head)} |")
    print("| --- " * len(head) + "|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def print_methods(setting: Setting) -> None:
    """A round of each method in float32, and its ratio to FedAvg's."""
    rows = []
    for method in METHODS:
        rows.append([method, measured(setting, method), peak_memory(setting)])
    print_table(["method", "a round, s", "peak memory, MiB"], rows)


def print_precisions(setting: Setting) -> None:
    """FedAvg in each precision."""
    rows = []
    for name, changes in PRECISIONS.items():
        seconds = measured(setting, "FedAvg", **changes)
        rows.append([name, seconds, peak_memory(setting)])
    print_table(["precision", "a round of FedAvg, s", "peak memory, MiB"], rows)


def print_sites_at_a_time(setting: Setting) -> None:
    """FedAvg with more and more sites at a time; an error where their ledgers differ."""
    rows = []
    first = b""
    for jobs in SITES_AT_A_TIME:
        seconds = measured(setting, "FedAvg", jobs)
        ledger = (setting.run("FedAvg", setting.rounds, jobs) / "ledger.jsonl").read_bytes()
        first = first or ledger
        rows.append([str(jobs), seconds, "yes" if ledger == first else "no"])
    print_table(["sites at a time", "a round of FedAvg, s", "same ledger as the first"], rows)
    if any(row[-1] == "no" for row in rows):
        sys.exit("the same seed gave other ledgers")


def print_profile(setting: Setting) -> None:
    """The operators that take most of a run of two rounds, and the number of waits."""
    activities = [ProfilerActivity.CPU]
    order = "self_cpu_time_total"
    if setting.on_gpu:
        activities.append(ProfilerActivity.CUDA)
        order = "self_cuda_time_total"
    with profile(activities=activities) as profiler:
        setting.run("FedAvg", 2)
    events = profiler.key_averages()
    print(f"\n{events.table(sort_by=order, row_limit=20)}")
    for event in events:
        if event.key in WAITS:
            print(f"{event.key}: {event.count} times in two rounds")
    if setting.profiles is not None:
        setting.profiles.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(setting.profiles / "fedavg.json"))


def main() -> None:
    """Run what the command line asks for and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side; default: 256")
    parser.add_argument("--rounds", type=int, default=4, help="of a measured run; default: 4")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement; default: 3")
    parser.add_argument("--cases", type=int, default=12, help="of each hospital; default: 12")
    parser.add_argument("--profile-dir", type=Path, help="write the profiler's trace here")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2: the first round is not measured")
    if torch.device(arguments.device).type == "cuda" and not torch.cuda.is_available():
        sys.exit(f"no GPU: torch {torch.__version__} sees none; --device cpu shows that this works")
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_sites(
            folder / "hospitals", size=(arguments.size, arguments.size, 16), cases=arguments.cases
        )
        setting = Setting(
            arguments.device,
            arguments.size,
            arguments.rounds,
            arguments.repeats,
            folder / "hospitals",
            folder,
            arguments.profile_dir,
        )
        if setting.on_gpu:
            print(f"{torch.cuda.get_device_name(arguments.device)}, torch {torch.__version__}")
        # The first run loads libraries and files that the others find in memory.
        setting.run("FedAvg", 1)
        print_methods(setting)
        print_precisions(setting)
        print_sites_at_a_time(setting)
        print_profile(setting)


if __name__ == "__main__":
    main()
