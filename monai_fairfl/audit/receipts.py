# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a ledger is still the one whose heads the sites were sent.

Each record holds the SHA-256 of the line before. So the chain alone shows a record that was changed
by itself, and not a ledger whose later hashes were mended, whose end was cut off, or that was
written again as a whole. A head that was stored elsewhere shows all of these, up to the record that
it is of. Nothing shows a change of what was written after the newest stored head.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.run.ledger import no_record_in, read_ledger_and_heads
from monai_fairfl.run.records import DIGEST

logger = logging.getLogger(__name__)

WHERE_RECEIPTS_ARE = (
    "a site's private folder: sites/SITE/state of the run, fairfl/SITE/state of the site's NVFlare "
    "workspace, or of the site's folder with Flower"
)
"""The folder of a site's ``receipts.jsonl``, for errors."""

KINDS = {"client": str, "run": str, "round": int, "head": str}
"""What every receipt has, and of which type."""


@dataclass(frozen=True)
class Receipt:
    """One line of a site's ``receipts.jsonl``, as a site's client writes it.

    Args:
        client: whose it is.
        run: name of the run.
        round: of the request, from 0; the number of rounds for the closing ones.
        head: of the ledger, that came with the request.
        update: SHA-256 of the update that the client sent; ``None`` where it sent none.
        ended: whether the request only brought the head of the whole ledger.

    >>> receipt = Receipt("elm", run="fedce", round=1, head="ab12", update="cd34", ended=False)
    >>> print(f"{receipt} has the head of the first {receipt.records} records")
    elm's receipt of round 1 has the head of the first 2 records
    """

    client: str
    run: str
    round: int
    head: str
    update: str | None
    ended: bool

    @property
    def records(self) -> int:
        """Number of records of which ``head`` is the last one's: the opening is the first."""
        return self.round + 2 if self.ended else self.round + 1

    def __str__(self) -> str:
        what = "the end" if self.ended else f"round {self.round}"
        return f"{self.client}'s receipt of {what}"


@dataclass(frozen=True)
class Proof:
    """What stored heads show of a ledger.

    Args:
        records: number of its records.
        covered: number of records, from the first, that the newest fitting head covers.
        problems: what does not fit, in the order of the rounds; empty where everything does.
        notes: what a reader should know and is no problem.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start"})
    ...     proof = check_head(folder, "0" * 64)
    >>> proof.covered, proof.problems[0]
    (0, 'no record has the head 000...000: the ledger was changed, or cut off, before it')
    """

    records: int
    covered: int
    problems: Sequence[str]
    notes: Sequence[str] = ()


def check_head(run_dir: str | Path, head: str) -> Proof:
    """Compare a ledger with a head that was stored elsewhere.

    Args:
        run_dir: of the run.
        head: SHA-256, 64 hexadecimal digits, as ``monai-fairfl verify`` prints it.

    Raises:
        FederationError: when the ledger's chain is broken; it names the line.
        ConfigError: when ``head`` is no SHA-256, or there is no ledger.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start"})
    ...     stored = ledger.head
    ...     ledger.append({"kind": "round", "round": 0})
    ...     proof = check_head(folder, stored)
    >>> f"{proof.covered} of {proof.records} records are as they were", proof.problems
    ('1 of 2 records are as they were', ())
    """
    head = head.strip().lower()
    if not DIGEST.fullmatch(head):
        raise ConfigError(f"a head has 64 hexadecimal digits, as verify prints it, got {head!r}")
    _, heads = read_ledger_and_heads(Path(run_dir) / "ledger.jsonl")
    if head in heads:
        return Proof(len(heads), heads.index(head) + 1, ())
    problem = f"no record has the head {head}: the ledger was changed, or cut off, before it"
    return Proof(len(heads), 0, (problem,))


