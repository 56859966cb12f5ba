# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about finished runs and the strategies."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from monai_fairfl.cli.command import Add, Answer


def report(args: argparse.Namespace) -> Answer:
    """Write the report of one run, or of several side by side."""
    from monai_fairfl.report import as_text, write_report

    out = Path(args.out or os.path.commonpath([Path(folder).absolute() for folder in args.run_dir]))
    found = write_report(args.run_dir, out)
    html, data = str(out / "report.html"), str(out / "report.json")
    return Answer(
        {"html": html, "json": data, "sentences": found["sentences"]},
        f"{as_text(found)}\nReport: {html}",
    )


def verify(args: argparse.Namespace) -> Answer:
    """Check the chain of a run's ledger: that nothing before its last record was damaged or changed
    by itself.
    """
    from monai_fairfl.report.collect import find_runs, read_records
    from monai_fairfl.run_folder.ledger import head_of

    folder, runs = Path(args.run_dir), {}
    for path in find_runs(
        [folder, *(file.parent for file in sorted(folder.glob("*/ledger.jsonl")))]
    ):
        kinds, head = [record["kind"] for record in read_records(path)], head_of(
            path / "ledger.jsonl"
        )
        runs[str(path)] = {"rounds": kinds.count("round"), "finished": "end" in kinds, "head": head}
    lines = [
        f"{path}: the chain holds, {run['rounds']} rounds, {'' if run['finished'] else 'not '}finished, "
        f"head {run['head']}"
        for path, run in runs.items()
    ]
    return Answer({"runs": runs}, "\n".join(lines))


def strategies(args: argparse.Namespace) -> Answer:
    """List the strategies that a federation can be run with, or show one in full, also one of your
    own.
    """
    from monai_fairfl.strategies import catalogue

    found = {
        name: catalogue.describe(name)
        for name in ([args.name] if args.name else catalogue.shipped())
    }
    text = (
        catalogue.as_page(args.name, found[args.name]) if args.name else catalogue.as_table(found)
    )
    return Answer({"strategies": found}, text)


def add_commands(add: Add) -> None:
    """``report``, ``verify``, ``strategies``."""
    sub = add("report", report, "report runs/first\nreport runs/fedavg runs/fedce --out comparison")
    sub.add_argument("run_dir", nargs="+", metavar="RUN_DIR", help="run_dir of a federation")
    sub.add_argument(
        "--out",
        metavar="DIR",
        help="for report.html, report.json and the CSV files (default: the run, or what holds all runs)",
    )

    sub = add("verify", verify, "verify runs/first")
    sub.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        help="run_dir of a federation; runs in its folders are checked, too",
    )

    sub = add(
        "strategies", strategies, "strategies\nstrategies FedCE\nstrategies my_methods.MyStrategy"
    )
    sub.add_argument(
        "name",
        metavar="NAME|PATH",
        nargs="?",
        help="show this one in full, with its formula and arguments; one of your own by its dotted path, "
        "its folder on PYTHONPATH",
    )
