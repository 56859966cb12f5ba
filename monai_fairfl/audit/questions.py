# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a ledger answers: do its numbers follow from its replies, and what would others have been?

A replay computes every weight and contribution again from the ledger alone. It shows that the
recorded numbers follow from the recorded replies. It does not show that these replies are true.

"What if" asks what a method would have computed of the recorded replies, without a site or by its
rules. Nothing is trained, so the question has limits. The updates and measurements stay those of
the run as it was: of the models that its sites really received. So the answer is exact for "which
weights and contributions follow from what was recorded". It is no answer to "how would the training
have gone on": from the second round on, other weights would have made other models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.audit.playing import LedgerRun, Record, play
from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.messages import to_json
from monai_fairfl.replies import weights_of_model
from monai_fairfl.run.ledger import number_in
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.parts import Mixed, Sparsified
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


# ---- what if


MEANING = (
    "the weights and contributions that follow from the updates and measurements in this ledger; "
    "the models that other weights would have made from the second round on are not in it"
)
"""What an answer means, for every reader."""

ANSWERS = ("aggregation", "contributions")
"""What of a round is asked for."""


@dataclass(frozen=True)
class WhatIf:
    """An answer.

    Args:
        question: the strategy that was asked, and the site that was left out.
        first_round_is_exact: whether the answer is exact for the first round: nothing before it
            depends on the weights.
        why_not: the reason where it would not.
        rounds: of each round its number, and under ``"recorded"`` and ``"what_if"`` the
            ``"aggregation"`` and the ``"contributions"``.
        sites: site -> ``"weight"`` (mean over the rounds in which it has one) and
            ``"contribution"`` (of its last round), each ``"recorded"`` and ``"what_if"``.

    >>> elm = {"weight": {"recorded": 0.6, "what_if": 0.75}}
    >>> found = WhatIf({"strategy": "FedAvg", "without": "oak"}, True, "", [], {"elm": elm})
    >>> found.sites["elm"]["weight"]["what_if"]
    0.75
    """

    question: Mapping[str, str]
    first_round_is_exact: bool
    why_not: str
    rounds: Sequence[Mapping[str, Any]]
    sites: Mapping[str, Mapping[str, Mapping[str, float | None]]]


def what_if(
    run_dir: str | Path,
    without: str | None = None,
    strategy: Strategy | None = None,
    allow_import: bool = False,
) -> WhatIf:
    """Play the rounds of a ledger without a site, by another strategy, or both.

    Args:
        run_dir: of the run.
        without: a site whose replies are left out of every round.
        strategy: new; ``None``: the run's own.
        allow_import: whether the run's own strategy may be imported from outside this package.

    Raises:
        ConfigError: when neither a site nor a strategy is given, or the site is not of the run.
        NotInLedgerError: when the answer would not be exact; the text names the method and what
            stands in the way.
        FederationError: when the chain is broken, or a method fails on what is recorded.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Federation, InProcess, ModelSpec, Reply
    >>> from monai_fairfl.strategies import CGSV, FedAvg
    >>> images = {"elm": 30, "fir": 10, "oak": 10}
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         echo = {"id": asked.id, "run": asked.run, "round": asked.round}
    ...         update = {"w": torch.ones(1)} if asked.task == "train" else None
    ...         return Reply(asked.client, update, images[asked.client], **echo)
    >>> initial = lambda: ({"w": torch.zeros(1)}, ModelSpec(("w",)))
    >>> hospitals = InProcess(dict.fromkeys(images, Hospital))
    >>> with TemporaryDirectory() as folder:
    ...     history = Federation(FedAvg(), hospitals, 1, initial, run_dir=folder).run()
    ...     without_oak = what_if(folder, without="oak")
    ...     by_cgsv = what_if(folder, strategy=CGSV())  # it compares updates, which are alike here
    >>> without_oak.rounds[0]["what_if"]["aggregation"], without_oak.first_round_is_exact
    ({'elm': 0.75, 'fir': 0.25}, True)
    >>> by_cgsv.sites["elm"]["contribution"]
    {'recorded': 0.6, 'what_if': 0.3333333333333333}
    """
    if without is None and strategy is None:
        raise ConfigError(
            "name a site (without=..., --without) or a strategy (strategy=..., --strategy) to ask "
            "about"
        )
    run = LedgerRun(run_dir, allow_import)
    known = {client for record in run.rounds for client in record["clients"]}
    if without is not None and without not in known:
        raise ConfigError(f"{without!r} took part in no round{did_you_mean(without, known)}")

    rounds = []
    for record, result in play(run, strategy, without):
        of_round: dict[str, Any] = {"round": record["round"]}
        of_round["recorded"] = {name: record[name] for name in ANSWERS}
        of_round["what_if"] = {name: to_json(getattr(result, name)) for name in ANSWERS}
        rounds.append(of_round)
    why_not = _why_first_round_is_not_exact(run, without)
    question = {"strategy": run.opening["name"]}
    if strategy is not None:
        question["strategy"] = type(strategy).__name__
    if without is not None:
        question["without"] = without
    return WhatIf(question, not why_not, why_not, rounds, _by_site(rounds))


def _why_first_round_is_not_exact(run: LedgerRun, without: str | None) -> str:
    """Why even the first round could have been another one; empty where it could not.

    Another strategy changes nothing before its first weights. A site that is not there does, where
    sites are drawn or compared.
    """
    if not run.rounds:
        return "there is no round"
    if without is None:
        return ""
    if run.opening["clients_per_round"] is not None:
        return "each round drew some of the sites, and would have drawn others"
    acted = []
    for client, verdicts in run.rounds[0]["verdicts"].items():
        if any(verdict["action"] != "flag" for verdict in verdicts):
            acted.append(client)
    if acted:
        return f"a guard acted on {', '.join(acted)}, which it compares with all sites"
    return ""


def _by_site(
    rounds: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Each site's mean weight and last contribution, recorded and what-if."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for which in ("recorded", "what_if"):
        weights: dict[str, list[float]] = {}
        contributions: dict[str, Any] = {}
        for of_round in rounds:
            for site, weight in weights_of_model(of_round[which]["aggregation"]).items():
                weights.setdefault(site, []).append(weight)
            contributions.update(of_round[which]["contributions"])
        for site in {*weights, *contributions}:
            nothing = {"recorded": None, "what_if": None}
            of_site = found.setdefault(site, {"weight": {**nothing}, "contribution": {**nothing}})
            if site in weights:
                of_site["weight"][which] = sum(weights[site]) / len(weights[site])
            of_site["contribution"][which] = number_in(contributions.get(site))
    return dict(sorted(found.items()))
