# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every weight and contribution of a run, computed again from its ledger alone.

The opening record names the strategy and its arguments, each round's record what the strategy was
sent: who answered, what was measured, how many images counted, and the inner products of the
updates. The strategy is made again, and its own :meth:`~monai_fairfl.strategies.Strategy.round`
computes the numbers; there is no second implementation. So a replay shows that the recorded numbers
follow from the recorded inputs. It does not show that these inputs are true.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.audit.ledger_rounds import (
    LedgerReplies,
    LedgerRequest,
    LedgerRound,
    NoTensors,
    NotInLedgerError,
    ledger_rounds,
    model_without_numbers,
)
from monai_fairfl.errors import FederationError, in_words
from monai_fairfl.messages import ModelSpec, Reply, Request, Weights, to_json
from monai_fairfl.replies import Aggregation, Replies
from monai_fairfl.run_folder.ledger import no_record_in, read_ledger
from monai_fairfl.strategies.base import RoundResult, Strategy
from monai_fairfl.strategies.parts import Average, Details, Parts, Reward
from monai_fairfl.strategies.playing import play_round
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.strategies.rewards import Mixed, Sparsified
from monai_fairfl.utils.settings import is_number

TOLERANCE = 1e-9
"""Largest difference that counts as none, relative for numbers above 1."""

COMPARED = ("aggregation", "contributions", "details")
"""Entries of a round's record that are computed again."""

Answer = Callable[[int, Sequence[Request]], Sequence[LedgerRequest]]
"""Number of an exchange and its requests -> what the ledger has of each request, in order."""


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


class LedgerRun:
    """A run as its ledger has it: strategies can be played on it.

    Args:
        run_dir: of the run; it may be running, resumed or finished.

    Raises:
        FederationError: when the ledger's chain is broken.
        NotInLedgerError: when the ledger has no record yet.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import ModelSpec
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "spec": ModelSpec(("w",)).to_json()})
    ...     LedgerRun(folder).rounds
    []
    """

    def __init__(self, run_dir: str | Path):
        self.run_dir = Path(run_dir)
        records = read_ledger(self.run_dir / "ledger.jsonl")
        if not records:
            raise NotInLedgerError(no_record_in(self.run_dir / "ledger.jsonl"))
        self.opening = records[0]
        self.rounds = ledger_rounds(records)
        try:
            self.spec = ModelSpec.from_json(self.opening["spec"])
        except (KeyError, TypeError, IndexError) as error:
            raise FederationError(
                f"the opening of {run_dir}'s ledger is no record of a run ({error!r}): restore the "
                "ledger from a copy"
            ) from error

    def strategy(self, allow_import: bool = False) -> Strategy:
        """The run's own strategy, made again and started.

        Args:
            allow_import: whether a class outside this package may be imported.

        Raises:
            NotInLedgerError: when the ledger does not hold its arguments.
            ConfigError: when it would have to be imported, and may not.
        """
        configuration = self.opening["configuration"]
        if configuration is None:
            raise NotInLedgerError(
                f"the ledger does not hold the arguments of {self.opening['name']}: its "
                "constructor must store each argument, a plain value, in an attribute of the same "
                "name"
            )
        strategy = strategy_of(configuration, allow_import)
        # The sides that the run limited; recorded where it limited any.
        strategy.gains_when = self.opening.get("gains_when", {})  # type: ignore[misc]
        return self.started(strategy)

    def started(self, strategy: Strategy) -> Strategy:
        """``strategy``, ready to play this run's rounds.

        Rewards make models, and no contribution depends on them, so none are made.

        Args:
            strategy: new.

        Raises:
            ConfigError: when it cannot train the run's model.
        """
        strategy.buffers = self.opening["buffers"]
        average = strategy.parts.average
        if average is not None:
            average = _NoAverage(average.uses_weights)
        others: dict[str, Any] = {"reward": _NoReward(), "average": average}
        strategy.parts = _NoModels(**{**vars(strategy.parts), **others, "replaced": strategy.parts})
        model = model_without_numbers(self.opening["shapes"])
        strategy.start(model, self.opening["clients"], self.spec)
        return strategy


