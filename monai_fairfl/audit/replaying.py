# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every weight and contribution of a run, computed again from its ledger alone.

A replay shows that the recorded numbers follow from the recorded replies. It does not show that
these replies are true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.audit.playing import LedgerRun, Record, play
from monai_fairfl.messages import to_json
from monai_fairfl.strategies.rewards import Mixed, Sparsified
from monai_fairfl.utils.arguments import is_finite

TOLERANCE = 1e-9
"""Largest difference that counts as none, relative for numbers above 1."""

COMPARED = ("aggregation", "contributions", "details")
"""Entries of a round's record that are computed again."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found.

    Args:
        rounds: number of rounds.
        numbers: how many numbers were computed again.
        largest: the largest difference; infinite where one of both numbers is absent.
        where: the place of that difference; empty where there is none.
        differences: text for each number that differs by more than :data:`TOLERANCE`.

    >>> Replayed(rounds=1, numbers=4, largest=0.0, where="", differences=[]).differences
    []
    """

    rounds: int
    numbers: int
    largest: float
    where: str
    differences: Sequence[str]


def replay(run_dir: str | Path, allow_import: bool = False) -> Replayed:
    """Compute every weight, contribution and quantity of a run again, and compare.

    The measurements that stand beside them must be those of the recorded replies.

    Args:
        run_dir: of the run; it may be running, resumed or finished.
        allow_import: whether a strategy outside this package may be imported: that runs its code.

    Raises:
        NotInLedgerError: when the ledger lacks what the method needs; the text names both.
        ConfigError: when a strategy outside this package would have to be imported.
        FederationError: when the chain is broken, or the method cannot play a recorded round.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Federation, InProcess, ModelSpec, Reply
    >>> from monai_fairfl.run.ledger import Ledger
    >>> from monai_fairfl.strategies import FedAvg
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         echo = {"id": asked.id, "run": asked.run, "round": asked.round}
    ...         update = {"w": torch.ones(1)} if asked.task == "train" else None
    ...         return Reply(asked.client, update, num_samples=1, **echo)
    >>> initial = lambda: ({"w": torch.zeros(1)}, ModelSpec(("w",)))
    >>> hospitals = InProcess({"elm": Hospital, "oak": Hospital})
    >>> with TemporaryDirectory() as folder:
    ...     history = Federation(FedAvg(), hospitals, 1, initial, run_dir=folder).run()
    ...     honest = replay(folder)
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     record = ledger.records[1]
    ...     ledger.truncate(1)
    ...     ledger.append({**record, "aggregation": {"elm": 0.9, "oak": 0.1}})  # the chain holds
    ...     forged = replay(folder)
    >>> honest.rounds, honest.numbers, honest.largest
    (1, 5, 0.0)
    >>> forged.differences[0]
    'round 0, aggregation, elm: recorded 0.9, computed 0.5'
    """
    run = LedgerRun(run_dir, allow_import)
    # A reward's own quantities come with its models, which no replay makes.
    not_computed = Sparsified.gives | Mixed.gives
    own = run.strategy().parts.reward
    if own is not None:
        not_computed |= own.gives

    numbers, largest, where = 0, 0.0, ""
    differences = []
    for position, (record, result) in enumerate(play(run)):
        expected = {name: record[name] for name in ("round", *COMPARED, "measurements")}
        details = record["details"].items()
        expected["details"] = {name: of for name, of in details if name not in not_computed}
        computed = {name: to_json(getattr(result, name)) for name in COMPARED}
        computed.update(round=position, measurements=_as_replied(record))
        for place, one, two in _pairs(expected, computed, f"round {position}"):
            numbers += 1
            difference = _distance(one, two)
            if difference > largest:
                largest, where = difference, place
            if difference > TOLERANCE:
                differences.append(f"{place}: recorded {one}, computed {two}")
    return Replayed(len(run.rounds), numbers, largest, where, tuple(differences))


def _as_replied(record: Record) -> dict[str, dict[str, Any]]:
    """client -> measurement -> its value in the client's replies, of each that the record has.

    Of several replies with the same measurement, the record has one: that one, where it is there.
    """
    entries = [entry for exchange in record["exchanges"] for entry in exchange]
    found: dict[str, dict[str, Any]] = {}
    for client, measured in record["measurements"].items():
        replies = [entry["measured"] or {} for entry in entries if entry["client"] == client]
        found[client] = {}
        for name, value in measured.items():
            values = [reply[name] for reply in replies if name in reply] or [None]
            found[client][name] = value if value in values else values[-1]
    return found


def _pairs(recorded: Any, computed: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Every single value of both, with its place; ``None`` where one of both has none."""
    known = [value for value in (recorded, computed) if value is not None]
    # A mapping in the place of a number is one value: an empty one has nothing to compare in it.
    if known and all(isinstance(value, Mapping) for value in known):
        one = recorded or {}
        two = computed or {}
        for key in sorted({*one, *two}):
            yield from _pairs(one.get(key), two.get(key), f"{where}, {key}")
    else:
        yield where, recorded, computed


def _distance(recorded: Any, computed: Any) -> float:
    """How far two values are apart: 0 where they are the same, infinite where one is no number."""
    if recorded == computed:
        return 0.0
    # All numbers that a run records are finite. No difference from NaN is above a tolerance, and
    # none from infinity is, relative to it.
    if not all(is_finite(value) for value in (recorded, computed)):
        return math.inf
    return abs(float(recorded) - float(computed)) / max(1.0, abs(recorded))
