# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation's rounds: ours in one process and in NVIDIA FLARE's simulator, beside NVFlare's own
recipes there.

    python benchmarks/engines.py [--rounds 2 8] [--hospitals DIR]

Prints seconds per round, start-up and peak memory, with the ratio NVFlare's own / this one, and
what each does in a round. All train the same network on the same batches of the same generated
hospitals, one torch thread per process. A round's time is that from the end of round 2 to the end
of round 8, over six: a simulator's start takes ten times as long as a round and varies by more than
one. Memory is the peak resident set. Needs the extra nvflare.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from monai_fairfl.bundle import preflight
from monai_fairfl.bundle.federation import BundleFederation, initial_model
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.data.synthetic import SITES, write_sites
from monai_fairfl.strategies import FedAvg, FedCE
from monai_fairfl.utils.random_state import own_random_state

CLIENTS = ["alder", "birch", "cedar"]
BUNDLE = "prostate_mri_segmentation"
OVERRIDES = {
    "size": [64, 64],
    "channels": [16, 32, 64, 128],
    "decay_epochs": 100,
    "val_interval": 0,  # nobody validates while training
    "validate#handlers": [],  # nor takes a model that is only scored for the best one
}
METHODS = ("FedAvg", "FedCE")
ROUND = ('"kind":"round"', "End persist model on server")  # in our ledger; in NVFlare's log
SERVER, WORKER = (
    "nvflare.private.fed.app.simulator.simulator",
    "nvflare.private.fed.app.simulator.simulator_worker",
)


@dataclass(frozen=True)
class Run:
    """One federation to run, in a process of its own; all it writes is in ``folder``."""

    engine: str
    method: str
    rounds: int
    hospitals: str
    folder: str
    local_epochs: int = 4
    interval: float = 0  # seconds a client of the simulator waits between two tasks; 0: as it comes
    warm: int = 0  # rounds that are not timed
    overrides: dict[str, Any] = field(default_factory=lambda: dict(OVERRIDES))

    def file(self, name: str) -> Path:
        """Where the engine writes its ``"model"``, and the ``"log"`` that grows by one of
        :data:`ROUND` a round.
        """
        job = "job/server/simulate_job"
        files = {
            "ours, in process": ("run/models/global.pt", "run/ledger.jsonl"),
            "ours, simulator": (
                f"{job}/fairfl/models/global.pt",
                "job/server/fairfl/job/ledger.jsonl",
            ),
            "NVFlare, simulator": (f"{job}/app_server/FL_global_model.pt", "job/server/log.txt"),
        }
        return Path(self.folder) / files[self.engine][name == "log"]


@dataclass(frozen=True)
class Found:
    """Seconds a round and for all else; MiB of the server, of the largest client (0: there is
    none), and of all.
    """

    each: float
    rest: float
    server: float
    client: float
    all: float


# ---- the engines: each of these runs in a process that begins with it
# ------------------------------------------------


def strategy_of(method: str) -> Any:
    """Ours; FedCE in the variant that NVFlare has."""
    return FedCE("sum", variant="revised") if method == "FedCE" else FedAvg()


def in_process(run: Run) -> None:
    """All clients in one process, one after the other."""
    BundleFederation(
        str(find_bundle(BUNDLE)),
        run.hospitals,
        strategy_of(run.method),
        run.rounds,
        str(Path(run.folder) / "run"),
        site_names=CLIENTS,
        overrides=run.overrides,
        local_epochs=run.local_epochs,
        min_clients=len(CLIENTS),
        evaluate=(),
        final=(),
    ).run()


def ours(run: Run) -> None:
    """A process per client, and one for the server."""
    from monai_fairfl.transports.flare import FairFLRecipe

    recipe = FairFLRecipe(
        name="job",
        bundle=BUNDLE,
        strategy=strategy_of(run.method),
        min_clients=len(CLIENTS),
        num_rounds=run.rounds,
        sites_root=run.hospitals,
        overrides=run.overrides,
        local_epochs=run.local_epochs,
        federation={"evaluate": [], "final": []},
    )
    simulate(recipe, run)


