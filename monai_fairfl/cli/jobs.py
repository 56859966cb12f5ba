# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the commands of all engines share: the options of a job, and the progress of its run."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import (
    Answer,
    plain_mapping,
    positive,
    progress_stream,
    require_writable,
)
from monai_fairfl.cli.training_options import add_recipe
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.plain_values import written_value

JOB_OPTIONS = (
    "bundle",
    "strategy",
    "guards",
    "num_rounds",
    "name",
    "local_epochs",
    "seed",
    "timeout",
    "initial_ckpt",
    "config",
    "overrides",
)
"""Options that are arguments of a job, under any engine."""

OPTION_OF = {
    "rounds": "--num-rounds",
    "min_clients": "--min-clients",
    "strategy": "--strategy",
    "local_epochs": "--local-epochs",
    "overrides": "--overrides",
    "seed": "--seed",
    "timeout": "--timeout",
}
"""Keys of ``federate.json`` that a job has an option for."""

SECONDS_BETWEEN_LOOKS = 1.0
"""How often the progress of a simulation is looked at."""


def add_job_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a federation, those of :data:`JOB_OPTIONS` among them."""
    command.add_argument(
        "--bundle",
        required=True,
        metavar="NAME|DIR",
        help="name of a shipped bundle, or a bundle's folder",
    )
    command.add_argument(
        "--strategy",
        default="FedCE",
        metavar="STRATEGY",
        help=(
            "name of a shipped strategy, with arguments such as \"FedCE('sum')\"; the "
            "dotted path of your own (MODULE.NAME, its folder on PYTHONPATH); or a "
            "configuration (default: FedCE)"
        ),
    )
    command.add_argument(
        "--num-rounds",
        type=positive,
        metavar="N",
        help="number of rounds (default: that of the bundle)",
    )
    command.add_argument(
        "--local-epochs",
        type=positive,
        metavar="N",
        help="local epochs in each round (default: those of the bundle)",
    )
    training = command.add_mutually_exclusive_group()
    training.add_argument(
        "--quick",
        action="store_true",
        help=(
            "a first look, as with monai-fairfl try: few rounds, small images and a "
            "small network"
        ),
    )
    add_recipe(training)
    command.add_argument(
        "--name", metavar="NAME", help="name of the job and its run (default: BUNDLE-STRATEGY)"
    )
    command.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        help=(
            "training configuration, relative to the bundle (default: that of the bundle's "
            "federate.json)"
        ),
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        metavar="MAPPING",
        help="values for the bundle's configuration, such as \"{'size': [64, 64]}\"",
    )
    command.add_argument(
        "--initial",
        dest="initial_ckpt",
        metavar="FILE",
        help="state_dict file of the first model (default: random weights)",
    )
    command.add_argument(
        "--seed", type=int, default=0, help="seed of all random numbers (default: 0)"
    )
    command.add_argument(
        "--timeout",
        type=float,
        default=0,
        metavar="SECONDS",
        help=(
            "how long to wait for the sites' replies to each request (default: 0, "
            "which waits for all)"
        ),
    )
    command.add_argument(
        "--guards",
        type=guards,
        metavar="LIST",
        help=(
            "checks of updates in place of the default guards: names or "
            "configurations, such as \"['NonFinite', {'_target_': "
            "'monai_fairfl.guards.TooLong', 'times': 8.0}]\"; [] means none"
        ),
    )
    command.add_argument(
        "--federation",
        type=Path,
        metavar="FILE",
        help=(
            "JSON file with other settings of the run, named as in federate.json, such as "
            '{"keep": 5, "samples": {"alder": 120}}'
        ),
    )


def job_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a job that the command line gives, or else the bundle.

    The strategy stays as it is written.

    Raises:
        ConfigError: when there is no such bundle or strategy, or the file of ``--federation`` has
            what no job can set.
    """
    from monai_fairfl.bundle.first_look import first_look, recipe
    from monai_fairfl.bundle.shipped import locate_bundle
    from monai_fairfl.strategies.registry import strategy_of

    bundle = locate_bundle(args.bundle)
    trains = first_look(bundle) if args.quick else recipe(bundle, args.recipe)
    arguments: dict[str, Any] = {
        "num_rounds": trains.rounds,
        "local_epochs": trains.local_epochs,
    }
    if trains.config:
        arguments["config"] = list(trains.config)
    if args.federation is not None:
        arguments.update(_settings_of_run(args.federation))
    for name in JOB_OPTIONS:
        value = getattr(args, name)
        if value is not None:
            arguments[name] = value
    overrides = {**trains.overrides, **(args.overrides or {})}
    if overrides:
        arguments["overrides"] = overrides
    # A strategy that does not exist is refused before anything is made.
    strategy_of(args.strategy)
    return arguments


