# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands for NVIDIA FLARE: ``simulate-flare``, ``export-flare`` and ``flare-policy``.

Of each command the arguments come first, then the function that it calls.
"""

from __future__ import annotations

import argparse
import ast
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import (
    Add,
    Answer,
    add_verbose,
    plain_mapping,
    positive,
    progress_stream,
    require_writable,
)
from monai_fairfl.errors import ConfigError

RECIPE_OPTIONS = (
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
"""Options that are arguments of ``FairFLRecipe``."""

SECONDS_BETWEEN_LOOKS = 1.0
"""How often the progress of a simulation is looked at."""


def add_commands(add: Add) -> None:
    """Add the commands of this module to the program."""
    _add_simulate_flare(add)
    _add_export_flare(add)
    _add_flare_policy(add)


def _add_recipe_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a federation, those of :data:`RECIPE_OPTIONS` among them."""
    command.add_argument(
        "--bundle", required=True, metavar="NAME|DIR", help="of this package, or a folder"
    )
    command.add_argument(
        "--strategy",
        default="FedCE",
        metavar="STRATEGY",
        help="name of a shipped one, with arguments such as \"FedCE('sum')\", dotted path of your "
        "own (MODULE.NAME, its folder on PYTHONPATH), or configuration (default: FedCE)",
    )
    command.add_argument(
        "--num-rounds", type=positive, metavar="N", help="in all (default: those of the bundle)"
    )
    command.add_argument(
        "--local-epochs",
        type=positive,
        metavar="N",
        help="of a round (default: those of the bundle)",
    )
    command.add_argument(
        "--quick",
        action="store_true",
        help="a first look: few rounds, small images and a small network, as monai-fairfl try",
    )
    command.add_argument(
        "--name", metavar="NAME", help="of the job and its run (default: BUNDLE-STRATEGY)"
    )
    command.add_argument(
        "--config", nargs="+", metavar="FILE", help="of the bundle (default: configs/train.json)"
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        metavar="MAPPING",
        help="plain values for the configuration, such as \"{'size': [64, 64]}\"",
    )
    command.add_argument(
        "--initial", dest="initial_ckpt", metavar="FILE", help="state_dict to begin with"
    )
    command.add_argument("--seed", type=int, default=0, help="of everything (default: 0)")
    command.add_argument(
        "--timeout",
        type=float,
        default=0,
        metavar="SECONDS",
        help="of an exchange (default: 0, which waits for all)",
    )
    command.add_argument(
        "--guards",
        type=_guards,
        metavar="LIST",
        help="checks of updates in place of the default ones, names or configurations, such as "
        "\"['NonFinite', {'_target_': 'monai_fairfl.guards.TooLong', 'times': 8.0}]\"; [] is none",
    )
    command.add_argument(
        "--no-custom-code",
        action="store_true",
        help="for sites that run installed packages only; see flare-policy",
    )


