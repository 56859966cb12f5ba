# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies played on a run's ledger: what their rounds compute of the recorded replies.

The opening record names the run's strategy and its arguments, each round's record what the strategy
was sent: who answered, what was measured, how many images counted, and the inner products of the
updates. The strategy's own :meth:`~monai_fairfl.strategies.Strategy.round` computes the numbers;
there is no second implementation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.audit.ledger_replies import LedgerReplies, NoTensors, NotInLedgerError
from monai_fairfl.errors import FederationError, in_words
from monai_fairfl.messages import ModelSpec, Reply, Request, measurement_of_json
from monai_fairfl.replies import Replies
from monai_fairfl.run_folder.ledger import no_record_in, read_ledger
from monai_fairfl.strategies.base import RoundResult, Strategy
from monai_fairfl.strategies.parts import Average, Details, Reward
from monai_fairfl.strategies.playing import play_round
from monai_fairfl.strategies.registry import strategy_of

Record = Mapping[str, Any]

Answer = Callable[[int, Sequence[Request]], Sequence[Record]]
"""Number of an exchange and its requests -> the record's entry of each request, in order."""

MAPPINGS = ("aggregation", "contributions", "details", "measurements", "missing", "verdicts")
"""Entries of a round's record that are objects, and are read after it was played."""

OF_THE_CLIENT = frozenset({"previous_weight", "ditto_lambda"})
"""Context that changes no update: it is of a measurement, or of a model that stays at the site."""


class LedgerRun:
    """A run as its ledger has it: strategies can be played on it.

    Args:
        run_dir: of the run; it may be running, resumed or finished.
        allow_import: whether the run's own strategy may be imported from outside this package,
            which runs its code.

    Raises:
        FederationError: when the ledger's chain is broken, or its opening is none.
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

    def __init__(self, run_dir: str | Path, allow_import: bool = False):
        file = Path(run_dir) / "ledger.jsonl"
        records = read_ledger(file)
        if not records:
            raise NotInLedgerError(no_record_in(file))
        self.opening = records[0]
        self.rounds = [record for record in records if record["kind"] == "round"]
        self.allow_import = allow_import
        try:
            self.spec = ModelSpec.from_json(self.opening["spec"])
        except (KeyError, TypeError, IndexError) as error:
            raise FederationError(
                f"the opening of {run_dir}'s ledger is no record of a run ({error!r}): restore the "
                "ledger from a copy"
            ) from error

    def strategy(self) -> Strategy:
        """The run's own strategy, made again.

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
        strategy = strategy_of(configuration, self.allow_import)
        # The sides that the run limited; recorded where it limited any.
        strategy.gains_when = self.opening.get("gains_when", {})  # type: ignore[misc]
        return strategy

    def start(self, strategy: Strategy) -> None:
        """Make a new strategy ready to play this run's rounds, which make no models.

        Raises:
            ConfigError: when it cannot train the run's model.
        """
        average = strategy.parts.average
        uses_weights = average is None or average.uses_weights
        strategy.parts = replace(
            strategy.parts, average=_NoAverage(uses_weights), reward=_NoReward()
        )
        strategy.buffers = self.opening["buffers"]
        shapes = self.opening["shapes"]
        model = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        strategy.start(model, self.opening["clients"], self.spec)


class _NoAverage(Average):
    """Makes no model; weights are as with the average that it stands for."""

    def __init__(self, uses_weights: bool):
        self.uses_weights = uses_weights

    def __call__(self, *given: Any, **named: Any) -> dict[str, torch.Tensor]:
        return {}


class _NoReward(Reward):
    """Makes no models: no contribution depends on them."""

    def __call__(self, *given: Any, **named: Any) -> tuple[dict[str, Any], Details]:
        return {}, {}


