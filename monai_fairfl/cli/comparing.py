# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``compare``: strategies over seeds and folds, with intervals and p-values."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fairfl.cli.command import (
    Add,
    Answer,
    add_verbose,
    out_folder,
    plain_mapping,
    positive,
    whole,
)

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "compare",
        compare,
        "compare hospitals --strategies FedAvg FedCE --first-look\n"
        'compare hospitals --strategies FedAvg FedCE "CGSV(beta=2)" --seeds 0 1 2 --folds 4',
    )
    command.epilog = f"{command.epilog}\n{NOTES}"
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    command.add_argument(
        "--strategies",
        nargs="+",
        required=True,
        metavar="STRATEGY",
        help='two or more, in the order of the tables: FedAvg, "CGSV(beta=2)", "FedCE(\'sum\')", '
        "or one of your own by its dotted path",
    )
    command.add_argument(
        "--seeds",
        nargs="+",
        type=whole,
        default=[0],
        metavar="S",
        help="each strategy is trained with each of them (default: 0 alone, which gives no "
        "interval)",
    )
    command.add_argument(
        "--folds",
        type=positive,
        metavar="K",
        help="train K folds, so that every case is tested once (default: the bundle's own split)",
    )
    command.add_argument(
        "--rounds", type=positive, help="of every training (default: those of a full run)"
    )
    command.add_argument(
        "--local-epochs", type=positive, help="of every round (default: those of a full run)"
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="plain values of the bundle's configuration, such as \"{'size': [128, 128]}\"",
    )
    command.add_argument(
        "--first-look",
        action="store_true",
        help="small images, a small network and few rounds where nothing else is given, as "
        "monai-fairfl try: minutes and no result to publish",
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="a bundle (default: the shipped one that fits the images)",
    )
    command.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="trainings that run at a time, each in a process of its own, and sites of the last "
        "ones; changes no number (default: what cores and memory allow; 1: one after the other)",
    )
    command.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="of the processes, in turn, such as cuda:0 cuda:1 (default: that of the bundle)",
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a file with other keys of a federation, which come after those of the bundle",
    )
    command.add_argument(
        "--out",
        metavar="DIR",
        help="gets the tables and a folder of each training (default: compare-NAME here)",
    )
    add_verbose(command)


NOTES = """
A comparison that was stopped goes on with the same command. docs/comparing.md
describes the tables, and what a p-value over cases does not show."""


def compare(args: argparse.Namespace) -> Answer:
    """Compare strategies over seeds and folds, with intervals and p-values for a paper.

    Every strategy is trained with every seed in every fold, on the same splits. A training that
    fails does not stop the others; the same command tries it again.
    """
    from rich.console import Console

    from monai_fairfl.bundle.repeated import RepeatedFederation, run_comparison
    from monai_fairfl.cli.expected_time import expected_time
    from monai_fairfl.cli.running import output_into
    from monai_fairfl.report.repeated_tables import comparison_text

    root = Path(args.folder).absolute()
    line = line_of(args, root)
    plan = RepeatedFederation.from_parser(line.configuration()).plan
    out = Path(line.arguments["run_dir"])
    # Standard output is for the JSON object alone.
    output = Console(file=sys.stderr if args.json else sys.stdout, highlight=False)
    runs = [cell.folder(out) for cell in plan.cells()]
    time = expected_time(line, runs)
    training = plan.training()
    opening = (
        f"{len(runs)} trainings of {training['rounds']} rounds of {training['local_epochs']} "
        f"local epochs. {time}\n\n{line.text}\n"
    )
    output.print(opening, markup=False, soft_wrap=True)
    with output_into(out / "log.txt", args.verbose):
        found = run_comparison(plan, out, args.jobs, args.devices)
    text = f"{comparison_text(found)}\nPage: {out / 'comparison.html'}"
    code = 0
    if found["failed"]:
        text += f"\n{len(found['failed'])} trainings failed; the same command tries them again"
        code = 2
    return Answer({"folder": str(out), "command": line.text, **found}, text, code)


def line_of(args: argparse.Namespace, root: Path) -> MonaiLine:
    """The line of MONAI that would do the same.

    Args:
        args: of the command.
        root: one folder per hospital.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.federation_line import federation_line

    return federation_line(
        chosen_bundle(root, args.bundle),
        root,
        out_folder(args.out, f"compare-{root.name}"),
        args.strategies,
        quick=args.first_look,
        config=args.config,
        overrides=args.overrides,
        seeds=args.seeds,
        folds=args.folds,
        rounds=args.rounds,
        local_epochs=args.local_epochs,
        jobs=args.jobs,
        devices=args.devices,
    )
