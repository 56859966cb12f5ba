# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a GPU does for a federation: tests, rounds in two and three dimensions, sites on one GPU.

::

    python benchmarks/gpu.py [--device cuda:0] [--size 256] [--side 96] [--profile-dir DIR]

Parts, of which ``--parts`` chooses some:

``tests``
    the tests whose clients train on the device that ``MONAI_FAIRFL_TEST_DEVICE`` names;
``slices``
    six generated hospitals train the prostate bundle at the papers' size, 256 x 256 with 8 slices a
    batch: a round of each method in float32;
``settings``
    the same with FedAvg: mixed precision, ``channels_last`` and a compiled network;
``volumes``
    six sites train a DynUNet on crops of generated volumes, and validate by a sliding window;
``sites``
    FedAvg with eight sites, of which 1, 2, 4 and 8 are trained at a time on the one device, with
    ledgers compared, and how busy the GPU was.

``slices`` and ``volumes`` end with a profile: the operators that take most of a FedAvg run, and how
often the processor waited for the GPU. Seconds are those of a round after the first, medians of the
repeats, validation and recording included. Peak memory is what torch had allocated on the GPU.

The command ends with an error where two runs of the same seed differ, or a test fails. It also runs
on a processor, which shows only that it works::

    python benchmarks/gpu.py --device cpu --size 48 --side 24 --rounds 2 --repeats 1 --cases 4
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.utils import set_determinism
from torch.profiler import ProfilerActivity, profile

from monai_fairfl.bundle import BundleFederation
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.data import write_sites
from monai_fairfl.data.pelvis import SITES
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.strategies.registry import strategy_of

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tests", "slices", "settings", "volumes", "sites")

TESTS = ("tests/bundles", "tests/client", "tests/numbers")
"""Tests that read the device; those of other rooms train nothing, or compare stored bits."""

METHODS = ("FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM", "Ditto")
METHODS_OF_VOLUMES = ("FedAvg", "FedCE", "FedLWR")

SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"amp": True, "amp_dtype": "float16"},
    "bfloat16": {"amp": True, "amp_dtype": "bfloat16"},
    "float32, channels_last": {"memory_format": "channels_last"},
    "bfloat16, channels_last": {
        "amp": True,
        "amp_dtype": "bfloat16",
        "memory_format": "channels_last",
    },
    "float32, compiled": {"compiled": True},
    "bfloat16, channels_last, compiled": {
        "amp": True,
        "amp_dtype": "bfloat16",
        "memory_format": "channels_last",
        "compiled": True,
    },
}

SITES_AT_A_TIME = (1, 2, 4, 8)
SITES_OF_VOLUMES = ("A", "B", "C", "D", "E", "F")

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::item")
"""Events of the profiler in which the processor waits for the GPU."""


@dataclass(frozen=True)
class Work:
    """What is trained, and where.

    Args:
        name: of its profile.
        bundle: folder of the bundle.
        sites: folder of the hospitals.
        overrides: of the bundle's configuration.
        config: configuration files of the bundle.
        device: of the training.
        rounds: of a measured run; one round is taken off, see :func:`seconds_of_a_round`.
        repeats: of each measurement.
        folder: of the runs.
    """

    name: str
    bundle: Path
    sites: Path
    overrides: Mapping[str, Any]
    config: Sequence[str]
    device: str
    rounds: int
    repeats: int
    folder: Path
    _runs: list[Path] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    def run(self, method: str, rounds: int, jobs: int = 1, **changes: Any) -> Path:
        """Train in a new folder; that folder.

        Raises:
            FederationError: a site failed, as where the GPU's memory is full. A round without it
                would take less time.
        """
        # The ledger names its folder: the same name in each.
        run_dir = self.folder / self.name / f"{len(self._runs)}" / "run"
        self._runs.append(run_dir)
        amp = changes.pop("amp", False)
        number_of_sites = sum(path.is_dir() for path in self.sites.iterdir())
        set_determinism(seed=0)
        BundleFederation(
            str(self.bundle),
            str(self.sites),
            strategy_of(method),
            rounds,
            str(run_dir),
            overrides={**self.overrides, **changes},
            config=self.config,
            device=self.device,
            amp=amp,
            jobs=jobs,
            min_clients=number_of_sites,
            report=False,
        ).run()
        return run_dir


def slices_at(size: int, sites: Path, arguments: argparse.Namespace, folder: Path) -> Work:
    """The prostate bundle at ``size`` x ``size``: two volumes of four slices each are a batch."""
    return Work(
        name=sites.name,
        bundle=find_bundle("prostate_mri_segmentation"),
        sites=sites,
        overrides={"size": [size, size], "batch_size": 2, "slices_per_volume": 4},
        config=("configs/train.json", "configs/light.json"),
        device=arguments.device,
        rounds=arguments.rounds,
        repeats=arguments.repeats,
        folder=folder,
    )


