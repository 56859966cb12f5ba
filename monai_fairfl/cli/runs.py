# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about finished runs and strategies: ``report``, ``strategies``."""

from __future__ import annotations

import argparse
import inspect
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from monai_fairfl.cli.command import Answer, add_out


def report_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    command.add_argument(
        "run_dir",
        nargs="+",
        metavar="RUN",
        help="folder of a run, or a workspace that contains one",
    )
    add_out(
        command,
        "folder for report.html, report.json and the CSV files (default: the run, or the folder "
        "that contains all runs)",
    )


def report(args: argparse.Namespace) -> Answer:
    """Write the report of one run, or of several side by side.

    examples:
      monai-fairfl report runs/first
      monai-fairfl report runs/fedavg runs/fedce --out comparison
    """
    from monai_fairfl.report import as_text, write_report
    from monai_fairfl.report.collect import find_runs
    from monai_fairfl.report.write import failures_of
    from monai_fairfl.run.resuming import ended

    runs = find_runs(args.run_dir)
    out = Path(args.out or _folder_of(args.run_dir, runs))
    # A report that is there is of the same runs, unless --out names another place.
    failed = {} if args.out else failures_of(out)
    for run in runs:
        if run.name in failed and ended(run):
            # It has gone on since.
            del failed[run.name]
    found = write_report(runs, out, failed)
    html = out / "report.html"
    data = {
        "html": str(html),
        "json": str(out / "report.json"),
    }
    return Answer(data, f"{as_text(found)}\nReport: {html}")


def _folder_of(given: Sequence[str], runs: Sequence[Path]) -> str:
    """Return where the report goes: beside its runs, or where all folders that were given lie.

    The workspace of an engine is no place for it: the engine may empty it.
    """
    folders = [Path(folder) for folder in given]
    if len(folders) == 1 and not any(run in (folders[0], folders[0] / run.name) for run in runs):
        # A single run, or the strategies of a comparison.
        return str(runs[0] if len(runs) == 1 else runs[0].parent)
    return os.path.commonpath([folder.absolute() for folder in folders])


# --- strategies


def strategies_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``strategies``."""
    command.add_argument(
        "name",
        metavar="NAME|PATH",
        nargs="?",
        help="show this one, or a part such as Krum, in full; your own by its dotted path",
    )


def strategies(args: argparse.Namespace) -> Answer:
    """List the strategies that a federation can be run with, or show one in full.

    It can be one of your own. Every strategy also takes the parts of docs/methods/composition.md.

    examples:
      monai-fairfl strategies
      monai-fairfl strategies FedCE
      monai-fairfl strategies my_methods.MyStrategy
    """
    from monai_fairfl.strategies.base import Strategy
    from monai_fairfl.strategies.registry import find, shipped
    from monai_fairfl.utils.named_classes import arguments_of

    # As a federation is given it, its arguments do not matter here.
    name = (args.name or "").partition("(")[0].strip()
    found = {name: find(name)} if name else shipped()
    described = {}
    lines = []
    for name, kind in found.items():
        own = arguments_of(kind, Strategy if issubclass(kind, Strategy) else object)
        arguments = [one.replace(annotation=one.empty) for one in own.values()]
        if issubclass(kind, Strategy):
            arguments.append(inspect.Parameter("parts", inspect.Parameter.VAR_KEYWORD))
        call = f"{name}{inspect.Signature(arguments)}"
        text = inspect.getdoc(kind) or ""
        described[name] = {"call": call, "docstring": text}
        shown = text if args.name else text.partition("\n\n")[0]
        lines += [call, textwrap.indent(shown, "    "), ""]
    return Answer({"strategies": described}, "\n".join(lines))
