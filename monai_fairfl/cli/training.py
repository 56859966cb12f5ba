# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``train``: one federation of the hospitals in a folder, and its report."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fairfl.cli.command import (
    Answer,
    add_out,
    out_folder,
    positive,
    progress_stream,
    whole,
)
from monai_fairfl.cli.engines import ENGINES, simulate
from monai_fairfl.cli.training_options import add_training_options, line_of_options
from monai_fairfl.errors import ConfigError

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine

ADAPT_EPOCHS = 10
"""Most epochs of the last mile where ``--adapt`` gives no number."""


def train_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``train``."""
    command.add_argument(
        "--strategy",
        nargs="+",
        metavar="STRATEGY",
        help=(
            "one or more strategies, such as FedCE, \"FedCE('sum')\", "
            '"CGSV(gamma=None)", or the dotted path of your own; several are trained '
            "for one report (default: those of the file of --settings, else FedAvg)"
        ),
    )
    command.add_argument(
        "--adapt",
        nargs="?",
        type=positive,
        const=ADAPT_EPOCHS,
        metavar="EPOCHS",
        help=(
            "after the last round, let each hospital train the model further in at "
            f"most this many epochs (without a number: {ADAPT_EPOCHS}), and use the "
            "result if it is better; with Standalone among the strategies, the model "
            "that the hospital trained alone is a candidate, too"
        ),
    )
    command.add_argument(
        "--seed", type=whole, metavar="S", help="seed of all random numbers (default: 0)"
    )
    add_training_options(command, "how many hospitals train at a time, each in its own process")
    command.add_argument(
        "--engine",
        choices=("local", *ENGINES),
        default="local",
        help=(
            "train in the simulator of NVIDIA FLARE or Flower: a server, and a process for each "
            "hospital (default: local, without one)"
        ),
    )
    add_out(command, "folder for the run and its report (default: train-NAME-STRATEGY here)")


def train(args: argparse.Namespace) -> Answer:
    """Train a federation of your hospitals as its bundle was measured, and report.

    Every file is checked first. If a training was stopped, run the same command to continue it.
    docs/keys.md lists more settings, which a file of --settings can have.

    examples:
      monai-fairfl train hospitals              # as the bundle was measured
      monai-fairfl train hospitals --strategy "FedCE('sum')" --adapt
      monai-fairfl train hospitals --recipe light
      monai-fairfl train hospitals --quick      # a first look, in minutes
      monai-fairfl train hospitals --quick --engine flare --strategy FedCE --out flare
    """
    if args.engine != "local":
        return simulate(args)
    strategies = named_strategies(args)
    root = Path(args.folder).absolute()
    return carry_out(line_of(args, root, strategies), strategies, args)


def carry_out(line: MonaiLine, texts: Sequence[str], args: argparse.Namespace) -> Answer:
    """Run a line that trains, and answer with its report and its models.

    Args:
        line: of a federation with these strategies.
        texts: strategies, each as on a command line.
        args: of the command.

    Raises:
        ConfigError: a run that has ended without a last mile would get none.
        FederationError: a signal stopped it.
    """
    from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
    from monai_fairfl.bundle.runs import RunFolders
    from monai_fairfl.cli.running import require_end, text_of_report
    from monai_fairfl.strategies import Standalone
    from monai_fairfl.strategies.registry import strategy_of
    from monai_fairfl.utils.words import count_words

    strategies = [strategy_of(text) for text in texts]
    run_dir = Path(line.arguments["run_dir"])
    folders = RunFolders(run_dir, strategies)
    runs = {strategy.name: folders.folder_of(strategy) for strategy in strategies}
    # Where every hospital trains alone, there is no last mile, and the global model is the first.
    federated = [s.name for s in strategies if not isinstance(s, Standalone)]
    settings = line.configuration()
    if line.arguments.get("adapt_epochs"):
        for name in federated:
            _refuse_late_last_mile(runs[name], settings["rounds"])

    rounds = count_words(settings["rounds"], "round")
    epochs = count_words(settings["local_epochs"], "local epoch")
    opening = f"{', '.join(runs)}: {rounds} of {epochs}. Log: {run_dir / 'log.txt'}"
    print(opening, file=progress_stream(args), flush=True)
    line.run(run_dir / "log.txt", args.verbose)
    require_end(run_dir)

    models = {}
    lines = []
    for name in federated:
        file = runs[name] / GLOBAL_MODEL
        if file.is_file():
            models[name] = str(file)
            lines.append(f"Model of {name}: {file}")
        else:
            lines.append(f"{name} has no complete global model: its hospitals keep some tensors")
        own = sorted(runs[name].glob("sites/*/state/*-own.pt"))
        if own:
            counted = count_words(len(own), "hospital")
            pattern = runs[name] / "sites" / "HOSPITAL" / "state" / own[0].name
            lines.append(f"Own models of {counted}, each in place of HOSPITAL: {pattern}")
    if models:
        lines.append(
            f"Segment images: monai-fairfl infer {shlex.quote(str(runs[[*models][-1]]))} IMAGES"
        )
    data = {
        "run": str(run_dir),
        "command": line.text,
        "report": str(run_dir / "report.html"),
        "models": models,
    }
    return Answer(data, "\n".join([*lines, text_of_report(run_dir)]))


def _refuse_late_last_mile(run: Path, rounds: int) -> None:
    """Refuse a last mile of a run that has ended without one: it would not take place.

    Raises:
        ConfigError: naming the run, and what to do.
    """
    from monai_fairfl.messages import CANDIDATES
    from monai_fairfl.run.ledger import count_rounds, read_ledger
    from monai_fairfl.run.resuming import ended

    if not ended(run):
        return
    records = read_ledger(run / "ledger.jsonl")
    had_one = any(set(CANDIDATES) & set(models) for models in records[-1]["scores"].values())
    if count_rounds(records) >= rounds and not had_one:
        raise ConfigError(
            f"{run} has ended without a last mile, and --adapt adds none to it: train in a folder "
            "of its own with --out"
        )


def named_strategies(args: argparse.Namespace) -> list[str]:
    """The strategies of the command; where it names none, those of the file of ``--settings``.

    Raises:
        ConfigError: when the file is no configuration.
    """
    from monai_fairfl.cli.federation_line import strategies_in_file

    return args.strategy or strategies_in_file(args.settings) or ["FedAvg"]


def line_of(args: argparse.Namespace, root: Path, strategies: Sequence[str]) -> MonaiLine:
    """The line that trains.

    Args:
        args: of the command.
        root: one folder per hospital.
        strategies: each as on a command line, see :func:`named_strategies`.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    return line_of_options(
        args,
        root,
        _run_dir(args, root, strategies),
        strategies,
        adapt_epochs=args.adapt,
        seed=args.seed,
    )


def _run_dir(args: argparse.Namespace, root: Path, strategies: Sequence[str]) -> Path:
    """The folder that was given, or one whose name says what it trains."""
    from monai_fairfl.strategies.registry import strategy_of
    from monai_fairfl.utils.files import LONGEST_NAME, safe_name

    parts = ["train", root.name, *[strategy_of(text).name for text in strategies]]
    if args.quick or args.recipe:
        parts.append(args.recipe or "quick")
    # The data's folder may have any name, a run's folder may not.
    default = re.sub("[^A-Za-z0-9_. -]", "_", "-".join(parts))[:LONGEST_NAME]
    folder = out_folder(args.out, default)
    safe_name(folder.name, "the last part of --out", LONGEST_NAME)
    return folder
