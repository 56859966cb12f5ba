# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that train the hospitals of a folder: ``train``, ``compare``, ``try`` and ``demo``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
from monai_fairfl.bundle.trainings import SomeFailed
from monai_fairfl.cli.answers import LOG, Answer, out_folder, say
from monai_fairfl.cli.choosing import PROSTATE, chosen_bundle
from monai_fairfl.cli.engines import simulate
from monai_fairfl.cli.program import parsed
from monai_fairfl.cli.running import chosen_files, given_keys, run_line, text_of_report
from monai_fairfl.data import write_clinics, write_demo, write_sites
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.report import as_text
from monai_fairfl.report.collect import find_runs, read_records
from monai_fairfl.utils.arguments import check_value


def _line_of(args: argparse.Namespace, **keys: Any) -> tuple[list[str], dict[str, Any]]:
    """The line of MONAI that the options of ``train``, ``try`` or ``compare`` stand for.

    Args:
        args: of the command, with which the name of the default folder begins.
        keys: of ``federate.json``, which count less than the options.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    root = Path(args.folder).absolute()
    bundle = chosen_bundle(root, args.bundle)
    files = chosen_files(args, bundle)
    given = keys | given_keys(args, files)
    if args.strategy:
        given["strategies"] = args.strategy
    out = out_folder(args.out, f"{args.command.strip('_')}-{root.name}")
    say("Every file is read before the first round ...")
    places = {"bundle_root": bundle, "sites_root": root, "run_dir": out}
    return files, {**places, "resume": True, **given}


# --- train, try


def train(args: argparse.Namespace) -> Answer:
    """Carry out ``train``, and answer with its report and its models.

    Raises:
        FederationError: a signal stopped it; it names the runs that did not end.
    """
    if args.engine != "local":
        return simulate(args)
    files, keys = _line_of(args)
    run_dir: Path = keys["run_dir"]
    run_line(files, keys, run_dir / LOG, args.verbose)
    models, stopped = {}, []
    for run in find_runs([run_dir]):
        records = read_records(run)
        if records[-1]["kind"] != "end":
            stopped.append(run.name)
        # Where every hospital trains alone, the global model is the first one.
        if records[0]["strategy"] != "Standalone" and (run / GLOBAL_MODEL).is_file():
            models[records[0]["name"]] = str(run / GLOBAL_MODEL)
    if stopped:
        raise FederationError(f"{', '.join(stopped)} stopped: the same command goes on")
    lines = [f"Model of {name}: {file}" for name, file in models.items()]
    data = {"run": str(run_dir), "models": models, "report": str(run_dir / "report.html")}
    return Answer(data, "\n".join([*lines, text_of_report(run_dir)]))


try_ = train
"""Carry out ``try``, which has other options."""


# --- compare


def compare(args: argparse.Namespace) -> Answer:
    """Carry out ``compare``."""
    files, keys = _line_of(args, seeds=[0])
    out: Path = keys["run_dir"]
    code, failed = 0, ""
    try:
        run_line(files, keys, out / LOG, args.verbose)
    except SomeFailed as error:
        code, failed = 2, f"\n{error}"
    found = json.loads((out / "comparison.json").read_text())
    text = f"{as_text(found)}{failed}\nReport: {out / 'comparison.html'}"
    return Answer({"folder": str(out), **found}, text, code)


# --- demo

SIZES = {"demo": [96, 96, 12], "prostate": [96, 96, 16], "fundus": [256]}
"""Kind of hospitals -> the size of an image."""

DEMO: dict[str, Any] = {
    "strategy": ["Standalone", "FedAvg", "FedCE('sum')"],
    "rounds": 30,
    "adapt_epochs": 10,
    # For `monai-fairfl value demo/run`.
    "record_updates": True,
    # The demo's first look is its own full run: docs/demo.md has what came out on six seeds.
    "full_run": {"rounds": 30, "local_epochs": 4, "mean_dice": 0.5},
}
"""Options of the demo's ``train --quick``."""


def demo(args: argparse.Namespace) -> Answer:
    """Carry out ``demo``; hospitals that are there already stay."""
    out = Path(args.out or "demo").absolute()
    if args.kind != "demo" and not args.data_only:
        raise ConfigError(f"--kind {args.kind} is for --data-only: then train what it has written")
    default = SIZES[args.kind]
    size = args.size or default
    if len(size) != len(default) or min(size[:2]) < 12 or min(size) < 1:
        raise ConfigError(f"--size is like {default}, 12 or more in plane, got {size}")
    check_value("--seed", args.seed, "int", "[0, inf)")
    folder = out if args.data_only else out / "hospitals"
    if args.kind == "fundus":
        sites = write_clinics(folder, seed=args.seed, size=size[0])
    else:
        write = write_demo if args.kind == "demo" else write_sites
        sites = write(folder, seed=args.seed, size=tuple(size))
    if args.data_only:
        return Answer({"folder": str(out), "sites": sites}, f"{out}: {', '.join(sites)}")
    options = vars(parsed(["train", str(folder), "--quick", "--bundle", PROSTATE])) | DEMO
    options |= {"out": str(out / "run"), "seed": args.seed, "verbose": args.verbose}
    return train(argparse.Namespace(**options))
