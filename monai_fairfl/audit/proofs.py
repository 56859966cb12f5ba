# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a ledger is the one whose heads the sites were sent, and the files are those it names.

Each record holds the SHA-256 of the line before. So the chain alone shows a record that was changed
by itself, and not a ledger whose later hashes were mended, whose end was cut off, or that was
written again as a whole. A head that was stored elsewhere shows all of these, up to the record that
it is of. Nothing shows a change of what was written after the newest stored head.

A digest is of names, types, shapes and numbers of a model. What else a file holds, such as the
recipe of a model or the state of a strategy, is in no ledger.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from monai_fairfl.errors import ConfigError, FairFLError
from monai_fairfl.messages import ModelSpec
from monai_fairfl.model_files.recipe import state_of_file
from monai_fairfl.run.checkpoint import Checkpoints, read_checkpoint
from monai_fairfl.run.ledger import digest_of, read_ledger, read_ledger_and_heads
from monai_fairfl.run.recorded_updates import is_recorded, recorded_round
from monai_fairfl.run.records import DIGEST

logger = logging.getLogger(__name__)

WHERE_RECEIPTS_ARE = (
    "a site's private folder: sites/SITE/state of the run, fairfl/SITE/state of the site's NVFlare "
    "workspace, or of the site's folder with Flower"
)
"""The folder of a site's ``receipts.jsonl``, for errors."""

ROUNDING = 1e-4
"""Of inner products that another processor computed, relative to the lengths."""


# ---- heads and receipts


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
    update: str | None = None
    ended: bool = False

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
        try:
            names = [row.name for row in fields(Receipt) if row.name in plain]
            found.append(Receipt(**{name: plain[name] for name in names}))
        except (TypeError, KeyError) as error:
            raise ConfigError(f"{path}, line {number} is no receipt: {plain!r:.200}") from error
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
        raise ConfigError(f"{path} has no record yet: name another run")
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
    for receipt in sorted(own, key=lambda receipt: (receipt.records, receipt.client)):
        count = receipt.records
        if heads[count - 1 : count] == [receipt.head]:
            covered = count
        else:
            problems.append(
                f"{receipt} does not fit: the ledger had {count} records then and has {len(heads)} "
                f"now, and after {covered} of them they were changed, or cut off"
            )
    problems += _updates_that_nobody_sent(own, records)
    return Proof(len(records), covered, tuple(problems))


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


# ---- files


@dataclass(frozen=True)
class Files:
    """What the files beside a ledger show.

    Args:
        checked: how many models, checkpoints and recorded rounds were compared with the ledger.
        problems: what is damaged, or is not what the ledger names.

    >>> Files(2, ["models/global.pt is damaged"]).problems
    ['models/global.pt is damaged']
    """

    checked: int
    problems: Sequence[str]


def check_files(run_dir: str | Path) -> Files:
    """Compare every model, checkpoint and recorded update in a run's folder with its ledger.

    A file that is not there is not missed: a folder may hold a ledger alone.

    Args:
        run_dir: of the run; it may be running, resumed or finished.

    Raises:
        FederationError: when the ledger's chain is broken.

    >>> import torch
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Federation, InProcess, ModelSpec
    >>> from monai_fairfl.strategies import FedAvg
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         return asked.reply(*([{"w": torch.ones(9)}, 8] if asked.task == "train" else []))
    >>> initial = lambda: ({"w": torch.zeros(9)}, ModelSpec(("w",)))
    >>> hospitals = InProcess({"elm": Hospital, "oak": Hospital})
    >>> with TemporaryDirectory() as folder:
    ...     ran = Federation(FedAvg(), hospitals, 1, initial, run_dir=folder).run()
    ...     whole = check_files(folder)
    ...     file = Path(folder, "models", "global.pt")
    ...     _ = file.write_bytes(file.read_bytes()[:500])
    ...     cut = check_files(folder)
    >>> whole, len(cut.problems)
    (Files(checked=2, problems=()), 1)
    """
    run_dir = Path(run_dir)
    checked = 0
    problems = []
    stated: dict[str, dict[int, bool]] = {}
    for path, read, named in _files(run_dir, stated):
        checked += 1
        place = path.relative_to(run_dir)
        try:
            if read() not in named:
                problems.append(f"{place} is not what the ledger names")
        except FairFLError as error:
            problems.append(f"{place}: {error}")
    for client, fits in stated.items():
        unlike = [number for number in fits if not fits[number]]
        # In no round they are after a privacy filter: their inner products were compared.
        if 0 < len(unlike) < len(fits):
            problems.append(f"{client} stated other updates than those of rounds {unlike}")
    return Files(checked, tuple(problems))


