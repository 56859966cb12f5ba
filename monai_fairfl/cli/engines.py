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

from monai_fairfl.cli.command import (
    Answer,
    add_recipe,
    add_settings,
    out_folder,
    progress_stream,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.plain_values import object_of_json

ENGINES = ("flare", "flower")

NAMES_OF_A_JOB = {"rounds": "num_rounds", "initial": "initial_ckpt"}
"""Key of ``federate.json`` -> argument of a job, where they differ."""

SECONDS_BETWEEN_LOOKS = 1.0
"""How often the progress of a simulation is looked at."""


def job_options(command: argparse._ActionsContainer) -> None:
    """Add the options of a job that is written."""
    from monai_fairfl.cli.options import add_keys

    command.add_argument(
        "--strategy",
        metavar="STRATEGY",
        help=(
            "name of a shipped strategy, with arguments such as \"FedCE('sum')\"; the "
            "dotted path of your own (MODULE.NAME, its folder on PYTHONPATH); or a "
            "configuration (default: FedCE)"
        ),
    )
    add_recipe(command)
    add_settings(command)
    command.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for the sites' replies to each request (default: for all)",
    )
    command.add_argument(
        "--name", metavar="NAME", help="name of the job and its run (default: BUNDLE-STRATEGY)"
    )
    command.add_argument(
        "--no-custom-code",
        action="store_true",
        help=(
            "make a job of NVIDIA FLARE for sites that run only installed packages; see doctor "
            "--flare-policy"
        ),
    )
    add_keys(command, ("rounds", "local_epochs", "overrides", "seed", "min_clients", "guards"))


def job_arguments(args: argparse.Namespace, bundle: Path) -> dict[str, Any]:
    """The arguments of a job: those of the bundle's recipe, the keys of a file, and the options.

    Raises:
        ConfigError: when there is no such recipe, or the file is none.
    """
    from monai_fairfl.bundle.first_look import first_look, recipe
    from monai_fairfl.cli.options import keys_given

    trains = first_look(bundle) if args.quick else recipe(bundle, args.recipe)
    keys: dict[str, Any] = {"rounds": trains.rounds, "local_epochs": trains.local_epochs}
    if trains.config:
        keys["config"] = list(trains.config)
    overrides = dict(trains.overrides)
    if args.settings is not None:
        try:
            of_file = object_of_json(args.settings.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"--settings {args.settings} cannot be read: {error}") from error
        overrides.update(of_file.pop("overrides", {}))
        keys.update(of_file)
    given = keys_given(args)
    overrides.update(given.pop("overrides", {}))
    keys.update(given)
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

    arguments = {"bundle": args.what, **job_arguments(args, bundle)}
    if args.strategy is not None:
        # One that does not exist is refused before anything is made.
        strategy_of(args.strategy)
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
    own = own_classes(strategy_of(arguments.get("strategy", "FedCE")))
    policy = "monai-fairfl doctor KIT --flare-policy --add"
    if own and args.no_custom_code:
        lines.append(
            f"It does not bring {', '.join(own)}: the server must have that installed or on "
            f"PYTHONPATH, and in class_allow_list: {policy} --also {' '.join(own)}"
        )
    elif own:
        lines.append(
            f"It brings the code of {', '.join(own)}; the server must have installed what that "
            "imports"
        )
    if args.no_custom_code:
        lines.append(
            f"It brings no code, so the server and every site must have {ENTRY!r} in "
            f"class_allow_list of local/resources.json: {policy} adds it"
        )
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
    arguments = {"strategy": "FedAvg", **job_arguments(args, bundle)}
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
    if not args.verbose:
        print(f"Log: {out / 'log.txt'}", file=progress_stream(args), flush=True)
    # Standard output is for the answer of the command.
    with output_into(out / "log.txt", args.verbose), descriptors_into(sys.stderr):
        run = start(**arguments)
    page = run / "report.html"
    report = str(page) if page.exists() else None
    return Answer({"run": str(run), "report": report}, f"Run: {run}\n{text_of_report(run)}")


@contextmanager
def _rounds_shown(rounds: int, run: Path, name: str) -> Iterator[None]:
    """Inside, the progress of a run of other processes is shown.

    Args:
        rounds: in all.
        run: its folder, where the server records the time of each round.
        name: of the run.
    """
    from monai_fairfl.bundle.runs_display import RunsDisplay
    from monai_fairfl.run.checkpoint import Schedule

    ended = threading.Event()

    def look(display: RunsDisplay) -> None:
        known = len(Schedule.read(run).seconds)
        display.round_done(name, known)
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            seconds = Schedule.read(run).seconds
            if len(seconds) > known:
                known = len(seconds)
                display.round_done(name, known)

    with RunsDisplay({name: rounds}) as display:
        thread = threading.Thread(target=look, args=(display,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        display.run_ended(name)
