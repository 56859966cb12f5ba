# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands for Flower: ``simulate-flower`` and ``export-flower``.

Of each command the arguments come first, then the function that it calls.
"""

from __future__ import annotations

import argparse
from functools import partial

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


def add_commands(add: Add) -> None:
    """Add the commands of this module to the program."""
    _add_simulate_flower(add)
    _add_export_flower(add)


# --- simulate-flower


def _add_simulate_flower(add: Add) -> None:
    command = add(
        "simulate-flower",
        simulate_flower,
        "simulate-flower --bundle prostate_mri_segmentation --sites-root hospitals "
        "--workspace flower --quick",
    )
    add_simulation_sites(command)
    command.add_argument(
        "--workspace",
        required=True,
        metavar="DIR",
        help=(
            "folder for the run (server/NAME), the sites' states (sites/SITE) and "
            "log.txt; a run that did not end is continued"
        ),
    )
    command.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="how many processes train at a time (default: one for each processor)",
    )
    add_job_options(command)
    add_verbose(command)


def simulate_flower(args: argparse.Namespace) -> Answer:
    """Run a federation in Flower's simulation.

    It starts a server here, and sites in worker processes of Ray.
    """
    # A wrong name is refused before the imports, which take many seconds.
    locate_bundle(args.bundle)
    from monai_fairfl.transports.flower.simulation import simulate_job

    arguments = job_arguments(args)
    with logged_workspace(args):
        run = simulate_job(
            args.workspace,
            args.sites_root,
            args.site_names,
            partial(rounds_shown, arguments["num_rounds"]),
            args.processes,
            **arguments,
        )
    return run_answer(run)


# --- export-flower


def _add_export_flower(add: Add) -> None:
    command = add(
        "export-flower",
        export_flower,
        "export-flower --bundle prostate_mri_segmentation --min-clients 3 --out app\n"
        "export-flower --bundle my_bundle --strategy CGSV --local-epochs 2 --out app",
    )
    command.add_argument(
        "--out", required=True, metavar="DIR", help="new or empty folder, which becomes the app"
    )
    command.add_argument(
        "--min-clients",
        type=positive,
        default=2,
        metavar="N",
        help="smallest number of sites (default: 2)",
    )
    add_job_options(command)


def export_flower(args: argparse.Namespace) -> Answer:
    """Write a federation as an app for Flower."""
    # A wrong name is refused before the imports, which take many seconds.
    locate_bundle(args.bundle)
    from monai_fairfl.transports.flower.job import export_app

    app = export_app(args.out, min_clients=args.min_clients, **job_arguments(args))
    return Answer({"app": str(app)}, f"{app}: written; submit it with: flwr run {app}")
