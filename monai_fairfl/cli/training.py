# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``train``: one federation of the hospitals in a folder, and its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from monai_fairfl.bundle.first_look import Recipe
    from monai_fairfl.cli.running import MonaiLine

ADAPT_EPOCHS = 10
"""Most epochs of the last mile where ``--adapt`` gives no number."""

NOTES = """
A training that was stopped goes on with the same command. Other settings of a
federation are keys of the printed line: docs/keys.md lists them."""


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "train",
        train,
        "train hospitals              # as the bundle was measured\n"
        "train hospitals --strategy \"FedCE('sum')\" --adapt\n"
        "train hospitals --quick      # a first look, in minutes",
    )
    command.epilog = f"{command.epilog}\n{NOTES}"
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    command.add_argument(
        "--strategy",
        default="FedAvg",
        metavar="STRATEGY",
        help='FedCE, "FedCE(\'sum\')", "CGSV(beta=2)", or one of your own by its dotted path '
        "(default: FedAvg)",
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="a bundle (default: the shipped one that fits the images)",
    )
    command.add_argument("--rounds", type=positive, metavar="N", help="in all (default: measured)")
    command.add_argument(
        "--local-epochs", type=positive, metavar="N", help="of every round (default: measured)"
    )
    command.add_argument(
        "--adapt",
        nargs="?",
        type=positive,
        const=ADAPT_EPOCHS,
        metavar="EPOCHS",
        help="let each hospital look for a better model of its own at the end, in at most so many "
        f"epochs (default without a number: {ADAPT_EPOCHS})",
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="plain values of the bundle's configuration, such as \"{'learning_rate': 0.001}\"",
    )
    command.add_argument(
        "--quick",
        action="store_true",
        help="a first look: few rounds, small images and a small network, as monai-fairfl try",
    )
    command.add_argument("--seed", type=whole, metavar="S", help="of everything (default: 0)")
    command.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="hospitals that train at a time, each in a process of its own; changes no number "
        "(default: what cores and memory allow; 1: one after the other)",
    )
    command.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="of the processes, in turn, such as cuda:0 cuda:1 (default: a GPU if there is one)",
    )
    command.add_argument(
        "--out",
        metavar="DIR",
        help="gets the run and its report (default: train-NAME-STRATEGY here)",
    )
    add_verbose(command)


def train(args: argparse.Namespace) -> Answer:
    """Train a federation of your hospitals as its bundle was measured, and report.

    Every file is checked before. The command prints the line of MONAI that it runs.
    """
    from rich.console import Console

    from monai_fairfl.cli.running import require_end, text_of_report

    root = Path(args.folder).absolute()
    line, recipe, name = line_of(args, root)
    run_dir = Path(line.arguments["run_dir"])
    # Standard output is for the JSON object alone.
    output = Console(file=sys.stderr if args.json else sys.stdout, highlight=False)
    for text in _opening(name, line, recipe, run_dir, args.verbose):
        output.print(text, markup=False, soft_wrap=True)

    line.run(run_dir / "log.txt", args.verbose)
    require_end(run_dir)
    data = {
        "run": str(run_dir),
        "command": line.text,
        "report": str(run_dir / "report.html"),
        "model": str(run_dir / "models" / "global.pt"),
    }
    return Answer(data, f"{text_of_report(run_dir)}\nModel: {data['model']}")


def line_of(args: argparse.Namespace, root: Path) -> tuple[MonaiLine, Recipe, str]:
    """The line that trains, how long it trains, and the strategy's name.

    Args:
        args: of the command.
        root: one folder per hospital.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    from monai_fairfl.bundle.first_look import FEDERATE, Recipe, first_look, quick_file, recipe
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.running import MonaiLine
    from monai_fairfl.strategies.resolver import strategy_of

    strategy = strategy_of(args.strategy)
    bundle = chosen_bundle(root, args.bundle)
    files = [str(bundle / FEDERATE)]
    measured = recipe(bundle)
    if args.quick:
        files.append(str(quick_file(bundle)))
        measured = first_look(bundle)

    arguments: dict[str, Any] = {
        "bundle_root": str(bundle),
        "sites_root": str(root),
        "run_dir": str(_run_dir(args, root, strategy.name)),
        "strategy": args.strategy,
        "resume": True,
    }
    given = {
        "rounds": args.rounds,
        "local_epochs": args.local_epochs,
        "adapt_epochs": args.adapt,
        "seed": args.seed,
        "jobs": args.jobs,
        "devices": args.devices,
    }
    for name, value in given.items():
        if value is not None:
            arguments[name] = value
    if args.overrides:
        arguments.update(_override_arguments(measured.overrides, args.overrides))
    trains = Recipe(
        args.rounds or measured.rounds,
        args.local_epochs or measured.local_epochs,
        {**measured.overrides, **args.overrides},
    )
    return MonaiLine(files, arguments), trains, strategy.name


def _run_dir(args: argparse.Namespace, root: Path, strategy: str) -> Path:
    """The folder that was given, or one whose name says what it trains."""
    name = f"train-{root.name}-{strategy}"
    if args.quick:
        name = f"{name}-quick"
    return out_folder(args.out, name)


def _override_arguments(of_files: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as arguments of the line, beside those of its files.

    >>> _override_arguments({"channels": [4, 8]}, {"size": [32, 32]})
    {'overrides#size': [32, 32]}
    >>> _override_arguments({}, {"size": [32, 32]})
    {'overrides': {'size': [32, 32]}}
    """
    # MONAI takes a # for the place of a key.
    if not of_files or any("#" in key for key in given):
        return {"overrides": {**of_files, **given}}
    return {f"overrides#{key}": value for key, value in given.items()}


def _opening(
    strategy: str, line: MonaiLine, recipe: Recipe, run_dir: Path, verbose: bool
) -> Sequence[str]:
    """What a reader knows before the training begins."""
    from monai_fairfl.run_folder.full_run import duration_words
    from monai_fairfl.run_folder.schedule import Schedule

    seconds = list(Schedule.read(run_dir).seconds.values())
    left = recipe.rounds - len(seconds)
    time = "The first round is timed, then the time for all is estimated."
    if seconds and left > 0:
        mean = sum(seconds) / len(seconds)
        time = f"{len(seconds)} rounds are done; {duration_words(mean * left)} for the others."
    elif seconds:
        time = "All rounds are done."
    lines = [
        f"{strategy}: {recipe.rounds} rounds of {recipe.local_epochs} local epochs. {time}",
        "",
        line.text,
        "",
    ]
    if not verbose:
        lines.append(f"Log: {run_dir / 'log.txt'}")
    return lines
