# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about finished runs: ``report``, ``verify`` and ``value``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl import audit
from monai_fairfl.audit.playing import MEANING
from monai_fairfl.bundle.comparison import PLAN, cells_of
from monai_fairfl.bundle.configuration import FEDERATE
from monai_fairfl.cli.answers import LOG, Answer, say
from monai_fairfl.cli.running import run_line
from monai_fairfl.errors import ConfigError, FairFLError
from monai_fairfl.games import MOST_PLAYERS
from monai_fairfl.messages import to_json
from monai_fairfl.report import as_text, write_comparison, write_report
from monai_fairfl.report.collect import (
    find_runs,
    read_records,
    read_records_and_head,
    read_valuations,
)
from monai_fairfl.run.checkpoint import Schedule
from monai_fairfl.run.resuming import SETTINGS, ended, recorded_config
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.utils.tables import text_of_table

SAID = {
    "files": "{checked} models, checkpoints and rounds of updates have the ledger's digests",
    "stored_head": "the head covers {covered} of {records} records, and no change of later ones",
    "receipts": "receipts cover {covered} of {records} records, and no change of later ones",
    "replay": "{numbers} numbers of {rounds} rounds follow from the recorded replies",
}
"""Kind of a check -> what is said of what it found."""


def report(args: argparse.Namespace) -> Answer:
    """Carry out ``report``; that of a comparison over seeds or folds is written again."""
    folder = Path(args.run_dir[0])
    plan = recorded_config(folder, PLAN)
    if plan and not args.run_dir[1:] and not args.out:
        cells = [
            cell.folder
            for cell in cells_of(folder, plan["seeds"], plan["folds"], plan["strategies"])
            if ended(cell.folder)
        ]
        failed = recorded_config(folder, "comparison.json").get("failed")
        found = write_comparison(folder, plan, cells, failed)
        data = {name: str(folder / f"comparison.{name}") for name in ("html", "json")}
        return Answer(data, f"{as_text(found)}\nReport: {data['html']}")
    runs = find_runs(args.run_dir)
    # Beside the runs: an engine may empty its workspace.
    out = Path(args.out or os.path.commonpath([run.absolute() for run in runs]))
    found = write_report(runs, out)
    data = {"html": str(out / "report.html"), "json": str(out / "report.json")}
    return Answer(data, f"{as_text(found)}\nReport: {data['html']}")


# --- verify


def verify(args: argparse.Namespace) -> Answer:
    """Carry out ``verify``."""
    paths = find_runs([args.run_dir])
    if (args.head or args.what_if) and len(paths) > 1:
        raise ConfigError(f"{args.run_dir} holds several runs: name one of {[*map(str, paths)]}")
    if args.what_if:
        return _what_if(paths[0], args)
    receipts = [receipt for file in args.receipt for receipt in audit.read_receipts(file)]

    runs: dict[str, dict[str, Any]] = {}
    lines = []
    code = 0
    for path in paths:
        found: dict[str, Any] = {}
        runs[str(path)] = found
        try:
            records, head = read_records_and_head(path)
        except FairFLError as error:
            found["problems"] = [str(error)]
            code = 2
            lines.append(f"{path}: NOT RIGHT: {error}")
            continue
        kinds = [record["kind"] for record in records]
        found |= {"rounds": kinds.count("round"), "finished": "end" in kinds, "head": head}
        numbers = ", ".join(f"{name} {value}" for name, value in found.items())
        lines.append(f"{path}: the chain is intact, {numbers}")
        checks: dict[str, Callable[[], Any]] = {"files": partial(audit.check_files, path)}
        if args.head:
            checks["stored_head"] = partial(audit.check_head, path, args.head)
        if args.receipt:
            checks["receipts"] = partial(audit.check_receipts, path, receipts)
        if args.replay:
            checks["replay"] = partial(audit.replay, path, args.allow_import)
        for kind, check in checks.items():
            try:
                proof = to_json(asdict(check()))
                proof.setdefault("problems", proof.pop("differences", None))
                lines.append(f"  {SAID[kind].format(**proof)}")
            except FairFLError as error:
                # Of several runs the others go on.
                proof = {"refused": str(error), "problems": [str(error)]}
            found[kind] = proof
            lines += [f"  NOT RIGHT: {problem}" for problem in proof["problems"]]
            code = 2 if proof["problems"] else code
        if not args.head and not args.receipt:
            lines.append("  The last record may have changed, or all hashes: --receipt shows it")
    return Answer({"runs": runs}, "\n".join(lines), code)


