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
    job.add_argument(
        "--strategy",
        help="a strategy, such as \"FedCE('sum')\", or the dotted path of your own, MODULE.NAME, "
        "with its folder on PYTHONPATH; or a configuration (default: FedCE)",
    )
    add(job, "--quick", "--recipe", "--settings")
    job.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for the sites' replies to each request (default: for all)",
    )
    job.add_argument("--name", help="of the job and its run (default: BUNDLE-STRATEGY)")
    job.add_argument(
        "--no-custom-code",
        action="store_true",
        help="a job of NVIDIA FLARE for sites that run only installed packages; see doctor "
        "--flare-policy",
    )
    add_keys(command, ("rounds", "local_epochs", "overrides", "seed", "min_clients", "guards"))


def _job_arguments(args: argparse.Namespace, bundle: Path) -> dict[str, Any]:
    """The arguments of a job: those of the bundle's recipe, the keys of a file, and the options.

    Raises:
        ConfigError: when there is no such recipe, or the file is none.
    """
    from monai_fairfl.bundle.configuration import FEDERATE, read_keys
    from monai_fairfl.bundle.settings import quick_file, recipe_file
    from monai_fairfl.cli.running import keys_in

    files = [bundle / FEDERATE]
    if args.quick:
        files.append(quick_file(bundle))
    if args.recipe is not None:
        files.append(recipe_file(bundle, args.recipe))
    of_bundle = keys_in([str(file) for file in files])
    layers = [{name: of_bundle[name] for name in OF_A_RECIPE if of_bundle.get(name)}]
    if args.settings is not None:
        layers.append(read_keys(args.settings))
    keys: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    for layer in (*layers, keys_given(args)):
        overrides |= layer.get("overrides", {})
        keys |= layer
    if overrides:
        keys["overrides"] = overrides
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
    lines = [f"{job}: written; submit it with: nvflare job submit -j {job}"]
    own = " ".join(own_classes(strategy))
    if args.no_custom_code:
        also = f" --also {own}" if own else ""
        lines.append(
            f"It brings no code: the server and every site must allow {ENTRY!r}, and the server "
            f"must have installed and allow {own or 'nothing else'}: monai-fairfl doctor KIT "
            f"--flare-policy --add{also}"
        )
    elif own:
        lines.append(f"It brings the code of {own}, and the server must have what that imports")
    allow = ENTRY if args.no_custom_code else None
    return Answer({"job": str(job), "allow": allow}, "\n".join(lines))


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

    with RunsDisplay({name: rounds}) as display:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        display.run_ended(name)
