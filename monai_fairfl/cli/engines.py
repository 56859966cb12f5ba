# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Federations over NVIDIA FLARE and Flower: simulated here, or written as a job."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

from monai_fairfl.bundle.shipped import locate_bundle
from monai_fairfl.bundle.trainings import RunsDisplay
from monai_fairfl.cli.answers import LOG, Answer, out_folder
from monai_fairfl.cli.choosing import chosen_bundle
from monai_fairfl.cli.running import (
    chosen_files,
    given_keys,
    keys_in,
    output_into,
    text_of_report,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.run.checkpoint import SCHEDULE, Schedule
from monai_fairfl.strategies.registry import strategy_of

OF_A_RECIPE = ("rounds", "local_epochs", "config", "overrides")
"""Keys that a job takes from the bundle's own files."""

OPTIONS = ("strategy", "timeout", "name")
"""Options of a job that are no keys of a recipe."""

NAMES_OF_A_JOB = {"rounds": "num_rounds", "initial": "initial_ckpt"}
"""Key of ``federate.json`` -> argument of a job, where they differ."""


def _job_arguments(args: argparse.Namespace, root: Path, **keys: Any) -> dict[str, Any]:
    """The arguments of a job: those of the bundle's recipe, the keys of a file, and the options.

    Args:
        args: of the command.
        root: of the bundle.
        keys: which all others replace.

    Raises:
        ConfigError: when there is no such recipe, or the file is none.
    """
    files = chosen_files(args, root)
    own = keys_in(files[-1:]) if args.settings is not None else {}
    known = {name: value for name, value in keys_in(files).items() if name in OF_A_RECIPE}
    keys |= own | known | given_keys(args, files)
    keys |= {name: vars(args)[name] for name in OPTIONS if vars(args).get(name)}
    return {NAMES_OF_A_JOB.get(name, name): value for name, value in keys.items()}


def export_job(args: argparse.Namespace) -> Answer:
    """Write a federation as a job for NVIDIA FLARE, or as an app for Flower."""
    if args.out is None:
        raise ConfigError("--engine writes a job: name its new folder with --out")
    bundle = locate_bundle(args.what)
    arguments = _job_arguments(args, bundle, strategy="FedCE", bundle=args.what)
    if args.engine == "flower":
        from monai_fairfl.transports.flower.job import export_app

        app = export_app(args.out, **arguments)
        return Answer({"job": str(app)}, f"{app}: written; submit it with: flwr run {app}")

    from monai_fairfl.transports.flare.policy import ENTRY, NEEDS
    from monai_fairfl.transports.flare.recipe import export_job as export_to_flare
    from monai_fairfl.transports.flare.recipe import own_classes

    job = export_to_flare(args.out, custom_code=not args.no_custom_code, **arguments)
    lines = [f"{job}: written; submit it with: nvflare job submit -j {job}"]
    own = " ".join(own_classes(strategy_of(arguments["strategy"])))
    if own:
        lines.append(f"The server must have installed {own}, and allow it (--also {own})")
    if args.no_custom_code:
        lines.append(NEEDS)
    data = {"job": str(job), "allow": ENTRY if args.no_custom_code else None}
    return Answer(data, "\n".join(lines))


@contextmanager
def _progress(out: Path, rounds: int) -> Iterator[None]:
    """Inside, the rounds of a run of other processes are shown, wherever its server is."""
    ended = Event()

    def look() -> None:
        known = -1
        while not ended.wait(1):
            files = [*out.glob(f"server/*/{SCHEDULE}"), *out.glob(f"kept/server/*/{SCHEDULE}")]
            newest = max(files, key=lambda file: file.stat().st_mtime, default=out)
            done = len(Schedule.read(newest.parent).seconds)
            if done != known:
                display.round_done("run", done)
            known = done

    display = RunsDisplay({"run": rounds})
    with display, ThreadPoolExecutor() as beside:
        beside.submit(look)
        try:
            yield
        finally:
            ended.set()


def simulate(args: argparse.Namespace) -> Answer:
    """Run the federation of ``train`` in an engine's simulator."""
    root = Path(args.folder).absolute()
    bundle = chosen_bundle(root, args.bundle)
    out = out_folder(args.out, f"train-{root.name}-{args.engine}")
    if len(args.strategy) > 1:
        raise ConfigError(f"--engine {args.engine} trains one strategy at a time: name one")
    args.strategy = args.strategy and args.strategy[0]
    arguments = _job_arguments(args, bundle, strategy="FedAvg", bundle=args.bundle or bundle.name)
    sites = arguments.pop("site_names", None)
    module = {"flare": "flare.recipe", "flower": "flower.apps"}[args.engine]
    start = import_module(f"monai_fairfl.transports.{module}").simulate_job
    with output_into(out / LOG, args.verbose), _progress(out, arguments["num_rounds"]):
        run = start(out, root, sites, **arguments)
    data = {"run": str(run), "report": str(run / "report.html")}
    return Answer(data, f"Run: {run}\n{text_of_report(run)}")
