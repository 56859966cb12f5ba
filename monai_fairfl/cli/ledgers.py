# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``verify``: what a ledger proves, and what would have followed from it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import Answer

NOT_RIGHT = 2
"""Exit code of what was checked and is not right."""

UNCHECKED = (
    "  the chain alone cannot show a change of the last record, or recomputed hashes: "
    "give --head or --receipt"
)
"""What the chain alone leaves open; a head or a receipt says itself how far it reaches."""


def verify_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``verify``."""
    command.add_argument(
        "run_dir",
        metavar="RUN",
        help=(
            "folder of a run, or a workspace that contains one; runs in its "
            "subfolders are checked, too"
        ),
    )
    command.add_argument(
        "--head", metavar="SHA256", help="head of the ledger that you stored elsewhere"
    )
    command.add_argument(
        "--receipt",
        nargs="+",
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
        "--strategy",
        metavar="STRATEGY",
        help="use this strategy in place of the run's own, such as \"FedCE('sum')\"",
    )
    command.add_argument(
        "--allow-import",
        action="store_true",
        help=(
            "import a strategy outside this package if the ledger names one; this "
            "runs the strategy's code"
        ),
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
    from monai_fairfl.errors import ConfigError, FederationError
    from monai_fairfl.report.collect import find_runs
    from monai_fairfl.run.resuming import kept_results

    folder = Path(args.run_dir)
    # Heads and receipts are of the run, not of what it was before it was extended.
    earlier = kept_results(folder)
    inner_runs = []
    for file in sorted(folder.glob("*/ledger.jsonl")):
        if file.parent not in earlier:
            inner_runs.append(file.parent)
    paths = find_runs([folder, *inner_runs])
    if args.head and len(paths) > 1:
        names = ", ".join(str(path) for path in paths)
        raise ConfigError(f"a head is of one run: name its folder, one of {names}")

    runs: dict[str, dict[str, Any]] = {}
    lines = []
    intact = []
    for path in paths:
        try:
            runs[str(path)] = _summary_of_run(path)
        except FederationError as error:
            if len(paths) == 1:
                raise
            runs[str(path)] = {"problems": [str(error)]}
            lines.append(f"{path}: {error}")
        else:
            intact.append(path)
    is_right = len(intact) == len(paths)

    paths_with_receipts = _with_receipts(intact, args.receipt)
    for path in intact:
        run = runs[str(path)]
        lines.append(_line_of_run(str(path), run))
        proofs = _proofs_of(path, args, path in paths_with_receipts)
        for proof in proofs.values():
            lines += proof.pop("lines")
            is_right = is_right and not proof["problems"]
        if "stored_head" not in proofs and "receipts" not in proofs:
            lines.append(UNCHECKED)
        run.update(proofs)
    return Answer({"runs": runs}, "\n".join(lines), 0 if is_right else NOT_RIGHT)


def _proofs_of(
    path: Path, args: argparse.Namespace, has_receipts: bool
) -> dict[str, dict[str, Any]]:
    """Kind -> what it shows of a run, with the ``lines`` of the text."""
    proofs = {"files": _proof_by_files(path)}
    if args.head:
        proofs["stored_head"] = _proof_by_head(path, args.head)
    if has_receipts:
        proofs["receipts"] = _proof_by_receipts(path, args.receipt)
    if args.replay:
        proofs["replay"] = _replayed(path, args.allow_import)
    return proofs


def _summary_of_run(path: Path) -> dict[str, Any]:
    """Count the rounds of a run whose chain is intact."""
    from monai_fairfl.report.collect import read_records_and_head

    records, head = read_records_and_head(path)
    kinds = [record["kind"] for record in records]
    return {"rounds": kinds.count("round"), "finished": "end" in kinds, "head": head}


def _line_of_run(path: str, run: Mapping[str, Any]) -> str:
    finished = "not finished"
    if run["finished"]:
        finished = "finished"
    return f"{path}: the chain is intact, {run['rounds']} rounds, {finished}, head {run['head']}"


def _with_receipts(paths: Sequence[Path], files: Sequence[str] | None) -> list[Path]:
    """The runs that some receipt is of.

    Raises:
        ConfigError: when files of receipts are given, and none is of any of these runs.
    """
    from monai_fairfl.audit import read_receipts
    from monai_fairfl.audit.receipts import WHERE_RECEIPTS_ARE
    from monai_fairfl.errors import ConfigError
    from monai_fairfl.report.collect import read_records

    if not files:
        return []
    names: set[str] = set()
    for file in files:
        names.update(receipt.run for receipt in read_receipts(file))
    if not names:
        raise ConfigError(
            f"no receipt is in {', '.join(files)}: a site writes one when a run's server asks it; "
            f"give the receipts.jsonl in {WHERE_RECEIPTS_ARE}"
        )
    found = [path for path in paths if read_records(path)[0].get("run") in names]
    if not found:
        raise ConfigError(
            f"no receipt is of {', '.join(map(str, paths))}; they are of runs {sorted(names)}"
        )
    return found


def _proof_by_files(path: Path) -> dict[str, Any]:
    from monai_fairfl.audit import Files, check_files
    from monai_fairfl.errors import FairFLError

    try:
        found = asdict(check_files(path))
    except FairFLError as error:
        # Of several runs the others go on.
        found = asdict(Files(0, [str(error)]))
    lines = [f"  {note}" for note in found["notes"]]
    lines += [f"  NOT RIGHT: {problem}" for problem in found["problems"]]
    checked = f"  {found['checked']} models, checkpoints and rounds of updates"
    lines.append(f"{checked} were compared with the digests of the ledger")
    return {**found, "lines": lines}


def _proof_by_head(path: Path, head: str) -> dict[str, Any]:
    from monai_fairfl.audit import check_head

    return _proof(asdict(check_head(path, head)), "the stored head")


def _proof_by_receipts(path: Path, files: Sequence[str]) -> dict[str, Any]:
    from monai_fairfl.audit import check_receipts, read_receipts

    receipts = []
    for file in files:
        receipts += read_receipts(file)
    return _proof(asdict(check_receipts(path, receipts)), "the newest fitting receipt")


def _proof(proof: dict[str, Any], by_what: str) -> dict[str, Any]:
    """What stored heads show, with the lines of the text."""
    lines = [f"  {note}" for note in proof["notes"]]
    lines += [f"  NOT RIGHT: {problem}" for problem in proof["problems"]]
    covered, records = proof["covered"], proof["records"]
    if not proof["problems"]:
        text = f"  {by_what} covers {covered} of {records} records"
        if covered < records:
            text += f"; nothing shows a change of the last {records - covered}"
        lines.append(text)
    return {**proof, "lines": lines}


def _replayed(path: Path, allow_import: bool) -> dict[str, Any]:
    from monai_fairfl.audit import replay
    from monai_fairfl.errors import FairFLError

    try:
        found = replay(path, allow_import)
    except FairFLError as error:
        # Of several runs the others go on.
        return {"refused": str(error), "problems": [str(error)], "lines": [f"  NO REPLAY: {error}"]}
    largest = found.largest if found.largest != float("inf") else None
    lines = [f"  NOT RIGHT: {difference}" for difference in found.differences]
    text = f"  replay: {found.numbers} numbers of {found.rounds} rounds computed again"
    text += f", largest difference {found.largest:.3g}"
    if found.largest > 0:
        text += f" ({found.where})"
    lines.append(text)
    return {
        "rounds": found.rounds,
        "numbers": found.numbers,
        "largest_difference": largest,
        "where": found.where,
        "problems": list(found.differences),
        "lines": lines,
    }


# --- what-if


def _what_if(args: argparse.Namespace) -> Answer:
    """Compute a run's weights again without a site, or by another strategy."""
    from monai_fairfl.audit import what_if as answer_of
    from monai_fairfl.audit.questions import MEANING
    from monai_fairfl.report.collect import find_run
    from monai_fairfl.strategies.registry import strategy_of

    strategy = None
    if args.strategy:
        strategy = strategy_of(args.strategy)
    found = answer_of(find_run(args.run_dir), args.without, strategy, args.allow_import)
    data = {**asdict(found), "meaning": MEANING}
    return Answer(data, _table(data))


def _table(data: Mapping[str, Any]) -> str:
    """The answer for a terminal."""
    question = data["question"]
    title = f"{question['strategy']}, {len(data['rounds'])} rounds"
    if "without" in question:
        title += f", without {question['without']}"
    rows = [("site", "weight", "what-if", "contribution", "what-if")]
    for site, numbers in data["sites"].items():
        weight, contribution = numbers["weight"], numbers["contribution"]
        rows.append(
            (
                site,
                _number(weight["recorded"]),
                _number(weight["what_if"]),
                _number(contribution["recorded"]),
                _number(contribution["what_if"]),
            )
        )
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(cell) for cell in column))
    lines = [title]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    lines.append(f"These are {data['meaning']}.")
    if data["first_round_is_exact"]:
        lines.append("For the first round the answer is exact.")
    else:
        lines.append(f"The first round, too, might have been another one: {data['why_not']}.")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
