# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Federations over NVIDIA FLARE and Flower: simulated here, or written as a job."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.cli.options import LOG, Answer, add, add_keys, keys_given, out_folder, say
from monai_fairfl.errors import ConfigError

ENGINES = ("flare", "flower")

OF_A_RECIPE = ("rounds", "local_epochs", "config", "overrides")
"""Keys that a job takes from the bundle's own files."""

NAMES_OF_A_JOB = {"rounds": "num_rounds", "initial": "initial_ckpt"}
"""Key of ``federate.json`` -> argument of a job, where they differ."""

SECONDS_BETWEEN_LOOKS = 1.0
"""How often the progress of a simulation is looked at."""


def job_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a job that is written."""
    job = command.add_argument_group("with --engine")
    what = "such as \"FedCE('sum')\", the dotted path of your own, or a configuration"
    job.add_argument("--strategy", help=f"{what} (default: FedCE)")
    add(job, "--quick", "--recipe", "--settings")
    what = "how long to wait for the sites' replies to each request (default: for all)"
    job.add_argument("--timeout", type=float, metavar="SECONDS", help=what)
    job.add_argument("--name", help="of the job and its run (default: BUNDLE-STRATEGY)")
    what = "for sites of NVIDIA FLARE that run only installed packages; see doctor --flare-policy"
    job.add_argument("--no-custom-code", action="store_true", help=what)
    add_keys(command, ("rounds", "local_epochs", "overrides", "seed", "min_clients", "guards"))


def _job_arguments(args: argparse.Namespace, bundle: Path) -> dict[str, Any]:
    """The arguments of a job: those of the bundle's recipe, the keys of a file, and the options.

    Raises:
        ConfigError: when there is no such recipe, or the file is none.
    """
    from monai_fairfl.bundle.configuration import FEDERATE
    from monai_fairfl.cli.running import chosen_files, keys_in

    files = [str(bundle / FEDERATE), *chosen_files(args, bundle)]
    own = keys_in(files[-1:] if args.settings is not None else [])
    recipe = keys_in(files if args.settings is None else files[:-1]).get("overrides") or {}
    keys: dict[str, Any] = {"rounds": 1, "local_epochs": 1}
    for name, value in keys_in(files).items():
        if name in own or (name in OF_A_RECIPE and value):
            keys[name] = value
    given = keys_given(args)
    overrides = recipe | (keys.pop("overrides", None) or {}) | given.pop("overrides", {})
    keys |= given | ({"overrides": overrides} if overrides else {})
    for name in ("timeout", "name"):
        if getattr(args, name, None) is not None:
            keys[name] = getattr(args, name)
    return {NAMES_OF_A_JOB.get(name, name): value for name, value in keys.items()}


def export_job(args: argparse.Namespace) -> Answer:
    """Write a federation as a job for NVIDIA FLARE, or as an app for Flower."""
    from monai_fairfl.bundle.shipped import locate_bundle

    if args.out is None:
        raise ConfigError("--engine writes a job: name its new folder with --out")
    # A wrong name is refused before the imports, which take many seconds.
    bundle = locate_bundle(args.what)
    from monai_fairfl.strategies.registry import strategy_of

    strategy = strategy_of(args.strategy or "FedCE")
    arguments = {"bundle": args.what, **_job_arguments(args, bundle)}
    if args.strategy is not None:
        arguments["strategy"] = args.strategy
    if args.engine == "flower":
        from monai_fairfl.transports.flower.job import export_app

        app = export_app(args.out, **arguments)
        return Answer({"job": str(app)}, f"{app}: written; submit it with: flwr run {app}")

    from monai_fairfl.transports.flare.policy import ENTRY
    from monai_fairfl.transports.flare.recipe import export_job as export_to_flare
    from monai_fairfl.transports.flare.recipe import own_classes

    job = export_to_flare(args.out, custom_code=not args.no_custom_code, **arguments)
    text = f"{job}: written; submit it with: nvflare job submit -j {job}"
    own = " ".join(own_classes(strategy))
    if args.no_custom_code:
        also = f" --also {own}" if own else ""
        text += (
            f"\nIt brings no code: the server and every site must allow {ENTRY!r}, by monai-fairfl "
            f"doctor KIT --flare-policy --add{also}"
        )
    if own:
        text += f"\nThe server must have installed {own}, or what the code of it imports"
    return Answer({"job": str(job), "allow": ENTRY if args.no_custom_code else None}, text)


def simulate(args: argparse.Namespace) -> Answer:
    """Run the federation of ``train`` in an engine's simulator."""
    from monai_fairfl.bundle.shipped import locate_bundle

    if args.strategy and len(args.strategy) > 1:
        raise ConfigError(f"--engine {args.engine} trains one strategy at a time: name one")
    out = out_folder(args.out, f"train-{Path(args.folder).name}-{args.engine}")
    if args.bundle is not None:
        # A wrong name is refused before the imports, which take many seconds.
        locate_bundle(args.bundle)
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.running import descriptors_into, output_into, text_of_report
    from monai_fairfl.strategies.registry import strategy_of

    root = Path(args.folder).absolute()
    bundle = chosen_bundle(root, args.bundle)
    arguments = {"strategy": "FedAvg", **_job_arguments(args, bundle)}
    arguments["bundle"] = args.bundle or bundle.name
    if args.strategy:
        [arguments["strategy"]] = args.strategy
    strategy_of(arguments["strategy"])
    sites = arguments.pop("site_names", None)
    watch = partial(_rounds_shown, arguments["num_rounds"])
    if args.engine == "flare":
        from monai_fairfl.transports.flare.recipe import simulate_job

        start = partial(simulate_job, out, root, sites, watch)
    else:
        from monai_fairfl.transports.flower.apps import simulate_job as simulate_app

        start = partial(simulate_app, out, root, sites, watch, arguments.pop("jobs", None))
    say(f"Into the folder {out}")
    # Standard output is for the answer of the command.
    with output_into(out / LOG, args.verbose), descriptors_into(sys.stderr):
        run = start(**arguments)
    report = run / "report.html"
    data = {"run": str(run), "report": str(report) if report.exists() else None}
    return Answer(data, f"Run: {run}\n{text_of_report(run)}")


@contextmanager
def _rounds_shown(rounds: int, run: Path, name: str) -> Iterator[None]:
    """Inside, the progress of a run of other processes is shown.

    Args:
        rounds: in all.
        run: its folder, where the server records the time of each round.
        name: of the run.
    """
    from monai_fairfl.bundle.trainings import RunsDisplay
    from monai_fairfl.run.checkpoint import Schedule

    ended = threading.Event()

    def look() -> None:
        known = -1
        while not ended.is_set():
            done = len(Schedule.read(run).seconds)
            if done > known:
                display.round_done(name, done)
            known = done
            ended.wait(SECONDS_BETWEEN_LOOKS)

    display = RunsDisplay({name: rounds})
    with display:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        display.run_ended(name)
