# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``compare``: strategies over seeds and folds, with intervals and p-values."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fairfl.cli.command import Answer, add_out, out_folder, positive, progress_stream, whole
from monai_fairfl.cli.training_options import add_training_options, line_of_options

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine


def compare_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    command.add_argument(
        "--strategy",
        nargs="+",
        required=True,
        metavar="STRATEGY",
        help=(
            "two or more strategies, in the order of the tables, such as FedAvg, "
            '"CGSV(gamma=None)", "FedCE(\'sum\')", or the dotted path of your own; Standalone '
            "shows what each hospital gains over training alone"
        ),
    )
    command.add_argument(
        "--seeds",
        nargs="+",
        type=whole,
        default=[0],
        metavar="S",
        help=(
            "train each strategy with each of these seeds (default: only 0, which "
            "gives no interval)"
        ),
    )
    command.add_argument(
        "--folds",
        type=positive,
        metavar="K",
        help="train K folds, so that every case is tested once (default: the bundle's own split)",
    )
    add_training_options(
        command,
        "how many trainings run at a time, each in its own process; the last ones also share out "
        "their hospitals",
    )
    add_out(
        command,
        "folder for the tables and all trainings (default: compare-NAME here; with --quick, "
        "compare-NAME-quick)",
    )


def compare(args: argparse.Namespace) -> Answer:
    """Compare strategies over seeds and folds, with intervals and p-values for a paper.

    Every strategy is trained with every seed in every fold, on the same splits. A training that
    fails does not stop the others; run the same command to try it again, or to continue it.
    docs/comparing.md explains the tables, and what a p-value over cases does not show.

    examples:
      monai-fairfl compare hospitals --strategy Standalone FedAvg FedCE --quick
      monai-fairfl compare hospitals --strategy FedAvg "CGSV(gamma=None)" --seeds 0 1 2 --folds 4
    """
    from monai_fairfl.bundle.several_runs import SomeFailed
    from monai_fairfl.report import as_text

    line = line_of(args, Path(args.folder).absolute())
    out = Path(line.arguments["run_dir"])
    print(f"Log: {out / 'log.txt'}", file=progress_stream(args), flush=True)
    code, failed = 0, ""
    try:
        line.run(out / "log.txt", args.verbose)
    except SomeFailed as error:
        code, failed = 2, f"\n{error}"
    found = json.loads((out / "comparison.json").read_text())
    text = f"{as_text(found)}{failed}\nReport: {out / 'comparison.html'}"
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
    # A full comparison after a first look is another one, in a folder of its own.
    name = f"compare-{root.name}"
    if args.quick or args.recipe:
        name += f"-{args.recipe or 'quick'}"
    return line_of_options(
        args,
        root,
        out_folder(args.out, name),
        args.strategy,
        seeds=args.seeds,
        folds=args.folds,
    )
