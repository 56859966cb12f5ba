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
from monai_fairfl.run_folder.ledger import heads_of, no_record_in, read_ledger_and_heads

logger = logging.getLogger(__name__)

WHERE_RECEIPTS_ARE = (
    "a site's private folder: sites/SITE/state of the run, fairfl/SITE/state of the site's NVFlare "
    "workspace, or of the site's folder with Flower"
)
"""The folder of a site's ``receipts.jsonl``, for errors."""


@dataclass(frozen=True)
class Receipt:
    """One line of a site's ``receipts.jsonl``, as :mod:`monai_fairfl.client.receipts` writes it.

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
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start"})
    ...     proof = check_head(folder, "0" * 64)
    >>> proof.covered, proof.problems[0]
    (0, 'no record has the head 000...000: the ledger was changed, or cut off, at or before ...')
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
    >>> from monai_fairfl.run_folder.ledger import Ledger
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
    if len(head) != 64 or set(head) - set("0123456789abcdef"):
        raise ConfigError(
            f"a head has 64 hexadecimal digits, got {head!r}: give it as verify printed it, whole"
        )
    path = Path(run_dir) / "ledger.jsonl"
    heads = heads_of(path)
    if head in heads:
        return Proof(len(heads), heads.index(head) + 1, ())
    problem = (
        f"no record has the head {head}: the ledger was changed, or cut off, at or before the "
        "record that this head was of"
    )
    if not heads:
        problem = no_record_in(path)
    return Proof(len(heads), 0, (problem,))


def read_receipts(file: str | Path) -> list[Receipt]:
    """The receipts in a site's file, in the order in which they were written.

    A line that a crash cut short does not count, and is logged.

    Raises:
        ConfigError: when there is no such file, or a line is no receipt; it is named.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Request
    >>> from monai_fairfl.client.receipts import Receipts
    >>> with TemporaryDirectory() as folder:
    ...     asked = Request("elm", "train", {}, run="fedce", round=0, ledger_head="ab12")
    ...     Receipts(folder).add(asked, "cd34")
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
        found.append(_receipt(plain, f"{path}, line {number}"))
    return found


def _receipt(plain: Any, where: str) -> Receipt:
    """One receipt, checked for its form."""
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} is no receipt: {plain!r:.60}")
    update = plain.get("update")
    receipt = Receipt(
        plain.get("client", ""),
        plain.get("run", ""),
        plain.get("round", -1),
        plain.get("head", ""),
        update,
        plain.get("ended", False) is True,
    )
    texts = (receipt.client, receipt.run, receipt.head, update or "")
    has_round = isinstance(receipt.round, int) and receipt.round >= 0
    if not has_round or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"{where} is no receipt: client, run and head must be texts, and round a "
            f"whole number, got {plain!r:.200}"
        )
    return receipt


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
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "run": "fedce"})
    ...     ledger.append({"kind": "round", "round": 0})
    ...     receipt = Receipt("elm", "fedce", 1, ledger.head, update=None, ended=False)
    ...     ledger.truncate(1)
    ...     print(check_receipts(folder, [receipt]).problems[0])
    elm's receipt of round 1 does not fit: the ledger had 2 records then, and has 1 now: records ...
    """
    path = Path(run_dir) / "ledger.jsonl"
    records, heads = read_ledger_and_heads(path)
    if not records:
        raise ConfigError(no_record_in(path))
    if not receipts:
        raise ConfigError(
            f"there is no receipt to compare {path} with: give those that read_receipts finds in "
            f"{WHERE_RECEIPTS_ARE}"
        )
    run = records[0].get("run")
    own = [receipt for receipt in receipts if receipt.run == run]
    if not own:
        others = sorted({receipt.run for receipt in receipts})
        raise ConfigError(
            f"no receipt is of run {run!r} ({path.parent}); they are of {others}: give those that "
            f"its sites have in {WHERE_RECEIPTS_ARE}"
        )
    own = sorted(own, key=lambda receipt: (receipt.records, receipt.client))

    fitting = []
    problems = []
    notes = []
    for receipt in own:
        if receipt.head == _head_after(heads, receipt.records):
            fitting.append(receipt)
        elif receipt.ended and _went_on_after(receipt, receipts):
            notes.append(f"{receipt} is of an end after which the run went on for more rounds")
        else:
            problems.append(receipt)
    covered = max((receipt.records for receipt in fitting), default=0)
    texts = [*_heads_that_do_not_fit(problems, fitting, heads), *_other_updates(own, records)]
    return Proof(len(records), covered, tuple(texts), tuple(notes))


def _went_on_after(end: Receipt, receipts: Sequence[Receipt]) -> bool:
    """Whether the client took part in a round after the end, so that the end record was replaced.

    The order of the receipts does not count: somebody may give the same ones twice.

    Args:
        end: a receipt of an end. Its round, and that of the closing requests before it, would be
            the number of the next round.
        receipts: all of them.
    """
    for receipt in receipts:
        is_of_next_round = receipt.round == end.round and receipt.update is not None
        is_later = is_of_next_round or receipt.round > end.round
        if is_later and (receipt.client, receipt.run) == (end.client, end.run):
            return True
    return False


def _head_after(heads: Sequence[str], count: int) -> str | None:
    """The head after the first ``count`` records; ``None`` where there are fewer."""
    return heads[count - 1] if count <= len(heads) else None


def _heads_that_do_not_fit(
    problems: Sequence[Receipt], fitting: Sequence[Receipt], heads: Sequence[str]
) -> list[str]:
    """One text for each receipt whose head is not the ledger's, the earliest first."""
    texts = []
    for receipt in problems:
        if receipt.records > len(heads):
            texts.append(
                f"{receipt} does not fit: the ledger had {receipt.records} records then, and has "
                f"{len(heads)} now: records were cut off at its end"
            )
        elif receipt.head in heads:
            place = heads.index(receipt.head)
            texts.append(
                f"{receipt} does not fit: its head is that of {_name_of_record(place)}, which was "
                "the last record then: records were added or left out before it"
            )
        else:
            earlier = [other.records for other in fitting if other.records < receipt.records]
            first = max(earlier, default=0)
            changed = _name_of_records(first, receipt.records, receipt.ended)
            texts.append(
                f"{receipt} does not fit: {changed} was changed after {receipt.client} received "
                "the head"
            )
    return texts


def _name_of_record(place: int) -> str:
    return "the opening" if place == 0 else f"the record of round {place - 1}"


def _name_of_records(first: int, count: int, ended: bool) -> str:
    """The records from place ``first`` to the last of ``count``, which may be the end."""
    last = "the end" if ended else _name_of_record(count - 1)
    if count - first <= 1:
        return last
    return f"something from {_name_of_record(first)} to {last}"


def _other_updates(own: Sequence[Receipt], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One text for each update on record that its client did not send, by its receipts."""
    sent: dict[tuple[str, int], set[str]] = {}
    clients = set()
    for receipt in own:
        clients.add(receipt.client)
        if receipt.update is not None:
            sent.setdefault((receipt.client, receipt.round), set()).add(receipt.update)
    texts = []
    for record in records:
        for client, digest in record.get("digests", {}).items():
            number = record["round"]
            known = sent.get((client, number), set())
            if client in clients and digest not in known:
                texts.append(
                    f"the record of round {number} names an update of {client} that is in none of "
                    f"{client}'s receipts of that round: {digest}"
                )
    return texts
