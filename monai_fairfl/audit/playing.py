# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies played on a run's ledger: replay, and what would others have computed?

The opening record names the run's strategy and its arguments, each round's record what the strategy
was sent: who answered, what was measured, how many images counted, and the inner products of the
updates. The strategy's own :meth:`~monai_fairfl.strategies.Strategy.round` computes the numbers;
there is no second implementation.

A replay computes every weight and contribution again from the ledger alone. It shows that the
recorded numbers follow from the recorded replies. It does not show that these replies are true.

"What if" asks what a method would have computed of the recorded replies, without a site or by its
rules. Nothing is trained, so the question has limits. The updates and measurements stay those of
the run as it was: of the models that its sites really received. So the answer is exact for "which
weights and contributions follow from what was recorded". It is no answer to "how would the training
have gone on": from the second round on, other weights would have made other models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from monai_fairfl.errors import ConfigError, FederationError, did_you_mean, in_words
from monai_fairfl.messages import ModelSpec, Request, measurement_of_json, to_json
from monai_fairfl.replies import Geometry, Replies, weights_of_model
from monai_fairfl.run.ledger import number_in, read_ledger
from monai_fairfl.strategies.base import RoundResult, Strategy, play_round
from monai_fairfl.strategies.parts import Details, Mixed, Reward, Sparsified
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.utils.arguments import is_finite

Record = Mapping[str, Any]

Answer = Callable[[int, Sequence[Request]], Sequence[Record]]
"""Number of an exchange and its requests -> the record's entry of each request, in order."""

OF_THE_CLIENT = frozenset({"previous_weight", "ditto_lambda"})
"""Context that changes no update: it is of a measurement, or of a model that stays at the site."""


class NotInLedgerError(ConfigError):
    """A method reads something that this ledger does not hold; the text names both.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.audit import replay
    >>> with TemporaryDirectory() as folder:
    ...     _ = open(folder + "/ledger.jsonl", "w")
    ...     replay(folder)
    Traceback (most recent call last):
    ...
    monai_fairfl.audit.playing.NotInLedgerError: ... has no record yet: ...
    """


class NoTensors(Mapping[str, torch.Tensor]):
    """Stands for tensors that are not in the ledger: a method that looks at them is refused."""

    def __init__(self, what: str):
        self.what = what

    def _refuse(self, *given: Any) -> NoReturn:
        raise NotInLedgerError(f"the method reads {self.what}, which the ledger does not hold")

    __getitem__ = __iter__ = __len__ = _refuse


class LedgerReplies(Replies):
    """The replies of one exchange as a strategy saw them, less the tensors.

    What a strategy computes of measurements, counts and inner products is the same, to the bit. An
    average holds nothing, and a strategy that looks at an update or a model is refused.

    Args:
        replies: of the record; their updates are :class:`NoTensors`.
        gram: the record's inner products of the updates; ``None`` where nobody trained.
    """

    def __init__(self, replies: Replies, gram: Mapping[str, Any] | None):
        list.__init__(self, replies)
        vars(self).update(vars(replies))
        self._gram = gram

    def rebuilt(self, *given: Any, **named: Any) -> LedgerReplies:
        """As :meth:`Replies.rebuilt`."""
        return LedgerReplies(super().rebuilt(*given, **named), self._gram)

    @cached_property
    def geometry(self) -> Geometry:
        """The recorded inner products."""
        if self._gram is None or any(reply.update is None for reply in self):
            raise NotInLedgerError(
                "the method compares updates in an exchange whose inner products are not in the "
                "ledger"
            )
        recorded = self._gram
        rows = [recorded["clients"].index(reply.client) for reply in self]
        updates: Any = NoTensors("the inner products of each layer")
        found = LedgerGeometry(updates, self.spec, self.labelled)
        # A number that was not finite is None there, and NaN here.
        found.gram = np.array(recorded["whole"], dtype=float)[np.ix_(rows, rows)]
        for layer, grams in recorded["classes"].items():
            found.known_classes[layer] = np.array(grams, dtype=float)[:, rows][:, :, rows]
        return found

    def local(self, *given: Any) -> dict[str, torch.Tensor]:
        """What may be passed on, and not looked at."""
        return NoTensors("the models that clients trained")  # type: ignore[return-value]

    def average(self, *given: Any, **named: Any) -> dict[str, torch.Tensor]:
        """Nothing: no model is in the ledger."""
        return {}

    reduced = average


