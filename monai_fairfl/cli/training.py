# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that train the hospitals of a folder: ``train``, ``compare``, ``try`` and ``demo``."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.engines import ENGINES, simulate
from monai_fairfl.cli.options import (
    LOG,
    STEREO,
    Answer,
    add,
    add_keys,
    keys_given,
    number,
    out_folder,
    say,
)
from monai_fairfl.errors import ConfigError, FederationError

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
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    add(command, "--bundle", "--settings", "--out", "--verbose")
    add(command.add_mutually_exclusive_group(), "--quick", "--recipe")
    add_keys(command, (*SHOWN, *shown))


def _line_of(
    args: argparse.Namespace, command: str, strategies: Sequence[str] | None, **keys: Any
) -> MonaiLine:
    """The line of MONAI that the options stand for.

    Args:
        args: of a command with the options of :func:`_add_federation`.
        command: its name, with which the default folder begins.
        strategies: each as on a command line; ``None``: those of the files.
        keys: others of ``federate.json``, which count less than the options.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.running import chosen_files, federation_line, keys_in
    from monai_fairfl.strategies.registry import strategy_of
    from monai_fairfl.utils.files import LONGEST_NAME, safe_name
    from monai_fairfl.utils.settings import one_or_several

    root = Path(args.folder).absolute()
    bundle = chosen_bundle(root, args.bundle)
    files = chosen_files(args, bundle)
    if strategies is not None:
        keys["strategies"] = list(strategies)
    keys |= keys_given(args)

    # The name of the folder says what it holds.
    of_files = keys_in(files)
    named = strategies or of_files.get("strategies") or of_files.get("strategy") or "FedAvg"
    names = [strategy_of(given).name for given in one_or_several(named)]
    parts = [command, root.name, *(names if command == "train" else [])]
    parts += [args.recipe or "quick"] if args.quick or args.recipe else []
    # The data's folder may have any name, a run's folder may not.
    default = re.sub("[^A-Za-z0-9_. -]", "_", "-".join(parts))[:LONGEST_NAME]
    out = out_folder(args.out, default)
    safe_name(out.name, "the last part of --out", LONGEST_NAME)
    return federation_line(bundle, root, out, files, **keys)


# --- train


def train_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``train``."""
    what = "one or more, such as \"FedCE('sum')\", or the dotted path of your own (default: FedAvg)"
    command.add_argument("--strategy", nargs="+", help=what)
    what = f"the last mile: most epochs (default: {ADAPT_EPOCHS}) of each hospital's own at the end"
    command.add_argument(
        "--adapt",
        dest="adapt_epochs",
        nargs="?",
        type=number("[1, inf)"),
        const=ADAPT_EPOCHS,
        default=argparse.SUPPRESS,
        metavar="EPOCHS",
        help=what,
    )
    what = "simulate NVIDIA FLARE or Flower: a server, and a process for each hospital"
    command.add_argument("--engine", choices=("local", *ENGINES), default="local", help=what)
    _add_federation(command, "seed", "record_updates")


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
    return carry_out(_line_of(args, "train", args.strategy), args.verbose)


def carry_out(line: MonaiLine, verbose: bool) -> Answer:
    """Run a line that trains, and answer with its report and its models.

    Raises:
        FederationError: a signal stopped it; it names the runs that did not end.
    """
    from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
    from monai_fairfl.cli.running import text_of_report
    from monai_fairfl.report.collect import find_runs, read_records

    run_dir = Path(line.keys["run_dir"])
    say(f"Into the folder {run_dir}")
    line.run(run_dir / LOG, verbose)
    models, lines, stopped = {}, [], []
    for run in find_runs([run_dir]):
        records = read_records(run)
        name = records[0]["name"]
        if records[-1]["kind"] != "end":
            stopped.append(run.name)
        # Where every hospital trains alone, the global model is the first one.
        if records[0]["strategy"] == "Standalone":
            continue
        if (run / GLOBAL_MODEL).is_file():
            models[name] = str(run / GLOBAL_MODEL)
            lines.append(f"Model of {name}: {models[name]}")
        else:
            lines.append(f"{name} has no complete global model: its hospitals keep some tensors")
        for own in sorted(run.glob("sites/*/state/*-own.pt"))[:1]:
            pattern = run / "sites" / "HOSPITAL" / "state" / own.name
            lines.append(f"Hospitals' own models, each in place of HOSPITAL: {pattern}")
    if stopped:
        raise FederationError(f"{', '.join(stopped)} stopped: the same command goes on")
    if models:
        run = Path([*models.values()][-1]).parents[1]
        lines.append(f"Segment images: monai-fairfl infer {shlex.quote(str(run))} IMAGES")
    data = {"run": str(run_dir), "command": line.text, "models": models}
    data["report"] = str(run_dir / "report.html")
    return Answer(data, "\n".join([*lines, text_of_report(run_dir)]))


# --- compare


def compare_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    what = "two or more; Standalone shows what each hospital gains over training alone"
    command.add_argument("--strategy", nargs="+", required=True, help=what)
    _add_federation(command, "seeds", "folds")