def _recipe_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the recipe that the command line gives, or else the bundle.

    Raises:
        ConfigError: when there is no such bundle or strategy.
    """
    from monai_fairfl.bundle.first_look import first_look, recipe
    from monai_fairfl.bundle.shipped import locate_bundle
    from monai_fairfl.strategies.resolver import strategy_of

    bundle = locate_bundle(args.bundle)
    trains = first_look(bundle) if args.quick else recipe(bundle)
    arguments: dict[str, Any] = {
        "custom_code": not args.no_custom_code,
        "num_rounds": trains.rounds,
        "local_epochs": trains.local_epochs,
    }
    for name in RECIPE_OPTIONS:
        value = getattr(args, name)
        if value is not None:
            arguments[name] = value
    overrides = {**trains.overrides, **(args.overrides or {})}
    if overrides:
        arguments["overrides"] = overrides
    arguments["strategy"] = strategy_of(args.strategy)
    return arguments


# --- simulate-flare


def _add_simulate_flare(add: Add) -> None:
    command = add(
        "simulate-flare",
        simulate_flare,
        "simulate-flare --bundle prostate_mri_segmentation --sites-root hospitals "
        "--workspace flare --quick",
    )
    command.add_argument(
        "--sites-root", required=True, metavar="DIR", help="one folder per hospital"
    )
    command.add_argument(
        "--site-names", nargs="+", metavar="SITE", help="those that take part (default: all)"
    )
    command.add_argument(
        "--workspace",
        required=True,
        metavar="DIR",
        help="gets nvflare/, the simulator's own, emptied at every start, and kept/, with the run "
        "in kept/server/NAME and the states of the sites, and log.txt; continues a run that did "
        "not end",
    )
    _add_recipe_options(command)
    add_verbose(command)


def simulate_flare(args: argparse.Namespace) -> Answer:
    """Run a federation in NVIDIA FLARE's simulator.

    It starts a server and one process per site on this machine.
    """
    from monai_fairfl.cli.running import quietly
    from monai_fairfl.report import as_text
    from monai_fairfl.transports.flare.job.launch import simulate_job

    workspace = Path(args.workspace).absolute()
    require_writable(workspace, "--workspace")
    arguments = _recipe_arguments(args)
    log = workspace / "log.txt"
    shown: AbstractContextManager[None] = quietly(log)
    if args.verbose:
        shown = nullcontext()
    else:
        print(f"Log: {log}", file=progress_stream(args), flush=True)
    with shown:
        watch = partial(_rounds_shown, arguments["num_rounds"])
        run = simulate_job(args.workspace, args.sites_root, args.site_names, watch, **arguments)
    # The server writes the report at the end of its job.
    page = run / "report.html"
    if not page.exists():
        return Answer({"run": str(run), "report": None}, f"{run}: done, without a report")
    text = as_text(json.loads((run / "report.json").read_text()))
    return Answer({"run": str(run), "report": str(page)}, f"{text}\nReport: {page}\nRun: {run}")


@contextmanager
def _rounds_shown(rounds: int, run: Path, name: str) -> Iterator[None]:
    """Inside, the progress of a run of other processes is shown.

    Args:
        rounds: in all.
        run: its folder, where the server records the time of each round.
        name: of the run.
    """
    from monai_fairfl.bundle.runs_display import RunsDisplay
    from monai_fairfl.run_folder.schedule import Schedule

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


# --- export-flare


def _add_export_flare(add: Add) -> None:
    command = add(
        "export-flare",
        export_flare,
        "export-flare --bundle prostate_mri_segmentation --out job\n"
        "export-flare --bundle my_bundle --strategy CGSV --local-epochs 2 --no-custom-code "
        "--out job",
    )
    command.add_argument(
        "--out", required=True, metavar="DIR", help="becomes the job folder; new or empty"
    )
    command.add_argument(
        "--min-clients", type=positive, default=2, metavar="N", help="fewest sites (default: 2)"
    )
    _add_recipe_options(command)


def export_flare(args: argparse.Namespace) -> Answer:
    """Write a federation as a job folder for NVIDIA FLARE, with its seeded initial model."""
    from monai_fairfl.transports.flare.job.launch import export_job
    from monai_fairfl.transports.flare.job.strategy import own_classes
    from monai_fairfl.transports.flare.policy import ENTRY

    arguments = _recipe_arguments(args)
    job = export_job(args.out, min_clients=args.min_clients, **arguments)
    lines = [f"{job}: written; submit it with: nvflare job submit -j {job}"]
    own = own_classes(arguments["strategy"])
    if own:
        lines.append(_about_own_classes(own, args.no_custom_code))
    allow = None
    if args.no_custom_code:
        allow = ENTRY
        lines.append(
            f"It brings no code, so the server and every site must have {ENTRY!r} in "
            "class_allow_list of local/resources.json: monai-fairfl flare-policy --kit KIT adds it"
        )
    return Answer({"job": str(job), "allow": allow}, "\n".join(lines))


def _about_own_classes(own: Sequence[str], no_custom_code: bool) -> str:
    """Return what the server needs for the user's own classes in a job."""
    classes = ", ".join(own)
    if no_custom_code:
        return (
            f"It does not bring {classes}: the server must have that installed or on PYTHONPATH, "
            "and in class_allow_list: monai-fairfl flare-policy --kit KIT --also "
            f"{' '.join(own)}"
        )
    return f"It brings the code of {classes}; the server must have installed what that imports"


# --- flare-policy


def _add_flare_policy(add: Add) -> None:
    command = add(
        "flare-policy",
        flare_policy,
        "flare-policy                 # the entry of class_allow_list\n"
        "flare-policy --kit alder     # add it to alder/local/resources.json\n"
        "flare-policy --kit alder --check",
    )
    command.add_argument("--kit", metavar="DIR", help="startup kit of the server or of a site")
    command.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="CLASS",
        help="classes of your own that a job names, such as my_methods.MyStrategy: of the "
        "server's kit only",
    )
    command.add_argument(
        "--check", action="store_true", help="only report; exit code 2 when it is missing"
    )


def flare_policy(args: argparse.Namespace) -> Answer:
    """Show, check or add what NVIDIA FLARE must allow for jobs that bring no code."""
    from monai_fairfl.transports.flare.policy import ENTRY, allow, allowed

    if args.kit is None:
        if args.check:
            raise ConfigError(
                "--check needs to know what to check: give --kit, the startup kit of the server or "
                "of a site"
            )
        text = (
            f'add "{ENTRY}" to class_allow_list in local/resources.json of the server and of every '
            "site;\nmonai-fairfl flare-policy --kit KIT does it"
        )
        return Answer({"class_allow_list": ENTRY}, text)

    entries = " and ".join(f'"{entry}"' for entry in [ENTRY, *args.also])
    verb = "are" if args.also else "is"
    if not args.check:
        file = allow(args.kit, args.also)
        text = f"{file}: {entries} {verb} allowed; restart what runs from it"
        return Answer({"file": str(file), "allowed": True}, text)
    if allowed(args.kit, args.also):
        return Answer({"allowed": True}, f"{args.kit}: {entries} {verb} allowed")
    options = f"--kit {args.kit}"
    if args.also:
        options += f" --also {' '.join(args.also)}"
    text = (
        f"{args.kit} does not allow {entries}: a job without custom code ends with "
        f'"is not in allow_list".\nmonai-fairfl flare-policy {options} adds it'
    )
    return Answer({"allowed": False}, text, code=2)


# --- values of options


def _guards(text: str) -> list[Any]:
    """Parse a list of guards, for ``type=`` of an argument; the recipe checks what is in it."""
    expected = "a list of names or configurations, such as \"['NonFinite', 'TooLong']\""
    found = _literal(text, expected)
    if not isinstance(found, list):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
    return found


def _literal(text: str, expected: str) -> object:
    """What a text says, as Python or JSON writes it."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, ValueError):
        pass
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text!r} ({error}), expected {expected}") from error
