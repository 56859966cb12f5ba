# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation's rounds: ours in one process and in NVIDIA FLARE's simulator, and NVFlare's own.

::

    python benchmarks/engines.py [--rounds 2 8] [--hospitals DIR] [--jobs 1]

It prints seconds per round, start-up and peak memory, with the ratio NVFlare's own / this one, and
what each does in a round. All train the same network on the same batches of the same generated
hospitals, one torch thread per process. A round's time is that from the end of round 2 to the end
of round 8, over six: a simulator's start takes ten times as long as a round and varies by more than
one. Memory is the peak resident set. Needs the extra nvflare. With ``--jobs 2`` our clients without
NVFlare are in two worker processes, in place of the server's own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.federation import BundleFederation, initial_model
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.data.synthetic import SITES, write_sites
from monai_fairfl.strategies import FedAvg, FedCE
from monai_fairfl.transports.workers.pool import BOOT
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
SERVER = "nvflare.private.fed.app.simulator.simulator"
WORKER = "nvflare.private.fed.app.simulator.simulator_worker"


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
    jobs: int = 1  # worker processes of our engine without NVFlare; 1: none
    overrides: dict[str, Any] = field(default_factory=lambda: dict(OVERRIDES))

    def file(self, name: str) -> Path:
        """Return the file of the engine's ``"model"`` or ``"log"``.

        The log grows by one of :data:`ROUND` a round.
        """
        server = "job/server"
        files = {
            "ours, in process": {
                "model": "run/models/global.pt",
                "log": "run/ledger.jsonl",
            },
            "ours, simulator": {
                "model": f"{server}/simulate_job/fairfl/models/global.pt",
                "log": f"{server}/fairfl/job/ledger.jsonl",
            },
            "NVFlare, simulator": {
                "model": f"{server}/simulate_job/app_server/FL_global_model.pt",
                "log": f"{server}/log.txt",
            },
        }
        return Path(self.folder) / files[self.engine][name]


@dataclass(frozen=True)
class Found:
    """What a run took.

    Args:
        each: seconds a round.
        rest: seconds of everything else.
        server: MiB of the server.
        client: MiB of the largest client; 0 where the server's process has all clients.
        all: MiB of all processes.
    """

    each: float
    rest: float
    server: float
    client: float
    all: float


# --- the engines: each of these functions runs in a process of its own


def strategy_of(method: str) -> Any:
    """Return our strategy; FedCE in the variant that NVFlare has."""
    if method == "FedCE":
        return FedCE("sum", variant="revised")
    return FedAvg()