def _what_if(run: Path, args: argparse.Namespace) -> Answer:
    """Compute a run's weights again without a site, or by another strategy."""
    strategy = strategy_of(args.strategy) if args.strategy else None
    found = audit.what_if(run, args.without, strategy, args.allow_import)
    rows = []
    for site, numbers in found.sites.items():
        row = [site]
        for kind in ("weight", "contribution"):
            for value in (numbers[kind]["recorded"], numbers[kind]["what_if"]):
                row.append("–" if value is None else f"{value:.4f}")
        rows.append(row)
    table = text_of_table(["site", "weight", "what-if", "contribution", "what-if"], rows)
    return Answer({**asdict(found), "meaning": MEANING}, f"{table}\nThese are {MEANING}.")


# --- value


def value(args: argparse.Namespace) -> Answer:
    """Carry out ``value``."""
    run, *others = find_runs([Path(args.run_dir).absolute()])
    # The settings of several strategies are above their runs.
    folder = run if (run / SETTINGS).is_file() else run.parent
    if others and folder == run:
        raise ConfigError(f"{args.run_dir} holds several runs: name one of them, such as {run}")
    runs = find_runs([folder])
    keys = recorded_config(folder).get("keys")
    if keys is None or not all(map(ended, runs)):
        raise ConfigError(
            f"{folder} must be a run of train that has ended; over an engine use LeaveOneOut"
        )
    sites = len(read_records(runs[0])[0]["clients"])
    kind, methods = "Retraining", ["leave_one_out"]
    if keys["record_updates"]:
        kind = "Reconstruction"
        methods.append("exact" if sites <= MOST_PLAYERS else "gtg")
    elif not args.retrain:
        seconds = max(sum(Schedule.read(run).seconds.values()) for run in runs)
        minutes = f"about {seconds * (sites + 1) / 60:.0f} minutes"
        text = f"{folder} recorded no updates: {sites + 1} federations would train for {minutes}"
        wanted = ""
        if sys.stdin.isatty():
            say(f"{text}. Train them? [y/N]")
            wanted = sys.stdin.readline().strip().lower()
        if wanted not in ("y", "yes"):
            raise ConfigError(f"{text}: monai-fairfl value {folder} --retrain trains them")
    judged = {"judged_by": "others"} if args.others_judge else {}
    target = {"_target_": f"monai_fairfl.valuation.{kind}", **judged}
    keys["valuations"] = [{**target, "method": method} for method in methods]
    keys |= {"run_dir": folder, "resume": True, "report": True}
    run_line([str(Path(keys["bundle_root"]) / FEDERATE)], keys, folder / LOG, args.verbose)

    found = {}
    for run in runs:
        found[read_records(run)[0]["name"]] = read_valuations(run)
    lines = [_table(name, valuations) for name, valuations in found.items() if valuations]
    page = folder / "report.html"
    data = {"run": str(folder), "values": found, "report": str(page)}
    return Answer(data, "\n".join([*lines, f"Report: {page}"]))


def _table(name: str, valuations: Sequence[Mapping[str, Any]]) -> str:
    """A line for each hospital of a run, with its values and their intervals."""
    rows = []
    for site in valuations[0]["values"]:
        row = [site]
        for valuation in valuations:
            cell = f"{valuation['values'][site]['value']:+.4f}"
            if interval := (valuation.get("intervals") or {}).get(site):
                cell += " ({:+.4f} to {:+.4f})".format(*interval)
            row.append(cell)
        rows.append(row)
    return text_of_table([name, *[one["name"] for one in valuations]], rows)
