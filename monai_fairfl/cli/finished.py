# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about finished runs: ``report``, ``verify`` and ``value``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.cli.options import LOG, Answer, add, say
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
    what = "folder of a run, or a workspace with one"
    command.add_argument("run_dir", nargs="+", metavar="RUN", help=what)
    what = "folder for all that is written (default: that of all runs)"
    command.add_argument("--out", metavar="DIR", help=what)


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
    # Beside the runs: an engine may empty its workspace.
    given = Path(args.run_dir[0]).absolute()
    inside = [run.absolute() in (given, given / run.name) for run in runs]
    of_runs = given if all(inside) else os.path.commonpath([run.absolute() for run in runs])
    out = Path(args.out or of_runs)
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


# --- verify


def verify_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``verify``."""
    what = "folder of a run or of several, or a workspace with one"
    command.add_argument("run_dir", metavar="RUN", help=what)
    what = "head of the ledger that you stored elsewhere"
    command.add_argument("--head", metavar="SHA256", help=what)
    what = "receipts.jsonl of one or several sites; receipts of other runs are ignored"
    command.add_argument("--receipt", nargs="+", default=[], metavar="FILE", help=what)
    what = "compute every weight and contribution again from the recorded replies, and compare"
    command.add_argument("--replay", action="store_true", help=what)
    what = "import a strategy outside this package if the ledger names one; this runs its code"
    command.add_argument("--allow-import", action="store_true", help=what)
    asking = command.add_argument_group("another question to the ledger, without training")
    what = "compute the weights again without a site, or by another strategy"
    asking.add_argument("--what-if", action="store_true", help=what)
    asking.add_argument("--without", metavar="SITE", help="leave this site out of every round")
    asking.add_argument("--strategy", help="in place of the run's own, such as \"FedCE('sum')\"")


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
    from monai_fairfl.audit import check_files, check_head, check_receipts, read_receipts
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
    problems: list[str] = []
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
            problems += found["problems"]
            lines.append(f"{path}: NOT RIGHT: {error}")
            continue
        kinds = [record["kind"] for record in records]
        is_of_run = records[0].get("run") in of_runs
        fitting += is_of_run
        found |= {"rounds": kinds.count("round"), "finished": "end" in kinds, "head": head}
        ended = "finished" if found["finished"] else "not finished"
        lines.append(f"{path}: the chain is intact, {found['rounds']} rounds, {ended}, head {head}")
        checks: dict[str, Callable[[], Any]] = {"files": partial(check_files, path)}
        if args.head:
            checks["stored_head"] = partial(check_head, path, args.head)
        if is_of_run:
            checks["receipts"] = partial(check_receipts, path, receipts)
        if args.replay:
            checks["replay"] = partial(_replayed, path, args.allow_import)
        for kind, check in checks.items():
            try:
                proof = found[kind] = asdict(check()) if kind != "replay" else check()
                lines += [f"  {note}" for note in proof.get("notes", [])]
                lines.append(f"  {WORDS[kind].format(**proof)}".rstrip())
            except FairFLError as error:
                # Of several runs the others go on.
                found[kind] = {"refused": str(error), "problems": [str(error)]}
            problems += found[kind]["problems"]
            lines += [f"  NOT RIGHT: {problem}" for problem in found[kind]["problems"]]
        if "stored_head" not in found and "receipts" not in found:
            lines.append(UNCHECKED)
    if args.receipt and not fitting:
        raise ConfigError(
            f"no receipt of {', '.join(map(str, paths))} is in {', '.join(args.receipt)}, only of "
            f"the runs {sorted(of_runs)}: give the receipts.jsonl in {WHERE_RECEIPTS_ARE}"
        )
    return Answer({"runs": runs}, "\n".join(lines), NOT_RIGHT * bool(problems))


def _replayed(path: Path, allow_import: bool) -> dict[str, Any]:
    """What a replay finds, for JSON, which has no infinity."""
    from monai_fairfl.audit import replay

    found = asdict(replay(path, allow_import))
    largest, problems = found.pop("largest"), found.pop("differences")
    finite = largest if largest < math.inf else None
    return {**found, "largest_difference": finite, "problems": problems}


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


# --- value

TITLES = {"leave_one_out": "leave-one-out", "exact": "Shapley", "gtg": "Shapley (GTG)"}
"""Method of a valuation -> its column."""


def value_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``value``."""
    what = "folder of a run of train, demo or try, or of several"
    command.add_argument("run_dir", metavar="RUN", help=what)
    what = "train federations without each hospital, which a run without updates needs"
    command.add_argument("--retrain", action="store_true", help=what)
    what = "no hospital's own scores count for its own value"
    command.add_argument("--others-judge", action="store_true", help=what)
    add(command, "--verbose")


