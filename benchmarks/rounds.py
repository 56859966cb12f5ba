# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A round of each method at the hospitals, and what it is spent on.

::

    python benchmarks/rounds.py [--methods FedAvg FedCE] [--data DIR] [--before CHECKOUT]

Two hospitals train the prostate bundle at 128 x 128, four local epochs a round, in one process with
one torch thread. With ``--data`` they are the first two folders of ``DIR``, in the layout
``DIR/SITE/CaseNN.nii.gz``; without it they are generated.

With ``--before`` the same rounds run in another checkout of this project, too. Then three processes
take turns, round by round: FedAvg there, the method there and the method here. So other work on the
machine changes the three alike. Round 0 fills the caches and is not counted. The tables have CPU
seconds of a round, median and quartiles, and ratios of rounds that were run side by side; the last
one has what a round is spent on.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
METHODS = ("FedAvg", "FedCE", "CGSV", "ShapFed", "FedLWR", "FedISM", "Ditto")
BUNDLE = "prostate_mri_segmentation"
HOSPITALS = 2
CASES = 8
LOCAL_EPOCHS = 4
FEDAVG_BEFORE = "FedAvg, before"
BEFORE = "before"
NOW = "now"

PARTS = {
    "network": ["monai.engines.trainer:SupervisedTrainer._iteration"],
    "transforms": ["monai.data.dataset:CacheDataset._transform"],
    "training metric": [
        "monai.transforms:Decollated.__call__",
        "monai.engines.workflow:engine_apply_transform",
        "ignite.metrics:Metric.iteration_completed",
        "ignite.metrics:Metric.completed",
    ],
    "validation": ["monai_fairfl.measurements.probe:Probe.score"],
    "other measurements": [
        "monai_fairfl.client.algo:FairMonaiAlgo._measure",
        # Its place in older checkouts.
        "monai_fairfl.client.training:Measuring.measure",
    ],
    "state": [
        "monai_fairfl.client.algo:state_of",
        "monai_fairfl.client.algo:load_state",
        "monai_fairfl.client.training:state_of",
        "monai_fairfl.client.training:load_state",
        "monai_fairfl.client.state:ClientState.save",
        "monai_fairfl.client.state:load_saved",
        "monai_fairfl.client.state:ClientState.add_receipt",
    ],
    "rest of the client": ["monai_fairfl.client.algo:FairMonaiAlgo.answer"],
}
"""Part of a round -> functions whose time it is, less that of the parts inside them."""

WHOLE = ("validation",)
"""Parts whose time includes everything inside them."""

SERVER = "server"


# --- one federation, in a process of its own


class Stopwatch:
    """CPU seconds of each part of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside: list[str] = [SERVER]
        self._since = time.process_time()

    def _switch(self) -> None:
        """Count the time since the last switch for the part that is left."""
        now = time.process_time()
        part = self._inside[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    def lap(self) -> dict[str, float]:
        """Return the seconds since the last lap."""
        self._switch()
        lap = self.seconds
        self.seconds = {}
        return lap

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        if self._inside[-1] in WHOLE:
            yield
            return
        self._switch()
        self._inside.append(part)
        try:
            yield
        finally:
            self._switch()
            self._inside.pop()

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return ``function``, whose time counts for ``part``."""

        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            with self._part(part):
                return function(*arguments, **named)

        return wrapper

    def watch(self) -> None:
        """Time the functions of :data:`PARTS` from now on, those that this checkout has."""
        for part, places in PARTS.items():
            found = [place for place in places if self._watch(part, place)]
            if not found:
                raise LookupError(f"this checkout has none of the functions of {part!r}: {places}")

    def _watch(self, part: str, place: str) -> bool:
        """Time one function for ``part``; return whether this checkout has it."""
        module, path = place.split(":")
        *owners, name = path.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for attribute in owners:
                owner = getattr(owner, attribute)
            function = getattr(owner, name)
        except (ModuleNotFoundError, AttributeError):
            return False
        setattr(owner, name, self.timed(function, part))
        return True