def nvflare(run: Run) -> None:
    """NVFlare's own recipe, with ``engines_peer_client.py`` at the sites."""
    from nvflare.app_opt.pt.recipes import FedAvgRecipe
    from nvflare.app_opt.pt.recipes.fedce import FedCERecipe
    from nvflare.client.config import ExchangeFormat

    bundle, folder = find_bundle(BUNDLE).absolute(), Path(run.folder)
    with own_random_state(0):
        weights, spec = initial_model(bundle, run.overrides)
    torch.save(spec.with_aliases(weights), folder / "initial.pt")
    (folder / "settings.json").write_text(json.dumps({"bundle": str(bundle), **asdict(run)}))
    network = (
        preflight.train_config(bundle, run.overrides)
        .get_parsed_content("network_def", instantiate=False)
        .config
    )
    arguments = {
        "name": "job",
        "model": {"class_path": f"monai.networks.nets.{network.pop('_target_')}", "args": network},
        "initial_ckpt": str(folder / "initial.pt"),
        "min_clients": len(CLIENTS),
        "num_rounds": run.rounds,
        "train_script": str(Path(__file__).with_name("engines_peer_client.py").absolute()),
        "train_args": str(folder / "settings.json"),
        "server_expected_format": ExchangeFormat.PYTORCH,
    }
    if run.method == "FedCE":
        recipe = FedCERecipe(trainable_param_names=list(spec.parameters), **arguments)
    else:
        recipe = FedAvgRecipe(**arguments)
    simulate(recipe, run)
    everybody = f"{len(CLIENTS)}/{len(CLIENTS)}"
    if run.file("log").read_text().count(f"Aggregated {everybody} results") != run.rounds:
        raise RuntimeError("a client's result was left out, which NVFlare only logs")


def simulate(recipe: Any, run: Run) -> None:
    """NVFlare's simulator, as many threads as clients: each keeps its process."""
    from nvflare.recipe.sim_env import SimEnv

    if run.interval:
        recipe.add_server_config({"server": {"task_request_interval": run.interval}})
    recipe.execute(SimEnv(clients=CLIENTS, workspace_root=run.folder))


ENGINES = {"ours, in process": in_process, "ours, simulator": ours, "NVFlare, simulator": nvflare}
EXPLAINED = """
In a round, a client trains the same epochs on the same batches, and validates nothing; with FedCE it first scores, from
the second round on, the model without itself on its validation images.
- ours, in process: one client after the other. The server checks every update and writes its ledger and a checkpoint,
  a client its state (model, optimizer), from which either goes on after a crash.
- ours, simulator: the same over NVFlare; our script by its Client API, a process per client.
- NVFlare, simulator: FedAvgRecipe or FedCERecipe ("plus", as ours), and MONAI's MonaiAlgo in a script by its Client
  API, a process per client. The server writes the global model; a client keeps its state in memory.
x: NVFlare's own value / this one's."""


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(run: Run, timeout: float = 900) -> Found:
    """Run it in processes of its own, watch these, and end what is left of them.

    Raises:
        RuntimeError: when it fails or takes too long; with the end of what it printed.
    """
    folder = Path(run.folder)
    folder.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).absolute()),
        "--run",
        json.dumps(asdict(run)),
    ]
    seen: dict[psutil.Process, tuple[str, float]] = {}
    ends = [0.0]  # of the rounds, after the beginning of all
    with (folder / "printed.txt").open("w") as printed:
        begun, seconds = time.monotonic(), 0.0
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT
        )
        root = psutil.Process(process.pid)
        try:
            for tick in count():
                running = process.poll() is None
                seconds = time.monotonic() - begun
                ends += [seconds] * (rounds_done(run) + 1 - len(ends))
                if not running or seconds > timeout:
                    break
                if tick % 4 == 0:
                    look_at(root, seen)
                time.sleep(0.05)
        finally:
            end([root, *seen])
    if process.returncode != 0 or not run.file("model").exists():
        text = (folder / "printed.txt").read_text()[-3000:]
        raise RuntimeError(f"{run.engine}, {run.method}: not done after {seconds:.0f} s\n{text}")
    workers = [peak for command, peak in seen.values() if WORKER in command]
    servers = [
        peak
        for command, peak in seen.values()
        if WORKER not in command and (SERVER in command or not workers)
    ]
    each = (ends[run.rounds] - ends[run.warm]) / (run.rounds - run.warm)
    rest = seconds - run.rounds * each
    return Found(each, rest, max(servers), max(workers, default=0.0), max(servers) + sum(workers))


