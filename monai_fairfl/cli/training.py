# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that train the hospitals of a folder: ``train``, ``compare``, ``try`` and ``demo``.

Over NVIDIA FLARE and Flower a federation is simulated here, or written as a job.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

from monai_fairfl.bundle import locate_bundle
from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
from monai_fairfl.bundle.trainings import RunsDisplay, SomeFailed
from monai_fairfl.cli.answers import LOG, Answer, out_folder, say
from monai_fairfl.cli.choosing import PROSTATE, chosen_bundle
from monai_fairfl.cli.program import parsed
from monai_fairfl.cli.running import (
    chosen_files,
    given_keys,
    keys_in,
    output_into,
    run_line,
    text_of_report,
)
from monai_fairfl.data import write_clinics, write_demo, write_sites
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.report import as_text
from monai_fairfl.report.collect import find_runs, read_records
from monai_fairfl.run.checkpoint import SCHEDULE, Schedule
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.utils.arguments import check_value

OF_A_RECIPE = ("rounds", "local_epochs", "config", "overrides")
"""Keys that a job takes from the bundle's own files."""

OPTIONS = ("strategy", "timeout", "name")
"""Options of a job that are no keys of a recipe."""

NAMES_OF_A_JOB = {"rounds": "num_rounds", "initial": "initial_ckpt"}
"""Key of ``federate.json`` -> argument of a job, where they differ."""


def _line_of(args: argparse.Namespace, **keys: Any) -> tuple[list[str], dict[str, Any]]:
    """The line of MONAI that the options of ``train``, ``try`` or ``compare`` stand for.

    Args:
        args: of the command, with which the name of the default folder begins.
        keys: of ``federate.json``, which count less than the options.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    root = Path(args.folder).absolute()
    bundle = chosen_bundle(root, args.bundle)
    files = chosen_files(args, bundle)
    given = keys | given_keys(args, files)
    if args.strategy:
        given["strategies"] = args.strategy
    out = out_folder(args.out, f"{args.command.strip('_')}-{root.name}")
    say("Every file is read before the first round ...")
    places = {"bundle_root": bundle, "sites_root": root, "run_dir": out}
    return files, {**places, "resume": True, **given}


# --- train, try


def train(args: argparse.Namespace) -> Answer:
    """Carry out ``train``, and answer with its report and its models.

    Raises:
        FederationError: a signal stopped it; it names the runs that did not end.
    """
    if args.engine != "local":
        return simulate(args)
    files, keys = _line_of(args)
    run_dir: Path = keys["run_dir"]
    run_line(files, keys, run_dir / LOG, args.verbose)
    models, stopped = {}, []
    for run in find_runs([run_dir]):
        records = read_records(run)
        if records[-1]["kind"] != "end":
            stopped.append(run.name)
        # Where every hospital trains alone, the global model is the first one.
        if records[0]["strategy"] != "Standalone" and (run / GLOBAL_MODEL).is_file():
            models[records[0]["name"]] = str(run / GLOBAL_MODEL)
    if stopped:
        raise FederationError(f"{', '.join(stopped)} stopped: the same command goes on")
    lines = [f"Model of {name}: {file}" for name, file in models.items()]
    data = {"run": str(run_dir), "models": models, "report": str(run_dir / "report.html")}
    return Answer(data, "\n".join([*lines, text_of_report(run_dir)]))


try_ = train
"""Carry out ``try``, which has other options."""


# --- compare


def compare(args: argparse.Namespace) -> Answer:
    """Carry out ``compare``."""
    files, keys = _line_of(args, seeds=[0])
    out: Path = keys["run_dir"]
    code, failed = 0, ""
    try:
        run_line(files, keys, out / LOG, args.verbose)
    except SomeFailed as error:
        code, failed = 2, f"\n{error}"
    found = json.loads((out / "comparison.json").read_text())
    text = f"{as_text(found)}{failed}\nReport: {out / 'comparison.html'}"
    return Answer({"folder": str(out), **found}, text, code)


# --- demo

SIZES = {"demo": [96, 96, 12], "prostate": [96, 96, 16], "fundus": [256]}
"""Kind of hospitals -> the size of an image."""

DEMO: dict[str, Any] = {
    "strategy": ["Standalone", "FedAvg", "FedCE('sum')"],
    "rounds": 16,
    "adapt_epochs": 10,
    # For `monai-fairfl value demo/run`.
    "record_updates": True,
    # The demo's first look is its own full run: docs/demo.md has what came out on three seeds.
    "full_run": {"rounds": 16, "local_epochs": 4, "mean_dice": 0.5},
}
"""Options of the demo's ``train --quick``."""


def demo(args: argparse.Namespace) -> Answer:
    """Carry out ``demo``; hospitals that are there already stay."""
    out = Path(args.out or "demo").absolute()
    if args.kind != "demo" and not args.data_only:
        raise ConfigError(f"--kind {args.kind} is for --data-only: then train what it has written")
    default = SIZES[args.kind]
    size = args.size or default
    if len(size) != len(default) or min(size[:2]) < 12 or min(size) < 1:
        raise ConfigError(f"--size is like {default}, 12 or more in plane, got {size}")
    check_value("--seed", args.seed, "int", "[0, inf)")
    folder = out if args.data_only else out / "hospitals"
    if args.kind == "fundus":
        sites = write_clinics(folder, seed=args.seed, size=size[0])
    else:
        write = write_demo if args.kind == "demo" else write_sites
        sites = write(folder, seed=args.seed, size=tuple(size))
    if args.data_only:
        return Answer({"folder": str(out), "sites": sites}, f"{out}: {', '.join(sites)}")
    options = vars(parsed(["train", str(folder), "--quick", "--bundle", PROSTATE])) | DEMO
    options |= {"out": str(out / "run"), "seed": args.seed, "verbose": args.verbose}
    return train(argparse.Namespace(**options))


# --- over NVIDIA FLARE and Flower


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