class LedgerGeometry(Geometry):
    """What was recorded of inner products, in place of the updates."""

    def classes(self, output_layer: str | None = None) -> np.ndarray:
        """Gram matrices of an output layer's classes.

        Raises:
            NotInLedgerError: when those of this layer were not recorded.
        """
        layer, _ = self.spec.output_layer(output_layer) or (output_layer, 0)
        if layer not in self.known_classes:
            raise NotInLedgerError(
                f"the method compares the classes of output layer {layer!r}, and the ledger holds "
                f"those of {sorted(self.known_classes)}"
            )
        return self.known_classes[layer]


class LedgerRun:
    """A run as its ledger has it: strategies can be played on it.

    Args:
        run_dir: of the run; it may be running, resumed or finished.
        allow_import: whether the run's own strategy may be imported from outside this package,
            which runs its code.

    Raises:
        FederationError: when the ledger's chain is broken.
        NotInLedgerError: when the ledger has no record yet.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import ModelSpec
    >>> from monai_fairfl.run.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "spec": to_json(ModelSpec(("w",)))})
    ...     LedgerRun(folder).rounds
    []
    """

    def __init__(self, run_dir: str | Path, allow_import: bool = False):
        file = Path(run_dir) / "ledger.jsonl"
        records = read_ledger(file)
        if not records:
            raise NotInLedgerError(f"{file} has no record yet: name another run")
        self.opening = records[0]
        self.rounds = [record for record in records if record["kind"] == "round"]
        self.allow_import = allow_import
        self.spec = ModelSpec.from_json(self.opening["spec"])

    def strategy(self) -> Strategy:
        """The run's own strategy, made again.

        Raises:
            NotInLedgerError: when the ledger does not hold its arguments.
            ConfigError: when it would have to be imported, and may not.
        """
        configuration = self.opening["configuration"]
        if configuration is None:
            raise NotInLedgerError(
                f"the ledger lacks the arguments of {self.opening['name']}: its constructor must "
                "store each, a plain value, in an attribute of its name"
            )
        strategy = strategy_of(configuration, self.allow_import)
        # The sides that the run limited; recorded where it limited any.
        strategy.gains_when = self.opening.get("gains_when", {})  # type: ignore[misc]
        return strategy

    def started(self, strategy: Strategy | None = None) -> Strategy:
        """A new strategy, or the run's own, ready to play its rounds, which make no models.

        Raises:
            ConfigError: when it cannot train the run's model.
        """
        strategy = strategy or self.strategy()
        strategy.exchanged = replace(strategy.exchanged, reward=_NoReward())
        strategy.buffers = self.opening["buffers"]
        shapes = self.opening["shapes"]
        model = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        strategy.start(model, self.opening["clients"], self.spec)
        return strategy


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

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Federation, InProcess, ModelSpec
    >>> from monai_fairfl.strategies import FedAvg
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         images = 30 if asked.client == "elm" else 10
    ...         trained = [{"w": torch.ones(9)}, images] if asked.task == "train" else []
    ...         return asked.reply(*trained)
    >>> initial = lambda: ({"w": torch.zeros(9)}, ModelSpec(("w",)))
    >>> hospitals = InProcess({"elm": Hospital, "oak": Hospital})
    >>> with TemporaryDirectory() as folder:
    ...     ran = Federation(FedAvg(), hospitals, 1, initial, run_dir=folder).run()
    ...     [(record, result)] = play(LedgerRun(folder), FedAvg("uniform"))
    >>> record["aggregation"], result.aggregation
    ({'elm': 0.75, 'oak': 0.25}, {'elm': 0.5, 'oak': 0.5})
    """
    own = run.started()
    asked = None
    if strategy is not None or without is not None:
        asked = run.started(strategy)
    for record in run.rounds:
        own_requests: list[Sequence[Request]] = []
        result = _play_round(own, record, _as_recorded(record, own_requests))
        if asked is not None:
            remaining = record if without is None else _without(record, without)
            evaluate = run.opening["evaluate"]
            answer = _where_the_same_was_asked(remaining, own_requests, own, asked, evaluate)
            result = _play_round(asked, remaining, answer)
        yield record, result


def _play_round(strategy: Strategy, record: Record, answer: Answer) -> RoundResult:
    """Play one round of a ledger by a strategy that has played those before."""
    exchanges, ids = itertools.count(), itertools.count()

    def replies_to(requests: Sequence[Request]) -> Replies:
        asked = [replace(request, id=next(ids), round=record["round"]) for request in requests]
        return _replies(asked, answer(next(exchanges), asked), record, strategy.spec)

    name, number = type(strategy).__name__, record.get("round")
    try:
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
    trained = False
    for request, entry in zip(requests, entries, strict=True):
        client = request.client
        if entry["measured"] is None:
            missing[client] = record["missing"].get(client, "absent")
            continue
        sent: dict[str, Any] = {"measurements": measurement_of_json(entry["measured"])}
        if entry["task"] == "train":
            trained = _training(record) is not None
            sent["update"] = NoTensors("the updates themselves")
            sent["buffers"] = NoTensors("the clients' buffers")
            sent["labelled"] = tuple(record["labelled"].get(client, ()))
            for name in ("samples", "cases", "steps"):
                sent[f"num_{name}"] = record[name][client]
        replies.append(request.reply(**sent))

    given = [(client, one) for client, of in record["verdicts"].items() for one in of]
    shortened = [client for client, verdict in given if verdict["action"] == "clip"]
    groups = {tuple(verdict["group"]) for _, verdict in given if verdict["action"] == "share"}
    plain = Replies(
        replies, requests, spec, missing=missing, shortened=shortened, groups=sorted(groups)
    )
    return LedgerReplies(plain, record["gram"] if trained else None)


def _training(record: Record) -> int | None:
    """Number of the exchange that trained; ``None``: none did."""
    exchanges = enumerate(record["exchanges"])
    found = [number for number, of in exchanges if any(one["task"] == "train" for one in of)]
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


# ---- where another strategy asked for the same


def _without(record: Record, client: str) -> Record:
    """A round's record as if one client had not been asked."""
    exchanges = []
    for entries in record["exchanges"]:
        exchanges.append([entry for entry in entries if entry["client"] != client])
    clients = [other for other in record["clients"] if other != client]
    known = [other for other in record["known_clients"] if other != client]
    return {**record, "exchanges": exchanges, "clients": clients, "known_clients": known}


