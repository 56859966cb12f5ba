# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``withdraw``: a hospital's files of a finished run are deleted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fairfl.cli.command import Add, Answer, add_allow_import

if TYPE_CHECKING:
    from monai_fairfl.audit import Statement

NOT_DONE = 2
"""Exit code where the user declined."""


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "withdraw",
        withdraw,
        "withdraw runs/fedce birch --dry-run\n"
        "withdraw runs/fedce birch\n"
        "withdraw runs/fedce birch --all-updates --yes --json",
    )
    command.add_argument(
        "run_dir", metavar="RUN_DIR", help="folder of a finished federation or comparison"
    )
    command.add_argument("site", metavar="SITE", help="site that withdraws")
    command.add_argument(
        "--dry-run", action="store_true", help="show what would be deleted, and change nothing"
    )
    command.add_argument("--yes", action="store_true", help="delete without asking")
    command.add_argument(
        "--all-updates",
        action="store_true",
        help=(
            "delete the recorded updates of all sites, so that nobody can compute "
            "this site's update from the others"
        ),
    )
    command.add_argument(
        "--with-others",
        action="store_true",
        help="also write the other sites' names, weights and contributions into the statement",
    )
    add_allow_import(command)


def withdraw(args: argparse.Namespace) -> Answer:
    """Delete what a finished run stores of one site, and write a statement for the site.

    The command deletes the site's recorded updates, its reward, its folder and data list, the
    valuations that name it, and the models between the rounds, from which its updates could be
    computed. The ledger and the global models stay as they are. The statement (withdrawn/SITE.md
    and SITE.json) lists what was deleted and what stays, with the command that trains the run
    without the site. docs/withdrawing.md says what the site does on its own machine.
    """
    from monai_fairfl.audit import plan_withdrawal
    from monai_fairfl.audit import withdraw as delete
    from monai_fairfl.errors import ConfigError

    arguments = (args.run_dir, args.site, args.all_updates, args.allow_import, args.with_others)
    plan = plan_withdrawal(*arguments)
    if all(statement.ended for statement in plan):
        lines = [f"{args.site} withdrew already; nothing was changed.", *_places(args, plan)]
        return _answer(plan, lines)
    if args.dry_run:
        return _answer(plan, [*_plan_lines(plan), "Nothing was changed (--dry-run)."])
    if not args.yes:
        if args.json:
            raise ConfigError("with --json nobody is asked: add --yes, or --dry-run to look first")
        print("\n".join(_plan_lines(plan)))
        if not _is_confirmed():
            return Answer({"error": "nothing was deleted"}, "Nothing was deleted.", NOT_DONE)

    done = delete(*arguments)
    lines = [f"{args.site} withdrew.", *_places(args, done), f"Retrain: {done[0].retrain}"]
    if (Path(args.run_dir) / "report.json").exists():
        lines.append(_report_again(args.run_dir))
    return _answer(done, lines)


def _answer(statements: Sequence[Statement], lines: Sequence[str]) -> Answer:
    data = {"statements": [asdict(statement) for statement in statements]}
    return Answer(data, "\n".join(lines))


def _plan_lines(plan: Sequence[Statement]) -> list[str]:
    """What would be deleted, and what would remain."""
    lines = []
    for statement in plan:
        total = sum(entry["bytes"] for entry in statement.deleted)
        files = len(statement.deleted)
        lines.append(f"{statement.run}: {files} files, {total} bytes, would be deleted")
        lines += [f"  {entry['path']}" for entry in statement.deleted]
        lines += [f"  written again: {entry['path']}" for entry in statement.rewritten]
    return [*lines, *_remains_lines(plan)]


def _remains_lines(plan: Sequence[Statement]) -> list[str]:
    """What would remain; what is the same in several runs is listed once."""
    runs_of: dict[str, list[str]] = {}
    for statement in plan:
        for entry in statement.remains:
            runs_of.setdefault(f"{entry['what']}: {entry['why']}", []).append(statement.run)
    lines = ["What remains:"]
    for text, runs in runs_of.items():
        only = f" ({', '.join(runs)})" if len(runs) < len(plan) else ""
        lines.append(f"  {text}{only}")
    return lines


def _places(args: argparse.Namespace, statements: Sequence[Statement]) -> list[str]:
    """Where the statements are."""
    from monai_fairfl.run_folder.withdrawn import statement_file

    lines = []
    for statement in statements:
        run = Path(args.run_dir)
        if not (run / "ledger.jsonl").exists():
            run = run / statement.run
        file = statement_file(run, args.site)
        lines.append(f"Statement: {file.with_suffix('.md')}, {file}")
    return lines


def _is_confirmed() -> bool:
    """Ask, and take everything but a yes as a no."""
    print("Delete these files? They cannot be restored. [y/N] ", end="", flush=True)
    answer = sys.stdin.readline()
    return answer.strip().lower() in ("y", "yes")


def _report_again(run_dir: str) -> str:
    """Write the report of the folder again, which says now that the site withdrew."""
    from monai_fairfl.report.write import failures_of, write_report_if_possible

    if write_report_if_possible([run_dir], run_dir, failures_of(run_dir)) is None:
        return f"The report could not be written again: try monai-fairfl report {run_dir}"
    return f"The report was written again: {Path(run_dir) / 'report.html'}"