def read_receipts(file: str | Path) -> list[Receipt]:
    """The receipts in a site's file, in the order in which they were written.

    A line that a crash cut short does not count, and is logged.

    Raises:
        ConfigError: when there is no such file, or a line is no receipt; it is named.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Request
    >>> from monai_fairfl.client.state import ClientState
    >>> with TemporaryDirectory() as folder:
    ...     asked = Request("elm", "train", {}, run="fedce", round=0, ledger_head="ab12")
    ...     ClientState(folder).add_receipt(asked, "cd34")
    ...     (receipt,) = read_receipts(folder + "/receipts.jsonl")
    >>> receipt.head, receipt.update
    ('ab12', 'cd34')
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{path} is no file: give the receipts.jsonl in {WHERE_RECEIPTS_ARE}")
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            plain = json.loads(line)
        except ValueError:
            logger.warning("%s, line %d was cut short and does not count", path, number)
            continue
        is_receipt = isinstance(plain, dict) and all(
            isinstance(plain.get(name), kind) for name, kind in KINDS.items()
        )
        if not is_receipt or plain["round"] < 0:
            raise ConfigError(
                f"{path}, line {number} is no receipt: client, run and head must be texts, and "
                f"round a whole number, got {plain!r:.200}"
            )
        required = {name: plain[name] for name in KINDS}
        ended = plain.get("ended") is True
        found.append(Receipt(**required, update=plain.get("update"), ended=ended))
    return found


def check_receipts(run_dir: str | Path, receipts: Sequence[Receipt]) -> Proof:
    """Compare a ledger with the receipts of its sites.

    Two things must hold: the head of each receipt is that of the ledger before the receipt's round,
    and the update that the ledger records for a client is one that the client sent in that round.

    Args:
        run_dir: of the run.
        receipts: of one site or of several; those of other runs do not count.

    Raises:
        FederationError: when the ledger's chain is broken; it names the line.
        ConfigError: when no receipt is of this run, or its ledger has no record yet.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "run": "fedce"})
    ...     ledger.append({"kind": "round", "round": 0})
    ...     receipt = Receipt("elm", "fedce", 1, ledger.head, update=None, ended=False)
    ...     ledger.truncate(1)
    ...     print(check_receipts(folder, [receipt]).problems[0])
    elm's receipt of round 1 does not fit: the ledger had 2 records then and has 1 now, and ...
    """
    path = Path(run_dir) / "ledger.jsonl"
    records, heads = read_ledger_and_heads(path)
    if not records:
        raise ConfigError(no_record_in(path))
    run = records[0].get("run")
    own = [receipt for receipt in receipts if receipt.run == run]
    if not own:
        others = sorted({receipt.run for receipt in receipts})
        raise ConfigError(
            f"no receipt is of run {run!r} ({path.parent}), they are of {others}: give those that "
            f"its sites have in {WHERE_RECEIPTS_ARE}"
        )
    covered = 0
    problems = []
    notes = []
    for receipt in sorted(own, key=lambda receipt: (receipt.records, receipt.client)):
        count = receipt.records
        if heads[count - 1 : count] == [receipt.head]:
            covered = count
        elif receipt.ended and _went_on_after(receipt, own):
            notes.append(f"{receipt} is of an end after which the run went on for more rounds")
        else:
            first = "the opening" if covered == 0 else f"the record of round {covered - 1}"
            problems.append(
                f"{receipt} does not fit: the ledger had {count} records then and has {len(heads)} "
                f"now, and from {first} on they were changed, or cut off"
            )
    problems += _updates_that_nobody_sent(own, records)
    return Proof(len(records), covered, tuple(problems), tuple(notes))


def _went_on_after(end: Receipt, receipts: Sequence[Receipt]) -> bool:
    """Whether the client of a receipt of an end took part in a later round, which replaced it.

    The closing requests before the end have the number of the next round, and no update.
    """
    for receipt in receipts:
        is_of_next_round = receipt.round == end.round and receipt.update is not None
        if receipt.client == end.client and (receipt.round > end.round or is_of_next_round):
            return True
    return False


def _updates_that_nobody_sent(
    receipts: Sequence[Receipt], records: Sequence[Mapping[str, Any]]
) -> list[str]:
    """One text for each update on record that its client did not send, by its receipts."""
    texts = []
    for record in records:
        for client, digest in record.get("digests", {}).items():
            own = [receipt for receipt in receipts if receipt.client == client]
            sent = [receipt.update for receipt in own if receipt.round == record["round"]]
            if own and digest not in sent:
                texts.append(
                    f"the record of round {record['round']} names an update of {client} that is in "
                    f"none of {client}'s receipts of that round: {digest}"
                )
    return texts
