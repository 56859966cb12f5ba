# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation's rounds: ours in one process and over NVIDIA FLARE and Flower, and the methods of
these two.

::

    python benchmarks/engines.py [--rounds 2 8] [--hospitals DIR] [--jobs 1]

It prints seconds per round, start-up and peak memory, how many times as much an engine's own method
takes, and what each does in a round. All train the same network on the same batches of the same
generated hospitals, one torch thread per process. A round's time is that from the end of round 2 to
the end of round 8, over six: a simulator's start takes ten times as long as a round and varies by
more than one. Memory is the peak resident set. Needs the extra nvflare; without the extra flower,
Flower's rows are left out. With ``--jobs 2`` our clients in process are in two worker processes, in
place of the server's own. The federations are in ``engines_runs.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from engines_runs import (
    CLIENTS,
    ENGINES,
    FLOWERS_OWN,
    IN_PROCESS,
    METHODS,
    NVFLARES_OWN,
    OURS_OVER_FLOWER,
    OURS_OVER_NVFLARE,
    Run,
)
from engines_watch import Found, measure

from monai_fairfl.data.pelvis import SITES, write_sites

COMPARED = (
    (IN_PROCESS, NVFLARES_OWN),
    (IN_PROCESS, FLOWERS_OWN),
    (OURS_OVER_NVFLARE, NVFLARES_OWN),
    (OURS_OVER_FLOWER, FLOWERS_OWN),
)
"""What is ours, and what of an engine's own it is compared with."""

EXPLAINED = """
In a round, a client trains the same epochs on the same batches, and validates nothing; with FedCE
it first scores, from the second round on, the model without itself on its validation images.
- ours, in process: one client after the other, or with --jobs some at a time. The server checks
  every update and writes its ledger and a checkpoint, a client its state (model, optimizer), from
  which either goes on after a crash.
- ours over NVFlare: the same in NVFlare's simulator; the executor of the package, a process per
  client.
- NVFlare's own: FedAvgRecipe or FedCERecipe ("plus", as ours), and MONAI's MonaiAlgo in a script by
  its Client API, a process per client. The server writes the global model; a client has its state
  in memory.
- ours over Flower: the same as in process, in Flower's simulation; a process of Ray's per client.
- Flower's own: FedAvg, and MONAI's MonaiAlgo in a ClientApp; a process of Ray's per client. The
  server writes the last global model; a client has its optimizer in the context's state. It has no
  FedCE."""


def engines_here() -> list[str]:
    """Return the engines that are installed; says what is left out."""
    if find_spec("flwr"):
        return list(ENGINES)
    print("Flower is left out: it needs the extra flower", file=sys.stderr)
    return [engine for engine in ENGINES if engine not in (OURS_OVER_FLOWER, FLOWERS_OWN)]


def tables(founds: Mapping[tuple[str, str], Sequence[Found]]) -> str:
    """Write the better of the repeats as Markdown, and how many times as much others take."""
    best = {key: best_of(repeats) for key, repeats in founds.items()}
    titles = ["method", "engine", "s a round", "spread", "start and end, s"]
    titles += ["server, MiB", "a client, MiB", "all, MiB"]
    lines = heading(titles)
    for (method, engine), found in best.items():
        spread = max(one.each for one in founds[method, engine]) - found.each
        cells = [method, engine, f"{found.each:.2f}", f"{spread:.2f}", f"{found.rest:.1f}"]
        cells += [f"{found.server:.0f}", f"{found.client:.0f}", f"{found.all:.0f}"]
        lines.append(row(cells))

    lines += ["", *heading(["method", "engine's own / ours", *titles[2:3], *titles[4:]])]
    for method, (ours, peer) in product(METHODS, COMPARED):
        if (method, ours) in best and (method, peer) in best:
            cells = [method, f"{peer} / {ours}"]
            lines.append(row(cells + ratios(best[method, peer], best[method, ours])))
    return "\n".join(lines)


def heading(titles: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    return [row(titles), "| --- " * len(titles) + "|"]


def row(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(cells) + " |"


def ratios(peer: Found, ours: Found) -> list[str]:
    """Return how many times as much the peer takes; empty where ours takes nothing."""
    cells = []
    for name in ("each", "rest", "server", "client", "all"):
        own = getattr(ours, name)
        cells.append(f"{getattr(peer, name) / own:.2f}" if own else "")
    return cells


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
    """Run the federations in turn, and print the tables."""
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
    parser.add_argument("--jobs", type=int, default=1, help="of our engine in process")
    parser.add_argument(
        "--interval", type=float, default=0, help="between a client's tasks in NVFlare, s"
    )
    arguments = parser.parse_args()
    warm, rounds = arguments.rounds
    founds: dict[tuple[str, str], list[Found]] = {}
    for method, engine in product(METHODS, engines_here()):
        if (method, engine) != ("FedCE", FLOWERS_OWN):
            founds[method, engine] = []
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
    print(tables(founds), EXPLAINED, sep="\n")


if __name__ == "__main__":
    main()