def add_simulation_sites(command: argparse.ArgumentParser) -> None:
    """Add the options of a simulation: where its hospitals are, and which take part."""
    command.add_argument(
        "--sites-root", required=True, metavar="DIR", help="one folder per hospital"
    )
    command.add_argument(
        "--site-names", nargs="+", metavar="SITE", help="sites that take part (default: all)"
    )


@contextmanager
def logged_workspace(args: argparse.Namespace) -> Iterator[None]:
    """Inside, what a simulation prints goes into the log of its workspace.

    Raises:
        ConfigError: when nothing can be written into the workspace.
    """
    from monai_fairfl.cli.running import descriptors_into, quietly

    workspace = Path(args.workspace).absolute()
    require_writable(workspace, "--workspace")
    if args.verbose:
        # Standard output is for the answer of the command.
        with descriptors_into(sys.stderr):
            yield
        return
    log = workspace / "log.txt"
    print(f"Log: {log}", file=progress_stream(args), flush=True)
    with quietly(log):
        yield


@contextmanager
def rounds_shown(rounds: int, run: Path, name: str) -> Iterator[None]:
    """Inside, the progress of a run of other processes is shown.

    Args:
        rounds: in all.
        run: its folder, where the server records the time of each round.
        name: of the run.
    """
    from monai_fairfl.bundle.runs_display import RunsDisplay
    from monai_fairfl.run.resuming import Schedule

    ended = threading.Event()

    def look(display: RunsDisplay) -> None:
        known = len(Schedule.read(run).seconds)
        display.round_done(name, known)
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            seconds = Schedule.read(run).seconds
            if len(seconds) > known:
                known = len(seconds)
                # Not the time of the engine's start, which the first round waits for.
                display.round_done(name, known, seconds[max(seconds)])

    with RunsDisplay({name: name}, rounds) as display:
        thread = threading.Thread(target=look, args=(display,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        display.run_ended(name)


def run_answer(run: Path) -> Answer:
    """Return what a command says of a run that an engine ended, whose server wrote its report."""
    from monai_fairfl.cli.running import text_of_report

    page = run / "report.html"
    text = text_of_report(run)
    if not page.exists():
        return Answer({"run": str(run), "report": None}, text)
    return Answer({"run": str(run), "report": str(page)}, f"{text}\nRun: {run}")


# --- values of options


def _settings_of_run(file: Path) -> dict[str, Any]:
    """The settings of a run in a file; those for which there is an option stay an option.

    Raises:
        ConfigError: when it is no JSON object, or has a key that is no such setting.
    """
    from monai_fairfl.transports.engines.making_jobs import OF_RUN
    from monai_fairfl.utils.plain_values import object_of_json

    try:
        found = object_of_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--federation {file} cannot be read as settings: {error}") from error
    for name in found:
        if name in OPTION_OF:
            raise ConfigError(f"{file} sets {name!r}: give {OPTION_OF[name]} instead")
    known = sorted(OF_RUN - set(OPTION_OF))
    unknown = [repr(name) for name in found if name not in known]
    if unknown:
        raise ConfigError(
            f"{file} sets {', '.join(unknown)}, which no job can set; it can set "
            f"{', '.join(known)}"
        )
    return found


def guards(text: str) -> list[Any]:
    """Parse a list of guards, for ``type=`` of an argument; the job checks what is in it."""
    expected = "a list of names or configurations, such as \"['NonFinite', 'TooLong']\""
    try:
        found = written_value(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, expected {expected}") from error
    if not isinstance(found, list):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
    return found