def in_process(run: Run) -> None:
    """All clients in the server's process, or in worker processes where there are several jobs."""
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
        jobs=run.jobs,
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

    bundle = find_bundle(BUNDLE).absolute()
    folder = Path(run.folder)
    with own_random_state(0):
        weights, spec = initial_model(bundle, run.overrides)
    torch.save(spec.with_aliases(weights), folder / "initial.pt")
    (folder / "settings.json").write_text(json.dumps({"bundle": str(bundle), **asdict(run)}))
    parser = train_config(bundle, run.overrides)
    network = parser.get_parsed_content("network_def", instantiate=False).config
    class_path = f"monai.networks.nets.{network.pop('_target_')}"
    arguments = {
        "name": "job",
        "model": {"class_path": class_path, "args": network},
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
    """Run a job in NVFlare's simulator; a thread for each client gives each its own process."""
    from nvflare.recipe.sim_env import SimEnv

    if run.interval:
        recipe.add_server_config({"server": {"task_request_interval": run.interval}})
    recipe.execute(SimEnv(clients=CLIENTS, workspace_root=run.folder))


ENGINES = {"ours, in process": in_process, "ours, simulator": ours, "NVFlare, simulator": nvflare}
EXPLAINED = """
In a round, a client trains the same epochs on the same batches, and validates nothing; with FedCE
it first scores, from the second round on, the model without itself on its validation images.
- ours, in process: one client after the other, or with --jobs some at a time. The server checks
  every update and writes its ledger and a checkpoint, a client its state (model, optimizer), from
  which either goes on after a crash.
- ours, simulator: the same over NVFlare; our script by its Client API, a process per client.
- NVFlare, simulator: FedAvgRecipe or FedCERecipe ("plus", as ours), and MONAI's MonaiAlgo in a
  script by its Client API, a process per client. The server writes the global model; a client has
  its state in memory.
x: NVFlare's own value / this one's."""


# --- measuring


def measure(run: Run, timeout: float = 900) -> Found:
    """Run a federation in processes of its own, watch these, and end what is left of them.

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
    server, clients = memory_of(list(seen.values()))
    return Found(each, rest, server, max(clients, default=0.0), server + sum(clients))


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


def memory_of(processes: Sequence[tuple[str, float]]) -> tuple[float, list[float]]:
    """Sort commands and peaks into that of the server and those of the clients.

    Without NVFlare there is no server of its own: every process without clients belongs to it.
    """
    clients = []
    servers = []
    others = []
    for command, peak in processes:
        if is_worker(command):
            clients.append(peak)
        elif SERVER in command:
            servers.append(peak)
        else:
            others.append(peak)
    return max(servers or others), clients


def is_worker(command: str) -> bool:
    """Whether a command is that of a process with clients, NVFlare's or ours."""
    return WORKER in command or BOOT in command


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


def table(founds: Mapping[tuple[str, str], Sequence[Found]]) -> str:
    """Write the better of the repeats as Markdown."""
    titles = ["method", "engine", "s a round", "spread", "x", "start and end, s"]
    titles += ["server, MiB", "x", "a client, MiB", "x", "all, MiB", "x"]
    lines = ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
    best = {key: best_of(repeats) for key, repeats in founds.items()}
    for (method, engine), found in best.items():
        peer = best[method, "NVFlare, simulator"]
        spread = max(one.each for one in founds[method, engine]) - found.each
        cells = [
            method,
            engine,
            f"{found.each:.2f}",
            f"{spread:.2f}",
            f"{peer.each / found.each:.2f}",
            f"{found.rest:.1f}",
        ]
        for own, of_peer in (
            (found.server, peer.server),
            (found.client, peer.client),
            (found.all, peer.all),
        ):
            ratio = ""
            if own:
                ratio = f"{of_peer / own:.2f}"
            cells += [f"{own:.0f}", ratio]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def best_of(repeats: Sequence[Found]) -> Found:
    """Return the least of every quantity."""
    return Found(
        each=min(found.each for found in repeats),
        rest=min(found.rest for found in repeats),
        server=min(found.server for found in repeats),
        client=min(found.client for found in repeats),
        all=min(found.all for found in repeats),
    )


def main() -> None:
    """Print the table, or run one federation where this is a process of its own."""
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
    parser.add_argument("--jobs", type=int, default=1, help="of our engine without NVFlare")
    parser.add_argument(
        "--interval", type=float, default=0, help="between a client's tasks in the simulator, s"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)  # what a process of its own runs
    arguments = parser.parse_args()
    if arguments.run:
        run = Run(**json.loads(arguments.run))
        return ENGINES[run.engine](run)
    warm, rounds = arguments.rounds
    founds: dict[tuple[str, str], list[Found]] = {key: [] for key in product(METHODS, ENGINES)}
    with TemporaryDirectory() as temporary:
        hospitals = arguments.hospitals or Path(temporary) / "hospitals"
        if arguments.hospitals is None:
            sites = [site for site in SITES if site.name in CLIENTS]
            write_sites(hospitals, sites, size=(96, 96, 16), cases=6)
        for repeat, (method, engine) in product(range(arguments.repeats), founds):
            folder = f"{temporary}/{repeat}/{method}/{list(ENGINES).index(engine)}"
            run = Run(
                engine,
                method,
                rounds,
                str(hospitals.absolute()),
                folder,
                local_epochs=arguments.local_epochs,
                interval=arguments.interval,
                warm=warm,
                jobs=arguments.jobs,
            )
            found = measure(run)
            founds[method, engine].append(found)
            print(f"{engine}, {method}: {found}", file=sys.stderr)
    print(table(founds), EXPLAINED, sep="\n")


if __name__ == "__main__":
    main()