def run_rounds(method: str, data: str, size: int, profile: bool) -> None:
    """Run rounds of one method: print each round's seconds, wait for a line, run the next one."""
    # What a library prints must not come between the lines of this process.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    import torch

    from monai_fairfl import strategies
    from monai_fairfl.bundle.shipped import find_bundle
    from monai_fairfl.bundle.site import bundle_client, initial_model
    from monai_fairfl.server.federation import Federation
    from monai_fairfl.server.observer import Observer
    from monai_fairfl.transports.in_process import InProcess

    watch = Stopwatch()

    class Turns(Observer):
        """Reports each round, and lets the other processes have their turn."""

        def __init__(self) -> None:
            self.cpu = time.process_time()
            self.wall = time.monotonic()

        def record_added(self, record: Mapping[str, Any]) -> None:
            if record["kind"] != "round":
                return
            lap = watch.lap()
            found = {
                "cpu": time.process_time() - self.cpu,
                "wall": time.monotonic() - self.wall,
                "parts": lap,
            }
            print(json.dumps(found), file=answers)
            if not sys.stdin.readline():
                # The benchmark has seen enough.
                os._exit(0)
            watch.lap()
            self.cpu = time.process_time()
            self.wall = time.monotonic()

    if profile:
        watch.watch()
    torch.set_num_threads(1)
    root = find_bundle(BUNDLE)
    overrides = {"size": [size, size]}
    sites = sorted(folder.name for folder in Path(data).iterdir() if folder.is_dir())
    rounds = 1000
    with tempfile.TemporaryDirectory() as folder:
        makers = {}
        for site in sites[:HOSPITALS]:
            makers[site] = functools.partial(
                bundle_client,
                root,
                site,
                Path(folder, site),
                dataset_dir=Path(data, site),
                rounds=rounds,
                device="cpu",
                local_epochs=LOCAL_EPOCHS,
                overrides=overrides,
            )
        Federation(
            getattr(strategies, method)(),
            InProcess(makers),
            rounds,
            lambda: initial_model(root, overrides),
            run_dir=Path(folder, "run"),
            observer=Turns(),
        ).run()


# --- several of them in turn


class FederationProcess:
    """A process that runs rounds of one method, one at a time.

    Args:
        checkout: whose package and bundle it uses.
        method: name of a strategy.
        data: folder of the hospitals.
        size: side of the images.
        log: file for what it prints.
        profile: whether it times the parts of a round.
    """

    def __init__(
        self, checkout: Path, method: str, data: Path, size: int, log: Path, profile: bool = False
    ):
        words = [sys.executable, "-W", "ignore", __file__, "--process", method, str(data)]
        words += ["--size", str(size)]
        if profile:
            words.append("--profile")
        self.log = log
        self._log = log.open("w")
        self._process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._started = False

    def next_round(self) -> dict[str, Any]:
        """Run a round and return what it took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._started:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self._started = True
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a federation failed:\n{self.log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> FederationProcess:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._log.close()


def in_turn(
    federations: Mapping[str, FederationProcess], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Run rounds of all federations in turn, every other time in the opposite order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, federation in federations.items():
        federation.next_round()
        found[name] = []
    order = list(federations)
    for _ in range(rounds):
        for name in order:
            found[name].append(federations[name].next_round())
        order.reverse()
    return found


def in_words(values: Sequence[float], digits: int) -> str:
    """Return median and quartiles: ``1.20 (1.10 to 1.30)``."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({first:.{digits}f} to {third:.{digits}f})"


def ratios(
    these: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], clock: str
) -> str:
    """Return the ratios of rounds that were run side by side."""
    each = [one[clock] / other[clock] for one, other in zip(these, others, strict=True)]
    return in_words(each, 2)


