# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that train the hospitals of a folder: ``train``, ``compare`` and ``try``."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import (
    STEREO,
    Answer,
    add_out,
    add_recipe,
    add_settings,
    add_stereo,
    add_verbose,
    out_folder,
    positive,
    progress_stream,
)
from monai_fairfl.cli.engines import ENGINES, simulate
from monai_fairfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine

ADAPT_EPOCHS = 10
"""Most epochs of the last mile where ``--adapt`` gives no number."""

TRIED = ["Standalone", "FedAvg", "FedCE"]
"""Strategies of ``try``."""

SHOWN = ("rounds", "local_epochs", "overrides", "jobs", "devices")
"""Keys that the help of ``train`` and ``compare`` explains."""


def _add_federation(command: argparse.ArgumentParser, *shown: str) -> None:
    """Add the options of every federation of a folder's hospitals."""
    from monai_fairfl.cli.options import add_keys

    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    add_recipe(command)
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help=(
            "name of a shipped bundle, or a bundle's folder (default: the shipped one "
            "that fits the images)"
        ),
    )
    add_settings(command)
    keys = command.add_argument_group("keys of federate.json, each an option (docs/keys.md)")
    add_keys(keys, (*SHOWN, *shown))
    add_verbose(command)


def _line_of(
    args: argparse.Namespace, out: Path, strategies: Sequence[str] | None, **keys: Any
) -> MonaiLine:
    """The line of MONAI that the options stand for.

    Args:
        args: of a command with the options of :func:`_add_federation`.
        out: gets the run.
        strategies: each as on a command line; ``None``: those of the files.
        keys: others of ``federate.json``, which count less than the options.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    from monai_fairfl.bundle.first_look import first_look, quick_file, recipe_file
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.options import federation_line, keys_given

    root = Path(args.folder).absolute()
    bundle = chosen_bundle(root, args.bundle)
    files = []
    if args.recipe is not None:
        files.append(recipe_file(bundle, args.recipe))
    if args.quick:
        # Refuses a bundle that has none.
        first_look(bundle)
        files.append(quick_file(bundle))
    if args.settings is not None:
        files.append(args.settings)
    return federation_line(bundle, root, out, files, strategies, **{**keys, **keys_given(args)})


def _out_of(args: argparse.Namespace, *parts: str) -> Path:
    """The folder that was given, or one whose name says what it holds."""
    from monai_fairfl.utils.files import LONGEST_NAME, safe_name

    of_training = [args.recipe or "quick"] if args.quick or args.recipe else []
    # The data's folder may have any name, a run's folder may not.
    default = re.sub("[^A-Za-z0-9_. -]", "_", "-".join([*parts, *of_training]))
    folder = out_folder(args.out, default[:LONGEST_NAME])
    safe_name(folder.name, "the last part of --out", LONGEST_NAME)
    return folder


# --- train


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
        dest="adapt_epochs",
        nargs="?",
        type=positive,
        const=ADAPT_EPOCHS,
        default=argparse.SUPPRESS,
        metavar="EPOCHS",
        help=(
            "after the last round, let each hospital train the model further in at "
            f"most this many epochs (without a number: {ADAPT_EPOCHS}), and use the "
            "result if it is better; with Standalone among the strategies, the model "
            "that the hospital trained alone is a candidate, too"
        ),
    )
    command.add_argument(
        "--engine",
        choices=("local", *ENGINES),
        default="local",
        help=(
            "train in the simulator of NVIDIA FLARE or Flower: a server, and a process for each "
            "hospital (default: local, without one)"
        ),
    )
    _add_federation(command, "seed", "record_updates")
    add_out(command, "folder for the run and its report (default: train-NAME-STRATEGY here)")


def train(args: argparse.Namespace) -> Answer:
    """Train a federation of your hospitals as its bundle was measured, and report.

    Every file is checked first. If a training was stopped, run the same command to continue it.

    examples:
      monai-fairfl train hospitals              # as the bundle was measured
      monai-fairfl train hospitals --strategy "FedCE('sum')" --adapt
      monai-fairfl train hospitals --recipe light
      monai-fairfl train hospitals --quick      # a first look, in minutes
      monai-fairfl train hospitals --quick --engine flare --strategy FedCE --out flare
    """
    if args.engine != "local":
        return simulate(args)
    from monai_fairfl.strategies.registry import strategy_of

    strategies = args.strategy or _strategies_in(args.settings)
    names = [strategy_of(given).name for given in strategies or ["FedAvg"]]
    out = _out_of(args, "train", Path(args.folder).absolute().name, *names)
    return carry_out(_line_of(args, out, strategies), args)


def _strategies_in(file: Path | None) -> list[Any] | None:
    """The strategies that a user's file names: ``strategy`` counts where ``strategies`` is empty.

    Raises:
        ConfigError: when the file is no configuration.
    """
    from monai_fairfl.cli.running import MonaiLine
    from monai_fairfl.utils.settings import one_or_several

    if file is None:
        return None
    if not file.is_file():
        raise ConfigError(
            f"{file} does not exist: --settings names a file with keys of federate.json"
        )
    found = MonaiLine([str(file)], {}).configuration()
    strategies = found.get("strategies") or found.get("strategy")
    return one_or_several(strategies) if strategies else None


def carry_out(line: MonaiLine, args: argparse.Namespace) -> Answer:
    """Run a line that trains, and answer with its report and its models.

    Args:
        line: of a federation.
        args: of the command.

    Raises:
        FederationError: a signal stopped it.
    """
    from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
    from monai_fairfl.bundle.runs import RunFolders
    from monai_fairfl.cli.running import output_into, require_end, text_of_report
    from monai_fairfl.strategies import Standalone
    from monai_fairfl.strategies.registry import strategy_of
    from monai_fairfl.utils.words import count_words

    strategies = [strategy_of(given) for given in line.arguments.get("strategies", ["FedAvg"])]
    run_dir = Path(line.arguments["run_dir"])
    folders = RunFolders(run_dir, strategies)
    runs = {strategy.name: folders.folder_of(strategy) for strategy in strategies}
    # Where every hospital trains alone, there is no last mile, and the global model is the first.
    federated = [s.name for s in strategies if not isinstance(s, Standalone)]
    opening = f"{', '.join(runs)}. Log: {run_dir / 'log.txt'}"
    if line.arguments.get("record_updates"):
        with output_into(run_dir / "log.txt", args.verbose):
            opening += f"\n{_updates_in_words(line, len(runs))}"
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
        run = shlex.quote(str(runs[[*models][-1]]))
        lines.append(f"Segment images: monai-fairfl infer {run} IMAGES")
    data = {
        "run": str(run_dir),
        "command": line.text,
        "report": str(run_dir / "report.html"),
        "models": models,
    }
    return Answer(data, "\n".join([*lines, text_of_report(run_dir)]))


def _updates_in_words(line: MonaiLine, runs: int) -> str:
    """How much disk the recorded updates of all rounds take."""
    from monai_fairfl.bundle.initial import initial_model
    from monai_fairfl.bundle.sites import data_folders

    settings = line.configuration()
    sites = data_folders(Path(settings["sites_root"]), bool(settings.get("any_folder")))
    bundle, overrides = Path(settings["bundle_root"]), settings.get("overrides") or {}
    weights, _ = initial_model(bundle, overrides, None, settings["config"])
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    # Of each round the model that was sent, and what every hospital sent back.
    gigabytes = runs * settings["rounds"] * (len(sites) + 1) * size / 1e9
    return f"The updates of all rounds take at most {gigabytes:.2g} GB."


# --- compare


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
    _add_federation(command, "seeds", "folds")
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
    from monai_fairfl.bundle.runs import SomeFailed
    from monai_fairfl.report import as_text

    out = _out_of(args, "compare", Path(args.folder).absolute().name)
    line = _line_of(args, out, args.strategy, seeds=[0])
    print(f"Log: {out / 'log.txt'}", file=progress_stream(args), flush=True)
    code, failed = 0, ""
    try:
        line.run(out / "log.txt", args.verbose)
    except SomeFailed as error:
        code, failed = 2, f"\n{error}"
    found = json.loads((out / "comparison.json").read_text())
    text = f"{as_text(found)}{failed}\nReport: {out / 'comparison.html'}"
    return Answer({"folder": str(out), "command": line.text, **found}, text, code)


# --- try


def try_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``try``."""
    from monai_fairfl.cli.options import add_keys

    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    add_stereo(command)
    add_out(command, "folder for the bundle and the run, which goes on (default: try-NAME here)")
    keys = command.add_argument_group("keys of federate.json, each an option (docs/keys.md)")
    add_keys(keys, ("rounds", "jobs"))
    add_verbose(command)