def _where_the_same_was_asked(
    record: Record,
    own_requests: Sequence[Sequence[Request]],
    own: Strategy,
    asked: Strategy,
    evaluate: Sequence[str],
) -> Answer:
    """Answers a strategy where the run's own one asked for the same of the same models.

    Args:
        record: of the round, perhaps without a site.
        own_requests: what the run's own strategy asked in each exchange of the whole round.
        own: that strategy.
        asked: the strategy that asks now.
        evaluate: measurements that the run adds to the first exchange.
    """
    shipped = type(asked).__module__.startswith("monai_fairfl.strategies.")
    all_sites = len(own_requests[0]) == len(record["exchanges"][0])
    makes_the_same_models = shipped and type(asked) is type(own) and all_sites

    def answer(number: int, requests: Sequence[Request]) -> Sequence[Record]:
        sites = [client for client in record["clients"] if client in record["samples"]]
        least = asked.min_clients
        if len(sites) < least:
            raise NotInLedgerError(f"it needs at least {least} sites, and {sites} remain")
        # Before the training all methods ask about the same models, after it each about its own.
        training = _training(record)
        known = len(record["exchanges"])
        place = number
        if training is not None and all(request.task == "train" for request in requests):
            place = training
        elif training is not None and number >= training and not makes_the_same_models:
            place = known
        if place >= known:
            raise NotInLedgerError(f"in exchange {number} it asks about models of its own")

        entries = record["exchanges"][place]
        clients = {entry["client"] for entry in entries}
        owns = [request for request in own_requests[place] if request.client in clients]
        measured = {*(evaluate if place == 0 else ()), *(n for one in owns for n in one.measure)}
        needed = {name for request in requests for name in request.measure}
        if not needed <= measured:
            raise NotInLedgerError(
                f"it needs {sorted(needed - measured)}, and this run measured {sorted(measured)}"
            )
        asks, has = _work(asked, requests), _work(own, owns)
        if asks != has:
            raise NotInLedgerError(f"it asks {asks} in exchange {number}, and this run {has}")
        return entries

    return answer


def _work(strategy: Strategy, requests: Sequence[Request]) -> list[tuple[str, dict[str, float]]]:
    """Each client that is asked, with the entries of its context that change what it sends."""
    found = []
    for request in requests:
        context = {**strategy.exchanged.training, **request.context}
        if not context.get("reset_optimizer", 1):
            del context["reset_optimizer"]
        deciding = {name: context[name] for name in context if name not in OF_THE_CLIENT}
        found.append((request.client, deciding))
    return found


# ---- replay

CLOSE = {"rel_tol": 1e-9, "abs_tol": 1e-9}
"""Such a difference counts as none, relative for numbers above 1."""

