# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands for NVIDIA FLARE: ``simulate-flare``, ``export-flare`` and ``flare-policy``.

Of each command the arguments come first, then the function that it calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from monai_fairfl.bundle.shipped import locate_bundle
from monai_fairfl.cli.command import Add, Answer, add_verbose, positive
from monai_fairfl.cli.jobs import (
    add_job_options,
    add_simulation_sites,
    job_arguments,
    logged_workspace,
    rounds_shown,
    run_answer,
)
from monai_fairfl.errors import ConfigError


def add_commands(add: Add) -> None:
    """Add the commands of this module to the program."""
    _add_simulate_flare(add)
    _add_export_flare(add)
    _add_flare_policy(add)


def _add_recipe_options(command: argparse.ArgumentParser) -> None:
    add_job_options(command)
    command.add_argument(
        "--no-custom-code",
        action="store_true",
        help="make a job for sites that run only installed packages; see flare-policy",
    )


def _recipe_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``FairFLRecipe`` that the command line gives, or else the bundle."""
    from monai_fairfl.strategies.registry import strategy_of

    return {
        **job_arguments(args),
        "strategy": strategy_of(args.strategy),
        "custom_code": not args.no_custom_code,
    }


# --- simulate-flare


def _add_simulate_flare(add: Add) -> None:
    command = add(
        "simulate-flare",
        simulate_flare,
        "simulate-flare --bundle prostate_mri_segmentation --sites-root hospitals "
        "--workspace flare --quick",
    )
    add_simulation_sites(command)
    command.add_argument(
        "--workspace",
        required=True,
        metavar="DIR",
        help=(
            "folder for the simulator's files (nvflare/, emptied at every start), for "
            "the run and the sites' states (kept/), and log.txt; a run that did not "
            "end is continued"
        ),
    )
    _add_recipe_options(command)
    add_verbose(command)


def simulate_flare(args: argparse.Namespace) -> Answer:
    """Run a federation in NVIDIA FLARE's simulator.

    It starts a server and one process per site on this machine.
    """
    # A wrong name is refused before the imports, which take many seconds.
    locate_bundle(args.bundle)
    from monai_fairfl.transports.flare.recipe import simulate_job

    arguments = _recipe_arguments(args)
    with logged_workspace(args):
        watch = partial(rounds_shown, arguments["num_rounds"])
        run = simulate_job(args.workspace, args.sites_root, args.site_names, watch, **arguments)
    return run_answer(run)


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
        "--out", required=True, metavar="DIR", help="new or empty folder, which becomes the job"
    )
    command.add_argument(
        "--min-clients",
        type=positive,
        default=2,
        metavar="N",
        help="smallest number of sites (default: 2)",
    )
    _add_recipe_options(command)


def export_flare(args: argparse.Namespace) -> Answer:
    """Write a federation as a job folder for NVIDIA FLARE, with its seeded initial model."""
    # A wrong name is refused before the imports, which take many seconds.
    locate_bundle(args.bundle)
    from monai_fairfl.transports.flare.policy import ENTRY
    from monai_fairfl.transports.flare.recipe import export_job, own_classes

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
        help=(
            "your own classes that a job may name, such as my_methods.MyStrategy; for "
            "the server's kit only"
        ),
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="only report; the exit code is 2 if the policy is missing",
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