def rounds_done(run: Run) -> int:
    """How many rounds have ended."""
    log = run.file("log")
    text = log.read_text() if log.exists() else ""
    return sum(text.count(each) for each in ROUND)


def look_at(root: psutil.Process, seen: dict[psutil.Process, tuple[str, float]]) -> None:
    """Command and peak resident set, in MiB, of ``root`` and all that it started."""
    for process in [root, *root.children(recursive=True)]:
        try:
            command = " ".join(process.cmdline())
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
        except (
            psutil.Error,
            OSError,
            StopIteration,
        ):  # it is ending, and has neither command nor memory
            continue
        if command:
            seen[process] = (command, peak)


def end(processes: list[psutil.Process]) -> None:
    """Let them go within five seconds, then end them; psutil makes sure that an id is still theirs."""
    for process in psutil.wait_procs(processes, timeout=5)[1]:
        try:
            process.kill()
        except psutil.Error:
            pass


def table(founds: Mapping[tuple[str, str], Sequence[Found]]) -> str:
    """The better of the repeats, as Markdown."""
    titles = ["method", "engine", "s a round", "spread", "x", "start and end, s"]
    titles += ["server, MiB", "x", "a client, MiB", "x", "all, MiB", "x"]
    lines = ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
    best = {
        key: Found(*(min(values) for values in zip(*map(astuple, found))))
        for key, found in founds.items()
    }
    for (method, engine), found in best.items():
        peer = best[method, "NVFlare, simulator"]
        spread = max(one.each for one in founds[method, engine]) - found.each
        cells = [
            method,
            engine,
            f"{found.each:.2f}",
            f"{spread:.2f}",
            f"{peer.each / found.each:.2f}",
        ]
        cells.append(f"{found.rest:.1f}")
        for own, theirs in zip(astuple(found)[2:], astuple(peer)[2:]):
            cells += [f"{own:.0f}", f"{theirs / own:.2f}" if own else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        nargs=2,
        default=[2, 8],
        help="timed from which one's end to which one's",
    )
    parser.add_argument(
        "--hospitals", type=Path, help=f"folder with {', '.join(CLIENTS)}; generated by default"
    )
    parser.add_argument("--local-epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--interval", type=float, default=0, help="between a client's tasks in the simulator, s"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)  # what a process that begins here is for
    arguments = parser.parse_args()
    if arguments.run:
        run = Run(**json.loads(arguments.run))
        return ENGINES[run.engine](run)
    warm, rounds = arguments.rounds
    founds: dict[tuple[str, str], list[Found]] = {key: [] for key in product(METHODS, ENGINES)}
    with TemporaryDirectory() as temporary:
        hospitals = arguments.hospitals or Path(temporary) / "hospitals"
        if arguments.hospitals is None:
            write_sites(
                hospitals,
                [site for site in SITES if site.name in CLIENTS],
                size=(96, 96, 16),
                cases=6,
            )
        for repeat, (method, engine) in product(range(arguments.repeats), founds):
            folder = f"{temporary}/{repeat}/{method}/{list(ENGINES).index(engine)}"
            run = Run(engine, method, rounds, str(hospitals.absolute()), folder, warm=warm)
            one = measure(
                replace(run, local_epochs=arguments.local_epochs, interval=arguments.interval)
            )
            founds[method, engine].append(one)
            print(f"{engine}, {method}: {one}", file=sys.stderr)
    print(table(founds), EXPLAINED, sep="\n")


if __name__ == "__main__":
    main()