COMPARED = ("aggregation", "contributions", "details")
"""Entries of a round's record that are computed again."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found.

    Args:
        rounds: number of rounds.
        numbers: how many numbers were computed again.
        differences: text for each number that differs by more than :data:`CLOSE`.

    >>> Replayed(rounds=1, numbers=4, differences=[]).differences
    []
    """

    rounds: int
    numbers: int
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
    >>> honest.rounds, honest.numbers, honest.differences
    (1, 5, ())
    >>> forged.differences[0]
    'round 0, aggregation, elm: recorded 0.9, computed 0.5'
    """
    run = LedgerRun(run_dir, allow_import)
    # A reward's own quantities come with its models, which no replay makes.
    not_computed = Sparsified.gives | Mixed.gives
    own = run.strategy().exchanged.reward
    if own is not None:
        not_computed |= own.gives

    numbers = 0
    differences = []
    for position, (record, result) in enumerate(play(run)):
        expected = {name: record[name] for name in ("round", *COMPARED, "measurements")}
        details = record["details"].items()
        expected["details"] = {name: of for name, of in details if name not in not_computed}
        computed = {name: to_json(getattr(result, name)) for name in COMPARED}
        computed.update(round=position, measurements=_as_replied(record))
        ones = _by_place(expected, f"round {position}")
        twos = _by_place(computed, f"round {position}")
        for place in sorted({*ones, *twos}):
            numbers += 1
            one, two = ones.get(place), twos.get(place)
            # All numbers that a run records are finite.
            is_close = is_finite(one) and is_finite(two) and math.isclose(one, two, **CLOSE)
            if one != two and not is_close:
                differences.append(f"{place}: recorded {one}, computed {two}")
    return Replayed(len(run.rounds), numbers, tuple(differences))


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


def _by_place(value: Any, where: str) -> dict[str, Any]:
    """Place -> each single value of a mapping of mappings."""
    if not isinstance(value, Mapping):
        return {where: value}
    found: dict[str, Any] = {}
    for key, one in value.items():
        found |= _by_place(one, f"{where}, {key}")
    return found


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
        question: the strategy that was asked, and the site that was left out, if any.
        rounds: of each round its number, and under ``"recorded"`` and ``"what_if"`` the
            ``"aggregation"`` and the ``"contributions"``.
        sites: site -> ``"weight"`` (mean over the rounds in which it has one) and
            ``"contribution"`` (of its last round), each ``"recorded"`` and ``"what_if"``.

    >>> elm = {"weight": {"recorded": 0.6, "what_if": 0.75}}
    >>> found = WhatIf({"strategy": "FedAvg", "without": "oak"}, [], {"elm": elm})
    >>> found.sites["elm"]["weight"]["what_if"]
    0.75
    """

    question: Mapping[str, str | None]
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
    >>> without_oak.rounds[0]["what_if"]["aggregation"]
    {'elm': 0.75, 'fir': 0.25}
    >>> by_cgsv.sites["elm"]["contribution"]
    {'recorded': 0.6, 'what_if': 0.3333333333333333}
    """
    if without is None and strategy is None:
        raise ConfigError(
            "name a site (without=..., --without) or a strategy (strategy=..., --strategy) to ask "
            "about"
        )
    run = LedgerRun(run_dir, allow_import)
    known = sorted({client for record in run.rounds for client in record["clients"]})
    if without is not None and without not in known:
        raise ConfigError(f"{without!r} took part in no round{did_you_mean(without, known)}")

    rounds = []
    for record, result in play(run, strategy, without):
        of_round: dict[str, Any] = {"round": record["round"]}
        of_round["recorded"] = {name: record[name] for name in ANSWERS}
        of_round["what_if"] = {name: to_json(getattr(result, name)) for name in ANSWERS}
        rounds.append(of_round)
    # Each site's mean weight and its last contribution; None: there is none.
    sites: dict[str, Any] = {site: {"weight": {}, "contribution": {}} for site in known}
    for which in ("recorded", "what_if"):
        weights = [weights_of_model(one[which]["aggregation"]) for one in rounds]
        contributions: dict[str, Any] = {}
        for one in rounds:
            contributions.update(one[which]["contributions"])
        for site, of_site in sites.items():
            own = [of_round[site] for of_round in weights if site in of_round]
            of_site["weight"][which] = sum(own) / len(own) if own else None
            of_site["contribution"][which] = number_in(contributions.get(site))
    name = run.opening["name"] if strategy is None else type(strategy).__name__
    return WhatIf({"strategy": name, "without": without}, rounds, sites)