def row(method: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a method's row of the table."""
    now = found[NOW]
    cells = [method, in_words([each["cpu"] for each in now], 2)]
    cells.append(in_words([each["wall"] for each in now], 2))
    if FEDAVG_BEFORE in found:
        before = found.get(BEFORE, found[FEDAVG_BEFORE])
        cells.append(in_words([each["cpu"] for each in before], 2))
        cells.append(ratios(now, before, "cpu"))
        cells.append(ratios(now, before, "wall"))
        cells.append(ratios(now, found[FEDAVG_BEFORE], "cpu"))
    return f"| {' | '.join(cells)} |"


def print_times(arguments: argparse.Namespace, data: Path, folder: Path) -> None:
    """Print the table of the methods' rounds."""
    titles = ["method", "CPU, s a round", "wall, s"]
    if arguments.before:
        titles += ["CPU before, s", "CPU, now / before", "wall, now / before"]
        titles.append("CPU, now / FedAvg's before")
    print(f"| {' | '.join(titles)} |")
    print("| --- " * len(titles) + "|")
    for method in arguments.methods:
        processes = {}
        if arguments.before:
            processes[FEDAVG_BEFORE] = (arguments.before, "FedAvg")
            if method != "FedAvg":
                processes[BEFORE] = (arguments.before, method)
        processes[NOW] = (HERE, method)
        with ExitStack() as stack:
            federations = {}
            for name, (checkout, which) in processes.items():
                log = folder / f"{method}-{name}.log"
                federation = FederationProcess(checkout, which, data, arguments.size, log)
                federations[name] = stack.enter_context(federation)
            print(row(method, in_turn(federations, arguments.pairs)), flush=True)


def print_parts(arguments: argparse.Namespace, data: Path, folder: Path) -> None:
    """Print what a round of each method is spent on."""
    parts = [*PARTS, SERVER]
    titles = ["method", "version", *parts, "all"]
    print(f"\nCPU seconds of a round\n\n| {' | '.join(titles)} |")
    print("| --- " * len(titles) + "|")
    checkouts = {NOW: HERE}
    if arguments.before:
        checkouts = {BEFORE: arguments.before, NOW: HERE}
    for method in arguments.methods:
        with ExitStack() as stack:
            federations = {}
            for name, checkout in checkouts.items():
                log = folder / f"{method}-{name}-parts.log"
                federation = FederationProcess(
                    checkout, method, data, arguments.size, log, profile=True
                )
                federations[name] = stack.enter_context(federation)
            found = in_turn(federations, arguments.profiled)
        for name, rounds in found.items():
            cells = [method, name]
            for part in parts:
                seconds = [each["parts"].get(part, 0.0) for each in rounds]
                cells.append(f"{statistics.median(seconds):.2f}")
            cells.append(f"{statistics.median(each['cpu'] for each in rounds):.2f}")
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables; or, as one of the processes, run rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--data", type=Path, help="default: hospitals are generated")
    parser.add_argument("--before", type=Path, help="another checkout of this project")
    parser.add_argument("--size", type=int, default=128, help="side of the images; default: 128")
    parser.add_argument("--pairs", type=int, default=15, help="rounds of each; default: 15")
    parser.add_argument(
        "--profiled", type=int, default=3, help="rounds of the last table; 0: no table; default: 3"
    )
    parser.add_argument("--process", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        method, data = arguments.process
        run_rounds(method, data, arguments.size, arguments.profile)
        return
    if arguments.before:
        arguments.before = arguments.before.absolute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hospitals = arguments.data
        if hospitals is None:
            from monai_fairfl.data.pelvis import SITES, write_sites

            hospitals = folder / "hospitals"
            write_sites(hospitals, SITES[:HOSPITALS], size=(160, 160, 24), cases=CASES)
        if arguments.pairs:
            print_times(arguments, hospitals.absolute(), folder)
        if arguments.profiled:
            print_parts(arguments, hospitals.absolute(), folder)


if __name__ == "__main__":
    main()