def volumes_of(side: int, arguments: argparse.Namespace, folder: Path) -> Work:
    """The documented bundle of another organ with a DynUNet, and volumes for it.

    Crops have two thirds of a volume's side, in multiples of 8; the window of the validation is as
    large.
    """
    bundle = folder / "volumes_bundle"
    shutil.copytree(ROOT / "docs" / "examples" / "own_bundle", bundle)
    crop = [max(16, side * 2 // 3 // 8 * 8)] * 3
    overlay = {
        "network_def": {
            "_target_": "DynUNet",
            "spatial_dims": 3,
            "in_channels": 1,
            "out_channels": 2,
            "kernel_size": [3, 3, 3, 3],
            "strides": [1, 2, 2, 2],
            "upsample_kernel_size": [2, 2, 2],
            "norm_name": "instance",
        },
        "train#crop#spatial_size": crop,
        "validate#inferer#roi_size": crop,
    }
    (bundle / "configs" / "volumes.json").write_text(json.dumps(overlay, indent=4))
    write_volumes(folder / "volumes_sites", side, arguments.cases)
    return Work(
        name="volumes",
        bundle=bundle,
        sites=folder / "volumes_sites",
        overrides={},
        config=("configs/train.json", "configs/volumes.json"),
        device=arguments.device,
        rounds=arguments.rounds,
        repeats=arguments.repeats,
        folder=folder,
    )


def write_volumes(root: Path, side: int, cases: int) -> None:
    """Write each site's volumes in nnU-Net's folders: a noisy ball somewhere near the middle."""
    rng = np.random.default_rng(0)
    places = np.indices((side, side, side))
    for site in SITES_OF_VOLUMES:
        for folder in ("imagesTr", "labelsTr"):
            (root / site / folder).mkdir(parents=True)
        for case in range(cases):
            centre = rng.uniform(0.4 * side, 0.6 * side, size=(3, 1, 1, 1))
            squared_distances = ((places - centre) ** 2).sum(0)
            label = (squared_distances < (side / 5) ** 2).astype(np.uint8)
            image = (label + rng.normal(0, 0.3, label.shape)).astype(np.float32)
            name = f"case{case}.nii.gz"
            nib.save(nib.Nifti1Image(image, np.eye(4)), root / site / "imagesTr" / name)
            nib.save(nib.Nifti1Image(label, np.eye(4)), root / site / "labelsTr" / name)


def seconds_of_a_round(work: Work, method: str, jobs: int = 1, **changes: Any) -> float:
    """The time of a run less that of one with a single round, for each further round."""
    times = {}
    for rounds in (1, work.rounds):
        begun = time.perf_counter()
        work.run(method, rounds, jobs, **changes)
        times[rounds] = time.perf_counter() - begun
    return (times[work.rounds] - times[1]) / (work.rounds - 1)


def measured(work: Work, method: str, jobs: int = 1, **changes: Any) -> str:
    """Median seconds of a round, the lowest and the highest."""
    times = []
    for _ in range(work.repeats):
        times.append(seconds_of_a_round(work, method, jobs, **changes))
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def mean_test_score(run: Path) -> str:
    """The sites' mean test Dice of the model that each would use at the end of a run."""
    end = read_ledger(run / "ledger.jsonl")[-1]
    scores = []
    for of_site in end["scores"].values():
        scores.append(of_site["own"]["test_score"]["mean"]["value"])
    return f"{statistics.mean(scores):.3f}"


def peak_memory(work: Work) -> str:
    """MiB that torch had allocated on the GPU at most, since it was asked last."""
    if not work.on_gpu:
        return "-"
    peak = torch.cuda.max_memory_allocated(work.device) / 2**20
    torch.cuda.reset_peak_memory_stats(work.device)
    return f"{peak:.0f}"


@contextmanager
def watched(work: Work) -> Iterator[list[str]]:
    """Inside, ``nvidia-smi`` looks at the GPU five times a second; then the list has its summary.

    It sees all processes, where torch's profiler sees one.
    """
    summary: list[str] = []
    if not work.on_gpu:
        yield summary
        summary += ["-", "-"]
        return
    index = torch.device(work.device).index or 0
    query = "--query-gpu=utilization.gpu,memory.used"
    watcher = subprocess.Popen(
        ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--id={index}", "-lms", "200"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield summary
    finally:
        watcher.terminate()
        lines, _ = watcher.communicate()
    busy = []
    memory = []
    for line in lines.splitlines():
        values = line.split(",")
        # The last line may be a part of one.
        if len(values) == 2 and values[1].strip().isdigit():
            busy.append(int(values[0]))
            memory.append(int(values[1]))
    summary += [f"{statistics.mean(busy):.0f} %", f"{max(memory)}"]


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table of Markdown."""
    print(f"\n| {' | '.join(head)} |")
    print("| --- " * len(head) + "|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def run_tests(device: str) -> None:
    """Run the tests on the device; an error where one fails."""
    environment = {**os.environ, "MONAI_FAIRFL_TEST_DEVICE": device}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not extended", *TESTS]
    print(f"\nMONAI_FAIRFL_TEST_DEVICE={device} python {' '.join(command[1:])}", flush=True)
    done = subprocess.run(command, cwd=ROOT, env=environment)
    if done.returncode:
        sys.exit(f"tests failed on {device}")


def print_methods(work: Work, methods: Sequence[str]) -> None:
    """A round of each method in float32."""
    rows = []
    for method in methods:
        rows.append([method, measured(work, method), peak_memory(work)])
    print_table([f"{work.name}, method", "a round, s", "peak memory, MiB"], rows)


def print_settings(work: Work) -> None:
    """FedAvg under each setting, and what the model is worth."""
    rows = []
    for name, changes in SETTINGS.items():
        # A network is compiled in the first run, and the others find it in a cache.
        work.run("FedAvg", 1, **changes)
        seconds = measured(work, "FedAvg", **changes)
        score = mean_test_score(work._runs[-1])
        rows.append([name, seconds, score, peak_memory(work)])
    print_table(["setting", "a round of FedAvg, s", "test Dice", "peak memory, MiB"], rows)


def print_sites_at_a_time(work: Work) -> None:
    """FedAvg with more and more sites at a time; an error where their ledgers differ."""
    rows = []
    ledgers = set()
    for jobs in SITES_AT_A_TIME:
        with watched(work) as load:
            seconds = measured(work, "FedAvg", jobs)
        ledger = (work._runs[-1] / "ledger.jsonl").read_bytes()
        ledgers.add(ledger)
        rows.append([str(jobs), seconds, *load, "yes" if len(ledgers) == 1 else "no"])
    head = ["sites at a time", "a round of FedAvg, s", "GPU busy", "its memory, MiB", "same ledger"]
    print_table(head, rows)
    if len(ledgers) > 1:
        sys.exit("the same seed gave other ledgers")


def print_profile(work: Work, out: Path | None) -> None:
    """The operators that take most of a run of two rounds, and the number of waits."""
    activities = [ProfilerActivity.CPU]
    order = "self_cpu_time_total"
    if work.on_gpu:
        activities.append(ProfilerActivity.CUDA)
        order = "self_cuda_time_total"
    with profile(activities=activities) as profiler:
        work.run("FedAvg", 2)
    events = profiler.key_averages()
    print(f"\n{work.name}\n{events.table(sort_by=order, row_limit=20)}")
    for event in events:
        if event.key in WAITS:
            print(f"{event.key}: {event.count} times in two rounds")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(out / f"{work.name}.json"))


def arguments_of_command() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="default: all")
    parser.add_argument("--size", type=int, default=256, help="pixels of a slice's side; 256")
    parser.add_argument("--side", type=int, default=96, help="voxels of a volume's side; 96")
    parser.add_argument("--rounds", type=int, default=4, help="of a measured run; default: 4")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement; default: 3")
    parser.add_argument("--cases", type=int, default=12, help="of each hospital; default: 12")
    parser.add_argument("--profile-dir", type=Path, help="write the profilers' traces here")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2: the first round is not measured")
    if torch.device(arguments.device).type == "cuda" and not torch.cuda.is_available():
        sys.exit(f"no GPU: torch {torch.__version__} sees none; --device cpu shows that this works")
    return arguments


def measure_slices(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the parts ``slices`` and ``settings``, those that were chosen."""
    sites = folder / "slices"
    write_sites(sites, size=(arguments.size, arguments.size, 16), cases=arguments.cases)
    work = slices_at(arguments.size, sites, arguments, folder)
    # The first run loads libraries and files that the others find in memory.
    work.run("FedAvg", 1)
    if "slices" in arguments.parts:
        print_methods(work, METHODS)
        print_profile(work, arguments.profile_dir)
    if "settings" in arguments.parts:
        print_settings(work)


def measure_volumes(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the part ``volumes``."""
    work = volumes_of(arguments.side, arguments, folder)
    work.run("FedAvg", 1)
    print_methods(work, METHODS_OF_VOLUMES)
    print_profile(work, arguments.profile_dir)


def measure_sites(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the part ``sites``."""
    two_more = [replace(site, name=f"{site.name}_2") for site in SITES[:2]]
    sites = folder / "eight_sites"
    size = (arguments.size, arguments.size, 16)
    write_sites(sites, sites=[*SITES, *two_more], size=size, cases=arguments.cases)
    print_sites_at_a_time(slices_at(arguments.size, sites, arguments, folder))


def main() -> None:
    """Run what the command line asks for and print the tables."""
    arguments = arguments_of_command()
    if torch.device(arguments.device).type == "cuda":
        print(f"{torch.cuda.get_device_name(arguments.device)}, torch {torch.__version__}")
    if "tests" in arguments.parts:
        run_tests(arguments.device)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if "slices" in arguments.parts or "settings" in arguments.parts:
            measure_slices(arguments, folder)
        if "volumes" in arguments.parts:
            measure_volumes(arguments, folder)
        if "sites" in arguments.parts:
            measure_sites(arguments, folder)


if __name__ == "__main__":
    main()
