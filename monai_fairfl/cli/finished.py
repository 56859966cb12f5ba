# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about finished runs: ``report``, and ``verify``, what a ledger proves or answers."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monai_fairfl.cli.options import Answer
from monai_fairfl.errors import ConfigError, FairFLError

NOT_RIGHT = 2
"""Exit code of what was checked and is not right."""

UNCHECKED = (
    "  the chain alone cannot show a change of the last record, or recomputed hashes: "
    "give --head or --receipt"
)
"""What the chain alone leaves open; a head or a receipt says itself how far it reaches."""


WORDS = {
    "files": "{checked} models, checkpoints and rounds of updates were compared with the digests "
    "of the ledger",
    "stored_head": "the head covers {covered} of {records} records, and no change of later ones",
    "receipts": "receipts cover {covered} of {records} records, and no change of later ones",
    "replay": "replay: {numbers} numbers of {rounds} rounds computed again, largest difference "
    "{largest_difference} {where}",
}
"""Kind of a check -> what is said of what it found."""


def report_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    command.add_argument(
        "run_dir", nargs="+", metavar="RUN", help="folder of a run, or a workspace with one"
    )
    command.add_argument(
        "--out", metavar="DIR", help="folder for all that is written (default: that of all runs)"
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
    page = out / "report.html"
    data = {"html": str(page), "json": str(page.with_suffix(".json"))}
    return Answer(data, f"{as_text(found)}\nReport: {page}")


def _folder_of(given: Sequence[str], runs: Sequence[Path]) -> str:
    """Return where the report goes: beside its runs, or where all folders that were given lie.

    The workspace of an engine is no place for it: the engine may empty it.
    """
    folders = [Path(folder) for folder in given]
    if len(folders) == 1 and not any(run in (folders[0], folders[0] / run.name) for run in runs):
        # A single run, or the strategies of a comparison.
        return str(runs[0] if len(runs) == 1 else runs[0].parent)
    return os.path.commonpath([folder.absolute() for folder in folders])


# --- verify


def verify_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``verify``."""
    command.add_argument(
        "run_dir", metavar="RUN", help="folder of a run or of several, or a workspace with one"
    )
    command.add_argument(
        "--head", metavar="SHA256", help="head of the ledger that you stored elsewhere"
    )
    command.add_argument(
        "--receipt",
        nargs="+",
        default=[],
        metavar="FILE",
        help="receipts.jsonl of one or several sites; receipts of other runs are ignored",
    )
    command.add_argument(
        "--replay",
        action="store_true",
        help="compute every weight and contribution again from the recorded replies, and compare",
    )
    what_if = command.add_argument_group("another question to the ledger, without training")
    what_if.add_argument(
        "--what-if",
        action="store_true",
        help="compute the weights again without a site, or by another strategy",
    )
    what_if.add_argument("--without", metavar="SITE", help="leave this site out of every round")
    what_if.add_argument(
        "--strategy", help="use this one in place of the run's own, such as \"FedCE('sum')\""
    )
    command.add_argument(
        "--allow-import",
        action="store_true",
        help="import a strategy outside this package if the ledger names one; this runs its code",
    )


def verify(args: argparse.Namespace) -> Answer:
    """Check the chain of a run's ledger, its files, and what stored heads and its numbers show.

    An intact chain shows that no single record before the last one was damaged or changed. Every
    model, checkpoint and recorded update must have the digest that the ledger names. A head
    or a receipt that was stored elsewhere shows every change up to its own record, and none after
    it. A replay shows whether the recorded weights and contributions follow from the recorded
    replies. Of several runs, a broken one hides no other.

    With --what-if the answer has the weights and contributions that follow from the recorded
    updates and measurements. For the first round, this is what would have happened. From the
    second round on, other weights would have led to other models, and so to other updates, which
    nobody recorded. A question that needs more than the ledger contains is refused. A weight in the
    table is the mean over the rounds in which the site has one; a contribution is the site's last
    one. docs/ledger.md explains all of this.

    examples:
      monai-fairfl verify runs/first
      monai-fairfl verify runs/first --receipt runs/first/sites/*/state/receipts.jsonl
      monai-fairfl verify runs/first --replay
      monai-fairfl verify runs/fedce --what-if --without birch
      monai-fairfl verify runs/fedce --what-if --strategy "FedCE('sum')"
    """
    if args.what_if:
        return _what_if(args)
    from monai_fairfl.audit import read_receipts
    from monai_fairfl.audit.proofs import WHERE_RECEIPTS_ARE
    from monai_fairfl.report.collect import find_runs, read_records_and_head
    from monai_fairfl.run.resuming import kept_results

    # Heads and receipts are of the run, not of what it was before it was extended.
    folder = Path(args.run_dir)
    inner = {file.parent for file in folder.glob("*/ledger.jsonl")} - {*kept_results(folder)}
    paths = find_runs([folder, *sorted(inner)])
    if args.head and len(paths) > 1:
        names = ", ".join(map(str, paths))
        raise ConfigError(f"a head is of one run: name its folder, one of {names}")
    receipts = [receipt for file in args.receipt for receipt in read_receipts(file)]
    of_runs = {receipt.run for receipt in receipts}

    runs: dict[str, dict[str, Any]] = {}
    lines = []
    fitting = 0
    for path in paths:
        found: dict[str, Any] = {}
        runs[str(path)] = found
        try:
            records, head = read_records_and_head(path)
        except FairFLError as error:
            if len(paths) == 1:
                raise
            found["problems"] = [str(error)]
            lines.append(f"{path}: NOT RIGHT: {error}")
            continue
        kinds = [record["kind"] for record in records]
        is_of_run = records[0].get("run") in of_runs
        fitting += is_of_run
        found |= {"rounds": kinds.count("round"), "finished": "end" in kinds, "head": head}
        ended = "finished" if found["finished"] else "not finished"
        lines.append(f"{path}: the chain is intact, {found['rounds']} rounds, {ended}, head {head}")
        for kind, check in _checks(path, args, receipts if is_of_run else []).items():
            try:
                found[kind] = check()
                lines += [f"  {note}" for note in found[kind].get("notes", [])]
                lines.append(f"  {WORDS[kind].format(**found[kind])}".rstrip())
            except FairFLError as error:
                # Of several runs the others go on.
                found[kind] = {"refused": str(error), "problems": [str(error)]}
            lines += [f"  NOT RIGHT: {problem}" for problem in found[kind]["problems"]]
        if "stored_head" not in found and "receipts" not in found:
            lines.append(UNCHECKED)
    if args.receipt and not fitting:
        raise ConfigError(
            f"no receipt of {', '.join(map(str, paths))} is in {', '.join(args.receipt)}, only of "
            f"the runs {sorted(of_runs)}: give the receipts.jsonl in {WHERE_RECEIPTS_ARE}"
        )
    is_right = True
    for found in runs.values():
        checked = [found, *[one for one in found.values() if isinstance(one, dict)]]
        is_right = is_right and not any(one.get("problems") for one in checked)
    return Answer({"runs": runs}, "\n".join(lines), 0 if is_right else NOT_RIGHT)


def _checks(
    path: Path, args: argparse.Namespace, receipts: Sequence[Any]
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Kind -> what checks a run, whose result has ``problems``."""
    from monai_fairfl.audit import check_files, check_head, check_receipts, replay

    def replayed() -> dict[str, Any]:
        found = asdict(replay(path, args.allow_import))
        largest = found.pop("largest")
        # JSON has no infinity.
        found["largest_difference"] = largest if largest < math.inf else None
        found["problems"] = found.pop("differences")
        return found

    checks = {"files": lambda: asdict(check_files(path))}
    if args.head:
        checks["stored_head"] = lambda: asdict(check_head(path, args.head))
    if receipts:
        checks["receipts"] = lambda: asdict(check_receipts(path, receipts))
    if args.replay:
        checks["replay"] = replayed
    return checks


def _what_if(args: argparse.Namespace) -> Answer:
    """Compute a run's weights again without a site, or by another strategy."""
    from monai_fairfl.audit import what_if
    from monai_fairfl.audit.playing import MEANING
    from monai_fairfl.report.collect import find_run
    from monai_fairfl.strategies.registry import strategy_of
    from monai_fairfl.utils.tables import text_of_table

    strategy = strategy_of(args.strategy) if args.strategy else None
    found = what_if(find_run(args.run_dir), args.without, strategy, args.allow_import)
    rows = []
    for site, numbers in found.sites.items():
        row = [site]
        for kind in ("weight", "contribution"):
            for value in (numbers[kind]["recorded"], numbers[kind]["what_if"]):
                row.append("–" if value is None else f"{value:.4f}")
        rows.append(row)
    titles = ["site", "weight", "what-if", "contribution", "what-if"]
    exact = "For the first round the answer is exact."
    if not found.first_round_is_exact:
        exact = f"The first round, too, might have been another one: {found.why_not}."
    text = f"{text_of_table(titles, rows)}\nThese are {MEANING}.\n{exact}"
    return Answer({**asdict(found), "meaning": MEANING}, text)