def compare(args: argparse.Namespace) -> Answer:
    """Compare strategies over seeds and folds, with intervals and p-values for a paper.

    Every strategy is trained with every seed in every fold, on the same splits. A training that
    fails does not stop the others; run the same command to try it again, or to continue it.
    docs/comparing.md explains the tables, and what a p-value over cases does not show.

    examples:
      monai-fairfl compare hospitals --strategy Standalone FedAvg FedCE --quick
      monai-fairfl compare hospitals --strategy FedAvg "CGSV(gamma=None)" --seeds 0 1 2 --folds 4
    """
    from monai_fairfl.report import as_text

    line = _line_of(args, "compare", args.strategy, seeds=[0])
    out = Path(line.keys["run_dir"])
    from monai_fairfl.bundle.trainings import SomeFailed

    code, failed = 0, ""
    try:
        line.run(out / LOG, args.verbose)
    except SomeFailed as error:
        code, failed = 2, f"\n{error}"
    found = json.loads((out / "comparison.json").read_text())
    text = f"{as_text(found)}{failed}\nReport: {out / 'comparison.html'}"
    return Answer({"folder": str(out), "command": line.text, **found}, text, code)


# --- try


def try_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``try``."""
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    add(command, "--stereo", "--out", "--verbose")
    add_keys(command, ("rounds", "jobs"))


def try_(args: argparse.Namespace) -> Answer:
    """Compare Standalone, FedAvg and FedCE on your hospitals at a small size, and report.

    Every file is checked first.

    examples:
      monai-fairfl try hospitals        # volumes or photographs, in any layout of docs/data.md
      monai-fairfl try hospitals --rounds 30 --out runs/try --jobs 2
    """
    root = Path(args.folder).absolute()
    out = out_folder(args.out, f"try-{root.name}")
    from monai_fairfl.bundle.settings import quick_file
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.running import federation_line

    bundle = chosen_bundle(root)
    keys = keys_given(args)
    if args.stereo != "auto" and "fundus" not in bundle.name:
        raise ConfigError(f"--stereo is for photographs, and {root} holds volumes: leave it out")
    if args.stereo != "auto":
        keys["overrides"] = {"stereo": STEREO[args.stereo], **keys.get("overrides", {})}
    files = [str(quick_file(bundle))]
    line = federation_line(bundle, root, out, files, strategies=TRIED, **keys)
    return carry_out(line, args.verbose)


# --- demo

SIZES = {"demo": [96, 96, 12], "prostate": [96, 96, 16], "fundus": [256]}
"""Kind of hospitals -> the size of an image."""

SMALLEST_SIDE = {"demo": 12, "prostate": 12, "fundus": 32}
"""Pixels in plane, from which on structures are visible."""

DEMO: dict[str, Any] = {
    "strategies": ["Standalone", "FedAvg", "FedCE('sum')"],
    "rounds": 30,
    "adapt_epochs": 10,
    # For `monai-fairfl value demo/run`.
    "record_updates": True,
    # The demo's first look is its own full run: docs/demo.md has what came out on six seeds.
    "full_run": {"rounds": 30, "local_epochs": 4, "mean_dice": 0.5},
}
"""Keys of the demo's federation, beside those of the bundle's first look."""


def demo_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    what = "write the images into DIR, and train nothing"
    command.add_argument("--data-only", action="store_true", help=what)
    what = "the demo's four hospitals; with --data-only also six of prostate MRI, or of photographs"
    command.add_argument("--kind", choices=SIZES, default="demo", help=what)
    what = "of every image and of the training (default: 0)"
    command.add_argument("--seed", type=number("[0, inf)"), default=0, help=what)
    what = "of a volume in voxels, X Y Z, or of a photograph in pixels, N"
    command.add_argument("--size", type=number("[1, inf)"), nargs="+", metavar="N", help=what)
    add(command, "--out", "--verbose")


def demo(args: argparse.Namespace) -> Answer:
    """Train a federation of four synthetic hospitals, and report; or only write their images.

    It takes about two minutes on two cores. One hospital has few and unusual images: FedAvg fails
    it, and FedCE's sum does not.

    examples:
      monai-fairfl demo
      monai-fairfl demo --data-only --out hospitals --kind prostate
      monai-fairfl demo --data-only --out small --kind prostate --size 48 48 8 --seed 1
      monai-fairfl demo --data-only --out clinics --kind fundus
    """
    out = out_folder(args.out, "demo")
    if args.data_only:
        sites = _write_hospitals(args, out)
        text = f"{out}: {len(sites)} hospitals, {', '.join(sites)}"
        return Answer({"folder": str(out), "sites": sites}, text)
    if args.kind != "demo":
        raise ConfigError(f"--kind {args.kind} is for --data-only: then train what it has written")
    from monai_fairfl.bundle.settings import quick_file
    from monai_fairfl.bundle.shipped import find_bundle
    from monai_fairfl.cli.choosing import PROSTATE
    from monai_fairfl.cli.running import federation_line

    _write_hospitals(args, out / "hospitals")
    bundle = find_bundle(PROSTATE)
    places = (bundle, out / "hospitals", out / "run", [str(quick_file(bundle))])
    return carry_out(federation_line(*places, **DEMO, seed=args.seed), args.verbose)


def _write_hospitals(args: argparse.Namespace, folder: Path) -> list[str]:
    """Write the images of the hospitals that are not there yet; returns the hospitals' names."""
    from monai_fairfl.data import write_clinics, write_demo, write_sites

    size = args.size or SIZES[args.kind]
    least = SMALLEST_SIDE[args.kind]
    if len(size) != len(SIZES[args.kind]) or min(size[:2]) < least:
        raise ConfigError(
            f"--size of {args.kind} is like {SIZES[args.kind]} and at least {least} in plane, "
            f"where structures begin to show, got {size}"
        )
    settings: dict[str, Any] = {"seed": args.seed, "workers": os.cpu_count() or 1}
    if args.kind == "fundus":
        return write_clinics(folder, size=size[0], **settings)
    write = write_demo if args.kind == "demo" else write_sites
    return write(folder, size=tuple(size), **settings)