def play(
    run: LedgerRun, strategy: Strategy | None = None, without: str | None = None
) -> Iterator[tuple[Record, RoundResult]]:
    """Play the rounds of a ledger by the run's own strategy, by another one, or without a site.

    Args:
        run: whose ledger it is.
        strategy: new; ``None``: the run's own.
        without: a site that is left out of every round, as if it had never been asked.

    Yields:
        Each round's record, and the result without models; its weights and contributions are in
        the form of the record.

    Raises:
        NotInLedgerError: when the ledger lacks what the method needs; the text names both.
        FederationError: when the method cannot play a round as it is recorded.
    """
    own = run.strategy()
    run.start(own)
    asked = None
    if strategy is not None or without is not None:
        asked = run.strategy() if strategy is None else strategy
        run.start(asked)
    for record in run.rounds:
        own_requests: list[Sequence[Request]] = []
        result = _play_round(own, record, _as_recorded(record, own_requests))
        if asked is not None:
            remaining = record if without is None else _without(record, without)
            answer = _where_the_same_was_asked(run, own, asked, own_requests, remaining, without)
            result = _play_round(asked, remaining, answer)
        yield record, result


def _play_round(strategy: Strategy, record: Record, answer: Answer) -> RoundResult:
    """Play one round of a ledger by a strategy that has played those before."""
    exchanges = itertools.count()
    ids = itertools.count()

    def replies_to(requests: Sequence[Request]) -> Replies:
        numbered = []
        for request in requests:
            numbered.append(replace(request, id=next(ids), round=record["round"]))
        return _replies(numbered, answer(next(exchanges), numbered), record, strategy.spec)

    name, number = type(strategy).__name__, record.get("round")
    try:
        for entry in MAPPINGS:
            if not isinstance(record[entry], Mapping):
                raise TypeError(f"{entry} is no object")
        strategy.clients = sorted(record["known_clients"])
        strategy.rounds_planned = record["planned_rounds"]
        return play_round(strategy, record["clients"], replies_to)
    except NotInLedgerError as error:
        raise NotInLedgerError(f"{name}, round {number}: {error}") from error
    except Exception as error:  # whatever a strategy raises of a record that does not fit it
        raise FederationError(
            f"{name} cannot play round {number} as it is recorded: {in_words(error)}"
        ) from error


def _replies(
    requests: Sequence[Request], entries: Sequence[Record], record: Record, spec: ModelSpec
) -> LedgerReplies:
    """The replies to the requests of one exchange, as the ledger has them."""
    replies = []
    missing = {}
    for request, entry in zip(requests, entries, strict=True):
        client = request.client
        if entry["measured"] is None:
            missing[client] = record["missing"].get(client, "absent")
            continue
        measured = measurement_of_json(entry["measured"])
        reply = Reply(client, None, 0, measured, id=request.id, round=request.round)
        if entry["task"] == "train":
            reply = replace(
                reply,
                update=NoTensors("the updates themselves"),
                buffers=NoTensors("the clients' buffers"),
                num_samples=record["samples"][client],
                num_cases=record["cases"][client],
                num_steps=record["steps"][client],
                labelled=tuple(record["labelled"].get(client, ())),
            )
        replies.append(reply)

    shortened = []
    groups: set[tuple[str, ...]] = set()
    for client, verdicts in record["verdicts"].items():
        for verdict in verdicts:
            if verdict["action"] == "clip":
                shortened.append(client)
            if verdict["action"] == "share":
                groups.add(tuple(verdict["group"]))
    trained = _training(record) is not None and any(reply.update is not None for reply in replies)
    plain = Replies(
        replies, requests, spec, missing=missing, shortened=shortened, groups=sorted(groups)
    )
    return LedgerReplies(plain, record["gram"] if trained else None)


def _training(record: Record) -> int | None:
    """Number of the exchange that trained; ``None``: none did."""
    found = []
    for number, entries in enumerate(record["exchanges"]):
        if any(entry["task"] == "train" for entry in entries):
            found.append(number)
    if len(found) > 1:
        raise NotInLedgerError(
            f"it trained in {len(found)} exchanges, and the ledger holds the inner products of the "
            "first one only"
        )
    return found[0] if found else None