def value(args: argparse.Namespace) -> Answer:
    """Answer what each hospital was worth to a run: leave-one-out and Shapley values.

    With recorded updates (demo, or train --record-updates) nothing is trained: every hospital
    scores the models of coalitions on its validation cases. Without them, the command says what
    training anew would take, and asks. The intervals are over the hospitals that score.
    docs/valuation.md has more kinds of values.

    examples:
      monai-fairfl value demo/run
      monai-fairfl value runs/fedce --retrain
    """
    from monai_fairfl.bundle.configuration import FEDERATE
    from monai_fairfl.cli.running import MonaiLine
    from monai_fairfl.report.collect import find_runs, read_records, read_valuations
    from monai_fairfl.run.resuming import SETTINGS, ended, recorded_config

    folder = find_runs([args.run_dir])[0].absolute()
    if not (folder / SETTINGS).is_file():
        # One of several strategies.
        folder = folder.parent
    keys = recorded_config(folder).get("keys")
    if keys is None:
        raise ConfigError(
            f"{folder} was not trained in processes of this machine. Over NVIDIA FLARE and Flower "
            "the hospitals score in each round: train with the strategy LeaveOneOut; in Python, "
            "give BundleFederation its valuations"
        )
    runs = find_runs([folder])
    if not all(ended(run) for run in runs):
        raise ConfigError(f"{folder} has not ended: the command that began it goes on")
    start = read_records(runs[0])[0]
    if keys["record_updates"]:
        from monai_fairfl.games import MOST_PLAYERS

        kind = "Reconstruction"
        methods = ["leave_one_out", "exact" if len(start["clients"]) <= MOST_PLAYERS else "gtg"]
    else:
        kind, methods = "Retraining", ["leave_one_out"]
        if not args.retrain:
            _ask(folder, runs, len(start["clients"]))
    judged = {"judged_by": "others"} if args.others_judge else {}
    target = {"_target_": f"monai_fairfl.valuation.{kind}", **judged}
    keys["valuations"] = [{**target, "method": method} for method in methods]
    keys |= {"run_dir": str(folder), "resume": True}
    line = MonaiLine([str(Path(keys["bundle_root"]) / FEDERATE)], keys)
    say(f"Into the folder {folder}")
    line.run(folder / LOG, args.verbose)

    found = {}
    lines = []
    for run in runs:
        of_run = [one for one in read_valuations(run) if one["name"].startswith(kind.lower())]
        of_run = [one for one in of_run if one["method"] in methods and one["data"] == "validation"]
        name = read_records(run)[0]["name"]
        found[name] = sorted(of_run, key=lambda one: methods.index(one["method"]))
        lines.append(_table(name, found[name]))
    page = folder / "report.html"
    data = {"run": str(folder), "command": line.text, "values": found, "report": str(page)}
    return Answer(data, "\n".join([*lines, f"Report: {page}"]))


def _ask(folder: Path, runs: Sequence[Path], sites: int) -> None:
    """Say what training anew takes, and end unless a person at a terminal wants it.

    Raises:
        ConfigError: nobody wants it.
    """
    from monai_fairfl.run.checkpoint import Schedule

    seconds = [sum(Schedule.read(run).seconds.values()) for run in runs]
    minutes = max(1, round(max(seconds) * (sites + 1) / 60))
    text = (
        f"{folder} recorded no updates, so {sites + 1} federations would have to be trained, in "
        f"about {minutes} minutes"
    )
    if not sys.stdin.isatty():
        raise ConfigError(f"{text}: monai-fairfl value {folder} --retrain trains them")
    print(f"{text}. Train them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was trained")


def _table(name: str, valuations: Sequence[Mapping[str, Any]]) -> str:
    """A line for each hospital of a run, with its values and their intervals."""
    from monai_fairfl.utils.tables import text_of_table

    if not valuations:
        return f"{name} averages nothing: it has no values"
    rows = []
    for site in valuations[0]["values"]:
        row = [site]
        for valuation in valuations:
            cell = f"{valuation['values'][site]['value']:+.4f}"
            if interval := (valuation.get("intervals") or {}).get(site):
                cell += " ({:+.4f} to {:+.4f})".format(*interval)
            row.append(cell)
        rows.append(row)
    return text_of_table([name, *[TITLES[one["method"]] for one in valuations]], rows)