@dataclass(frozen=True)
class _NoModels(Parts):
    """Parts that make no model. The strategy keeps its name, which errors show.

    Args:
        replaced: the parts that these stand for.
    """

    replaced: Parts = Parts()

    def name_words(self) -> list[str]:
        """The words of the parts that the strategy was made of."""
        return self.replaced.name_words()


class _NoAverage(Average):
    """Stands for an average of another rule; no model is made, and weights are as with the rule.

    Args:
        uses_weights: as the rule's.
    """

    def __init__(self, uses_weights: bool):
        self.uses_weights = uses_weights

    def __call__(
        self, replies: Replies, weights: Aggregation, **how: Any
    ) -> dict[str, torch.Tensor]:
        return replies.average(weights, **how)


class _NoReward(Reward):
    """Makes no models: everybody keeps what it had."""

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: object
    ) -> tuple[dict[str, Weights], Details]:
        return {}, {}


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
    >>> from monai_fairfl.run_folder.ledger import Ledger
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
    run = LedgerRun(run_dir)
    strategy = run.strategy(allow_import)
    # A reward's own quantities come with its models, which no replay makes.
    not_computed = Sparsified.gives | Mixed.gives
    assert isinstance(strategy.parts, _NoModels)
    own = strategy.parts.replaced.reward
    if own is not None:
        not_computed |= own.gives
    comparison = _Comparison()
    for position, recorded in enumerate(run.rounds):
        result = play(strategy, recorded, _as_recorded(recorded))
        computed = {name: to_json(getattr(result, name)) for name in COMPARED}
        computed["measurements"] = _as_replied(recorded)
        computed["round"] = position
        expected = {name: recorded.record[name] for name in computed}
        given = expected["details"]
        expected["details"] = {name: given[name] for name in given if name not in not_computed}
        comparison.add(f"round {position}", expected, computed)
    return comparison.found(len(run.rounds))


class _Comparison:
    """Compares recorded with computed numbers, and remembers the largest difference."""

    def __init__(self) -> None:
        self.numbers = 0
        self.largest = 0.0
        self.where = ""
        self.differences: list[str] = []

    def add(self, where: str, recorded: Any, computed: Any) -> None:
        """Compare every number of two mappings with each other."""
        for place, one, two in _pairs(recorded, computed, where):
            self.numbers += 1
            difference = _distance(one, two)
            if difference > self.largest:
                self.largest = difference
                self.where = place
            if difference > TOLERANCE:
                self.differences.append(f"{place}: recorded {one}, computed {two}")

    def found(self, rounds: int) -> Replayed:
        """The result, for a run of so many rounds."""
        return Replayed(rounds, self.numbers, self.largest, self.where, tuple(self.differences))


def play(strategy: Strategy, recorded: LedgerRound, answer: Answer) -> RoundResult:
    """Play one round of a ledger.

    Args:
        strategy: started, in the state before the round; it is in the state after it then.
        recorded: the round.
        answer: finds what the ledger has of the requests of an exchange.

    Returns:
        Its result without models; weights and contributions are those that the round's record
        holds, clients that count as one divided.

    Raises:
        NotInLedgerError: when the ledger lacks what the method needs.
        FederationError: when the method fails on what the ledger holds.
    """
    strategy.clients = sorted(recorded.known_clients)
    strategy.rounds_planned = recorded.planned
    exchanges = itertools.count()
    ids = itertools.count()

    def recorded_replies(requests: Sequence[Request]) -> Replies:
        numbered = []
        for request in requests:
            numbered.append(replace(request, id=next(ids), round=recorded.number))
        found = answer(next(exchanges), numbered)
        return _replies(numbered, found, recorded, strategy.spec)

    try:
        return play_round(strategy, recorded.clients, recorded_replies)
    except NotInLedgerError as error:
        name = type(strategy).__name__
        raise NotInLedgerError(f"{name}, round {recorded.number}: {error}") from error
    except Exception as error:  # whatever a strategy raises of a record that does not fit it
        raise FederationError(
            f"{type(strategy).__name__} cannot play round {recorded.number} as it is recorded: "
            f"{in_words(error)}"
        ) from error


