# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``train``: one federation of the hospitals in a folder, and its report."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fairfl.cli.command import Add, Answer, out_folder, positive, progress_stream, whole
from monai_fairfl.cli.training_options import add_training_options, line_of_options

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine

ADAPT_EPOCHS = 10
"""Most epochs of the last mile where ``--adapt`` gives no number."""

NOTES = """
If a training was stopped, run the same command to continue it. docs/keys.md
lists more settings, which you can add to the printed command."""


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "train",
        train,
        "train hospitals              # as the bundle was measured\n"
        "train hospitals --strategies \"FedCE('sum')\" --adapt\n"
        "train hospitals --recipe light\n"
        "train hospitals --quick      # a first look, in minutes",
    )
    command.epilog = f"{command.epilog}\n{NOTES}"
    command.add_argument(
        "--strategies",
        "--strategy",
        dest="strategy",
        nargs="+",
        metavar="STRATEGY",
        help=(
            "one or more strategies, such as FedCE, \"FedCE('sum')\", "
            '"CGSV(gamma=None)", or the dotted path of your own; several are trained '
            "for one report (default: those of the file of --config, else FedAvg)"
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
        "--out",
        metavar="DIR",
        help="folder for the run and its report (default: train-NAME-STRATEGY here)",
    )


def train(args: argparse.Namespace) -> Answer:
    """Train a federation of your hospitals as its bundle was measured, and report.

    Every file is checked first. The command prints the MONAI command that it runs.
    """
    from rich.console import Console

    from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
    from monai_fairfl.bundle.several_runs import RunFolders
    from monai_fairfl.cli.running import require_end, text_of_report
    from monai_fairfl.strategies import Standalone
    from monai_fairfl.strategies.registry import strategy_of

    root = Path(args.folder).absolute()
    texts = named_strategies(args)
    strategies = [strategy_of(text) for text in texts]
    line = line_of(args, root, texts)
    run_dir = Path(line.arguments["run_dir"])
    folders = RunFolders(run_dir, strategies)
    runs = {strategy.name: folders.folder_of(strategy) for strategy in strategies}
    # Where every hospital trains alone, there is no last mile, and the global model is the first.
    federated = [s.name for s in strategies if not isinstance(s, Standalone)]
    if args.adapt is not None:
        rounds = line.configuration()["rounds"]
        for name in federated:
            _refuse_late_last_mile(runs[name], rounds)

    output = Console(file=progress_stream(args), highlight=False)
    for text in _opening(line, runs):
        output.print(text, markup=False, soft_wrap=True)
    if not args.verbose:
        output.print(f"Log: {run_dir / 'log.txt'}", markup=False, soft_wrap=True)

    line.run(run_dir / "log.txt", args.verbose)
    require_end(run_dir)

    models = {}
    for name in federated:
        file = runs[name] / GLOBAL_MODEL
        if file.is_file():
            models[name] = str(file)
    data = {
        "run": str(run_dir),
        "command": line.text,
        "report": str(run_dir / "report.html"),
        "models": models,
    }
    bundle = Path(line.arguments["bundle_root"])
    lines = [text_of_report(run_dir), *_about_models(federated, models, runs, bundle)]
    return Answer(data, "\n".join(lines))


def _about_models(
    federated: Sequence[str],
    models: Mapping[str, str],
    runs: Mapping[str, Path],
    bundle: Path,
) -> list[str]:
    """Where the models of a training are, and how one is used; a line each.

    Args:
        federated: names of the strategies that make a global model.
        models: name -> file of the complete global model, where there is one.
        runs: name -> folder of its run.
        bundle: that trained.
    """
    lines = []
    for name, path in models.items():
        lines.append(f"Model of {name}: {path}")
        lines.extend(_own_models(runs[name]))
    for name in federated:
        if name not in models:
            lines.append(f"{name} has no complete global model: its hospitals keep some tensors")
            lines.extend(_own_models(runs[name]))
    for name in models:
        lines.extend(_use_of_model(name, runs[name], bundle))
    return lines


def _use_of_model(name: str, run: Path, bundle: Path) -> Sequence[str]:
    """The line with the command that segments images; none where the bundle has no inference."""
    from monai_fairfl.bundle.configuration import INFERENCE
    from monai_fairfl.bundle.shipped import bundle_names, find_bundle

    if not (bundle / INFERENCE).is_file():
        return []
    words = ["monai-fairfl", "infer", str(run)]
    if bundle not in [find_bundle(shipped) for shipped in bundle_names()]:
        words += ["--bundle", str(bundle)]
    return [f"Segment images with {name}: {shlex.join(words)} IMAGES --out OUT"]


def _own_models(run: Path) -> Sequence[str]:
    """Lines with the models that hospitals chose for themselves; none where there are none."""
    from monai_fairfl.utils.words import count_words

    files = sorted(run.glob("sites/*/state/*-own.pt"))
    if not files:
        return []
    counted = count_words(len(files), "hospital")
    pattern = run / "sites" / "HOSPITAL" / "state" / files[0].name
    return [f"Own models of {counted}, each in place of HOSPITAL: {pattern}"]


def _refuse_late_last_mile(run: Path, rounds: int) -> None:
    """Refuse a last mile of a run that has ended without one: it would not take place.

    Raises:
        ConfigError: naming the run, and what to do.
    """
    from monai_fairfl.errors import ConfigError
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
    """The strategies of the command; where it names none, those of the file of ``--config``.

    Raises:
        ConfigError: when the file is no configuration.
    """
    from monai_fairfl.cli.federation_line import strategies_in_file

    return args.strategy or strategies_in_file(args.config) or ["FedAvg"]


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


def _opening(line: MonaiLine, runs: Mapping[str, Path]) -> Sequence[str]:
    """What a reader knows before the training begins."""
    from monai_fairfl.cli.expected_time import expected_time
    from monai_fairfl.utils.words import count_words

    configuration = line.configuration()
    rounds = count_words(configuration["rounds"], "round")
    epochs = count_words(configuration["local_epochs"], "local epoch")
    time = expected_time(configuration, len(runs))
    return [
        f"{', '.join(runs)}: {rounds} of {epochs}. {time}",
        "",
        line.text,
        "",
    ]