def try_(args: argparse.Namespace) -> Answer:
    """Compare Standalone, FedAvg and FedCE on your hospitals at a small size, and report.

    Every file is checked first. A copy of the bundle is written to go on with.

    examples:
      monai-fairfl try hospitals        # volumes or photographs, in any layout of docs/data.md
      monai-fairfl try hospitals --rounds 30 --out runs/try --jobs 2
    """
    from monai_fairfl.bundle.first_look import quick_file
    from monai_fairfl.bundle.shipped import copy_bundle
    from monai_fairfl.cli.choosing import STRUCTURES, bundle_for, require_two_sites
    from monai_fairfl.cli.options import federation_line, keys_given
    from monai_fairfl.data.checks import overview
    from monai_fairfl.data.sites import site_folders
    from monai_fairfl.run.resuming import SETTINGS, recorded_config
    from monai_fairfl.utils.terminal import warnings_as_notes

    root = Path(args.folder).absolute()
    out = out_folder(args.out, f"try-{root.name}")
    with warnings_as_notes() as notes:
        folders = site_folders(root)
    name = bundle_for(folders)
    structures = STRUCTURES.get(name, ())
    stereo = STEREO[args.stereo]
    if stereo is not None and not structures:
        raise ConfigError(f"--stereo is for photographs, but {root} holds volumes: leave it out")
    found, text = overview(folders, structures, stereo, notes)
    print(text, file=progress_stream(args), flush=True)
    if found["problems"]:
        raise DataError(
            f"{len(found['problems'])} problem(s) in {root}, listed above. Mend these files, or "
            "move a site that is not to take part out of the folder; then give the same command "
            "again."
        )
    require_two_sites(root, folders)
    run_dir = out / "run"
    data = {site: str(folder.absolute()) for site, folder in folders.items()}
    if (run_dir / SETTINGS).exists() and recorded_config(run_dir).get("data") != data:
        raise ConfigError(
            f"{out} holds a first look at other hospitals: give this one a folder of its own with "
            "--out"
        )
    bundle = out / "bundle"
    if not (bundle / "configs").is_dir():
        copy_bundle(name, bundle)
    keys = keys_given(args)
    if stereo is not None:
        keys["overrides"] = {"stereo": stereo, **keys.get("overrides", {})}
    line = federation_line(bundle, root, run_dir, [quick_file(bundle)], TRIED, **keys)
    answer = carry_out(line, args)
    return answer._replace(data={"sites": list(folders), "bundle": str(bundle), **answer.data})