def _as_recorded(recorded: LedgerRound) -> Answer:
    """Answers the run's own strategy: exchange by exchange, request by request."""

    def answer(number: int, requests: Sequence[Request]) -> Sequence[LedgerRequest]:
        if number >= len(recorded.exchanges):
            raise FederationError(
                f"the method asks {number + 1} times in this round, the ledger has "
                f"{len(recorded.exchanges)} exchanges"
            )
        entries = recorded.exchanges[number]
        asked = [(request.client, request.task) for request in requests]
        found = [(entry.client, entry.task) for entry in entries]
        if asked != found:
            raise FederationError(
                f"in exchange {number} the method asks {asked}, and the ledger has {found}"
            )
        return entries

    return answer


def _as_replied(recorded: LedgerRound) -> dict[str, dict[str, Any]]:
    """client -> measurement -> its value in the client's replies, of each that the record has.

    Of several replies with the same measurement, the record has one: that one, where it is there.
    """
    replied: dict[tuple[str, str], list[Any]] = {}
    for entries in recorded.record["exchanges"]:
        for entry in entries:
            for name, value in (entry["measured"] or {}).items():
                replied.setdefault((entry["client"], name), []).append(value)
    found: dict[str, dict[str, Any]] = {}
    for client, measured in recorded.record["measurements"].items():
        for name, value in measured.items():
            values = replied.get((client, name), [None])
            found.setdefault(client, {})[name] = value if value in values else values[-1]
    return found


def _replies(
    requests: Sequence[Request],
    entries: Sequence[LedgerRequest],
    recorded: LedgerRound,
    spec: ModelSpec,
) -> LedgerReplies:
    """The replies to the requests of one exchange, as the ledger has them."""
    replies = []
    missing = {}
    for request, entry in zip(requests, entries, strict=True):
        client = request.client
        if entry.measured is None:
            missing[client] = recorded.record["missing"].get(client, "absent")
            continue
        reply = Reply(client, None, 0, entry.measured, id=request.id, round=request.round)
        if entry.task == "train":
            reply = replace(
                reply,
                update=NoTensors("the updates themselves"),
                buffers=NoTensors("the clients' buffers"),
                num_samples=recorded.samples[client],
                num_cases=recorded.record["cases"][client],
                num_steps=recorded.record["steps"][client],
                labelled=tuple(recorded.labelled.get(client, ())),
            )
        replies.append(reply)
    grams = None
    trained = [reply.client for reply in replies if reply.update is not None]
    if trained and recorded.training is not None and recorded.grams is not None:
        grams = recorded.grams.of(sorted(trained))
    return LedgerReplies(
        replies,
        requests,
        spec,
        missing,
        grams,
        shortened=_clients_with(recorded.record, "clip"),
        groups=_groups(recorded.record),
    )


def _clients_with(record: Mapping[str, Any], action: str) -> list[str]:
    """The clients on whose updates a guard acted so."""
    found = []
    for client, verdicts in record["verdicts"].items():
        if any(plain["action"] == action for plain in verdicts):
            found.append(client)
    return found


def _groups(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The clients whose updates were copies of each other."""
    found: set[tuple[str, ...]] = set()
    for verdicts in record["verdicts"].values():
        found.update(tuple(plain["group"]) for plain in verdicts if plain["action"] == "share")
    return sorted(found)


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
    if not _is_finite(recorded) or not _is_finite(computed):
        return float("inf")
    scale = max(1.0, abs(recorded))
    return abs(float(recorded) - float(computed)) / scale


def _is_finite(value: object) -> bool:
    """Whether a value is a finite number, as all numbers are that a run records.

    No difference from NaN is above a tolerance, and none from infinity is, relative to it.
    """
    return is_number(value) and math.isfinite(value)