def _as_recorded(record: Record, seen: list[Sequence[Request]]) -> Answer:
    """Answers the run's own strategy, exchange by exchange, and notes what it asked in ``seen``."""

    def answer(number: int, requests: Sequence[Request]) -> Sequence[Record]:
        entries = record["exchanges"][number] if number < len(record["exchanges"]) else []
        asked = [(request.client, request.task) for request in requests]
        found = [(entry["client"], entry["task"]) for entry in entries]
        if asked != found:
            raise FederationError(
                f"in exchange {number} the method asks {asked}, and the ledger has {found}"
            )
        seen.append(requests)
        return entries

    return answer


# ---- what if


def _without(record: Record, client: str) -> Record:
    """A round's record as if one client had not been asked."""
    exchanges = []
    for entries in record["exchanges"]:
        exchanges.append([entry for entry in entries if entry["client"] != client])
    samples = {other: count for other, count in record["samples"].items() if other != client}
    clients = [other for other in record["clients"] if other != client]
    known = [other for other in record["known_clients"] if other != client]
    changed = {"exchanges": exchanges, "samples": samples, "clients": clients}
    return {**record, **changed, "known_clients": known}


def _where_the_same_was_asked(
    run: LedgerRun,
    own: Strategy,
    asked: Strategy,
    own_requests: Sequence[Sequence[Request]],
    record: Record,
    without: str | None,
) -> Answer:
    """Answers a strategy where the run's own one asked for the same of the same models.

    Args:
        run: whose ledger it is.
        own: the run's own strategy.
        asked: the strategy that asks now.
        own_requests: what the own strategy asked in each exchange of this round.
        record: of the round, without the site that is left out.
        without: that site.
    """
    shipped = type(asked).__module__.startswith("monai_fairfl.strategies.")
    makes_the_same_models = shipped and type(asked) is type(own) and without is None

    def answer(number: int, requests: Sequence[Request]) -> Sequence[Record]:
        if len(record["samples"]) < asked.min_clients:
            raise NotInLedgerError(
                f"it needs at least {asked.min_clients} sites, and {len(record['samples'])} remain"
            )
        # Before the training all methods ask about the same models, and after it each about its
        # own.
        training = _training(record)
        place = number
        if training is not None and all(request.task == "train" for request in requests):
            place = training
        elif training is not None and number >= training and not makes_the_same_models:
            place = len(record["exchanges"])
        if place >= len(record["exchanges"]):
            raise NotInLedgerError(
                f"in exchange {number} it asks the sites about models of its own, which nobody "
                "measured"
            )
        entries = record["exchanges"][place]
        asks = [request.client for request in requests]
        has = [entry["client"] for entry in entries]
        if asks != has:
            raise NotInLedgerError(
                f"it asks {asks} in exchange {number}, and the ledger has answers of {has}"
            )
        owns = [request for request in own_requests[place] if request.client != without]
        for request, of_own in zip(requests, owns, strict=True):
            measured = {*of_own.measure, *(run.opening["evaluate"] if place == 0 else ())}
            for name in request.measure:
                if name not in measured:
                    raise NotInLedgerError(
                        f"it needs {name!r}, and this run did not measure it (measured: "
                        f"{', '.join(sorted(measured)) or 'nothing'})"
                    )
            wanted = _deciding({**asked.parts.training, **request.context})
            given = _deciding({**own.parts.training, **of_own.context})
            if wanted != given:
                raise NotInLedgerError(
                    f"its sites would {request.task} with {wanted or 'no context'}, and those of "
                    f"this run did with {given or 'no context'}"
                )
        return entries

    return answer


def _deciding(context: Mapping[str, float]) -> dict[str, float]:
    """The entries of a context that change what a site sends; 0 for a reset is as good as none."""
    found = {}
    for name, value in context.items():
        is_off = name == "reset_optimizer" and not value
        if name not in OF_THE_CLIENT and not is_off:
            found[name] = value
    return found