def _files(
    run_dir: Path, stated: dict[str, dict[int, bool]]
) -> Iterator[tuple[Path, Callable[[], object], Sequence[object]]]:
    """Each file or folder, what reads its digests, and those that the ledger allows.

    Args:
        run_dir: of the run.
        stated: gets client -> round -> whether its recorded update is the one that it stated.
    """
    opening, *others = read_ledger(run_dir / "ledger.jsonl")
    rounds = [record for record in others if record["kind"] == "round"]
    ends = [record for record in others if record["kind"] == "end"]
    models = [record["model"] for record in rounds]
    # Client -> digest of its own model, after each round. A round without rewards leaves those of
    # earlier ones.
    rewards: list[Mapping[str, str]] = []
    for record in rounds:
        rewards.append(record["rewards"] or (rewards[-1] if rewards else {}))

    named: dict[str, Sequence[object]] = {"global": models, "best": models}
    own = rewards
    if ends:
        best = ends[0]["best"].get("round")
        named = {"global": [ends[0]["model"]], "best": [] if best is None else [models[best]]}
        own = rewards[-1:]
    spec = ModelSpec.from_json(opening["spec"])
    for file in sorted(run_dir.glob("models/*.pt")):
        allowed = named.get(file.stem, [of_round.get(file.stem) for of_round in own])
        yield file, partial(_digest_of_model, file, spec), allowed

    for folder in Checkpoints(run_dir / "checkpoints").newest_first():
        number = int(folder.name.removeprefix("round-"))
        after = list(zip(models, rewards))[number : number + 1]
        yield folder, partial(_digests_of_checkpoint, folder), after

    begun_with = opening["model"]
    for number, record in enumerate(rounds):
        if is_recorded(run_dir, number):
            folder = run_dir / "updates" / f"round-{number:04d}"
            yield folder, partial(_updates_fit, run_dir, record, begun_with, stated), [True]
        begun_with = record["model"]


def _digest_of_model(file: Path, spec: ModelSpec) -> str:
    state = state_of_file(file)
    return digest_of({name: state[name] for name in state if name not in spec.aliases})


def _digests_of_checkpoint(folder: Path) -> tuple[str, dict[str, str]]:
    found = read_checkpoint(folder)
    rewards = {client: digest_of(reward) for client, reward in found.rewards.items()}
    return digest_of(found.weights), rewards


def _updates_fit(
    run_dir: Path,
    record: Mapping[str, Any],
    begun_with: str,
    stated: dict[str, dict[int, bool]],
) -> bool:
    """Whether a recorded round has the updates of the ledger."""
    found = recorded_round(run_dir, record, begun_with)
    all_fit = True
    for client in found.clients:
        fits = digest_of(found.sent_by(client)) == record["digests"].get(client)
        all_fit = all_fit and fits
        verdicts = record["verdicts"].get(client, [])
        if client in record["digests"] and all(one["action"] != "clip" for one in verdicts):
            stated.setdefault(client, {})[record["round"]] = fits
    if all_fit:
        return True
    # A guard cuts updates, and a privacy filter of an engine changes them, after a site stated the
    # digest. The inner products are of what the strategy saw.
    recorded = np.array(record["gram"]["whole"], dtype=float)
    lengths = np.sqrt(np.diag(recorded))
    difference = abs(found.replies().geometry.gram - recorded)
    return not (difference > ROUNDING * np.outer(lengths, lengths)).any()
