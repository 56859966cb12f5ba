# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server half of one published method: a generator of requests that receives replies.

A :class:`Memory` is what a method keeps of its clients from round to round; :func:`play_round`
sends a strategy the replies to what it asks.
"""

from __future__ import annotations

import json
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import (
    Estimate,
    ModelSpec,
    Request,
    Train,
    Weights,
    add_note,
    plain_numbers,
    value_of,
)
from monai_fairfl.replies import (
    Aggregation,
    Replies,
    capped,
    in_each_layer,
    normalise,
    uniform,
)
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting
from monai_fairfl.utils.arguments import Component, non_default_arguments

logger = logging.getLogger(__name__)

Rounds = Generator[list[Request], Replies, "RoundResult"]
"""The type of :meth:`Strategy.round`: it yields requests, is sent replies, returns the result."""


class Memory(dict[str, float]):
    """Client -> number, of all clients that were ever seen; plain JSON for a checkpoint.

    >>> memory = Memory(A=0.5)
    >>> memory.put(["B"], np.array([0.25]))
    >>> memory.of(["A", "B", "C"], 0.0).tolist()
    [0.5, 0.25, 0.0]
    >>> memory.add(["A", "C"], 1.0).tolist()
    [1.5, 1.0]
    """

    def of(self, clients: Sequence[str], default: float) -> np.ndarray:
        """The numbers of ``clients``, shape (N,); ``default`` where a client is new."""
        return np.array([self.get(client, default) for client in clients], float)

    def put(self, clients: Sequence[str], values: np.ndarray) -> None:
        """Take the ``values`` of ``clients`` in the place of their earlier ones."""
        self.update(zip(clients, np.asarray(values, float).tolist(), strict=True))

    def add(self, clients: Sequence[str], values: np.ndarray | float) -> np.ndarray:
        """Add ``values`` to those of ``clients``, which begin at 0; the sums, shape (N,)."""
        sums = self.of(clients, 0.0) + values
        self.put(clients, sums)
        return sums


class Shares(Memory):
    """Client -> weight, of sum one over all clients that were ever seen."""

    def of_present(self, clients: Sequence[str]) -> np.ndarray:
        """The weights of the present ``clients``, which sum to one; shape (N,).

        A client that was never seen gets the mean weight; all are equal where nobody was seen. The
        weights of the same clients are returned as they are.

        >>> Shares(A=0.25, B=0.75).of_present(["B", "C"]).tolist()
        [0.6, 0.4]
        """
        weights = self.of(clients, self._mean())
        # Where nobody is absent and nobody is new, nothing is divided: the same bits.
        return weights if set(clients) == set(self) else normalise(weights)

    def put(self, clients: Sequence[str], values: np.ndarray) -> None:
        """Take the new weights of the present ``clients``, which sum to one.

        They divide among them the share that they had before, so that a client loses nothing by
        its absence.

        >>> shares = Shares(A=0.5, B=0.3, C=0.2)
        >>> shares.put(["A", "B"], np.array([0.5, 0.5]))
        >>> shares
        {'A': 0.4, 'B': 0.4, 'C': 0.2}
        """
        if not set(self) <= set(clients):
            present_share = self.of(clients, self._mean()).sum()
            super().put(clients, present_share * values)
            # Sorted, so that the bits of the sum do not depend on who was absent.
            clients = sorted(self)
            values = normalise(self.of(clients, 0.0))
        super().put(clients, values)

    def _mean(self) -> float:
        return sum(self.values()) / len(self) if self else 1.0


@dataclass(frozen=True)
class RoundResult:
    """The result of one round. :meth:`Strategy.finish` makes it.

    Args:
        weights: name of a tensor -> tensor, of the next global model.
        aggregation: client -> weight in the average, or layer -> client -> weight.
        contributions: client -> contribution, with its uncertainty if the method computes one.
        rewards: client -> the model from which it continues; ``None``: all continue from the global
            model.
        notes: client -> what a reader of the ledger should know, such as a measurement in whose
            place the mean of the others was used.
        details: the method's own quantities for ledger and report: name -> client -> number, or
            name -> client -> class or layer -> number.

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> model = {"w": torch.zeros(1)}
    >>> asked = [Request("A", "train", model, id=0), Request("B", "train", model, id=1)]
    >>> sent = [Reply("A", {"w": torch.ones(1)}, 8, id=0), Reply("B", model, 8, id=1)]
    >>> replies, shares = Replies(sent, asked, ModelSpec(("w",))), {"A": 0.75, "B": 0.25}
    >>> model = replies.average(np.array([0.75, 0.25]))
    >>> result = RoundResult(model, shares, contributions=shares)
    >>> result.weights
    {'w': tensor([0.7500])}
    """

    weights: Weights
    aggregation: Mapping[str, Any]
    contributions: Mapping[str, float | Estimate]
    rewards: Mapping[str, Weights] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Strategy(Component, ABC):
    """The server's half of a method. A subclass writes :meth:`round` as the paper's algorithm.

    Every round has the same four parts: a *measurement* (what the requests ask for), a
    *contribution* of each client, a *weighting* of the average, and a *reward* (the model from
    which each client continues). Arguments of every strategy replace the last two, and more: see
    :class:`~monai_fairfl.strategies.Parts`. A subclass is a dataclass, whose rows by
    :func:`~monai_fairfl.utils.arguments.argument` are its own arguments; or it has a constructor
    that takes ``**parts``, stores its arguments in attributes of their names, and ends with
    ``super().__init__(**parts)``.

    A strategy does no input or output, and owns no model. The federation owns the global model and
    the rewards. It sets ``weights``, ``rewards``, ``clients``, ``spec``, ``buffers`` and
    ``rounds_planned``, which a strategy only reads. A strategy changes its own attributes only
    after its last ``yield``, so that a round can be undone. What it keeps from round to round is in
    rows by :func:`~monai_fairfl.utils.arguments.remembered`, such as a
    :class:`Memory`: a checkpoint holds them.

    A tensor that outlives the round, such as a reward, must be a new one: a view of a reply's
    update would hold all updates in memory.

    >>> from monai_fairfl.replies import sample_shares
    >>> class ByImages(Strategy):
    ...     def round(self, clients):
    ...         local = yield self.train(clients)
    ...         shares = sample_shares(local)
    ...         return self.finish(local, shares, contributions=shares)
    >>> ByImages().name
    'ByImages'
    """

    _: KW_ONLY
    weighting: InitVar[Weighting | None] = None
    reward: InitVar[Reward | None] = None
    average: InitVar[Average | None] = None
    training: InitVar[Mapping[str, float] | None] = None
    cap: InitVar[float | None] = None
    clip_reports: InitVar[float | None] = None

    # What the method needs; checked before anything is trained.

    requires: ClassVar[frozenset[str]] = frozenset()
    """Measurements without which the method does not work."""

    gains_when: ClassVar[Mapping[str, str]] = {}
    """Measurement -> ``"high"`` or ``"low"``: which reports of it bring a client weight.

    ``clip_reports`` limits that side alone, and both sides of a measurement that is not here.
    """

    min_clients: ClassVar[int] = 1
    """Fewest clients of a round for which the method makes sense."""

    max_clients: ClassVar[float] = math.inf
    """Most clients of a round that the method can take."""

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Value of the argument ``variant`` -> defaults of arguments that are ``None``."""

    # What others must know of its models.

    has_contributions: ClassVar[bool] = False
    """Whether it estimates contributions; else those of its results are its weights."""

    personal: ClassVar[bool] = False
    """Whether clients train a personal model, which nobody else sees and which they would use."""

    shares_nothing: ClassVar[bool] = False
    """Whether no client's update reaches another's model. Guards then judge each by itself."""

    # What the constructor and the federation set.

    weights: Weights = field(init=False)
    rewards: Mapping[str, Weights] = field(init=False)

    clients: list[str] = field(init=False)
    """All known clients, sorted: those of the run's start, and those that any round has asked."""

    spec: ModelSpec = field(init=False)
    buffers: str = field(default="aggregation", init=False)
    rounds_planned: int = field(default=0, init=False)
    exchanged: Parts = field(default=Parts(), init=False)
    """What replaces the method's own parts."""

    _notes: dict[str, str] = field(init=False)

    def __post_init__(self, *parts: Any) -> None:
        own = {row.name: row.default for row in fields(self)}
        others = iter(parts)
        given = {}
        for name in (row.name for row in fields(Parts)):
            if name not in own:
                given[name] = next(others, None)
            elif isinstance(getattr(self, name), Component):
                # A part in the place of the method's own argument, which then has its default.
                given[name] = getattr(self, name)
                setattr(self, name, own[name])
        super().__post_init__()
        for name, default in self.variants.get(getattr(self, "variant", ""), {}).items():
            if getattr(self, name) is None:
                setattr(self, name, default)
        self.exchanged = Parts(**{name: part for name, part in given.items() if part is not None})
        self.check_parts(self.exchanged)

    @property
    def name(self) -> str:
        """Class name and arguments that are not the defaults, fit for a folder: ``FedCE-sum``."""
        own = non_default_arguments(self, Strategy)
        words = [type(self).__name__, *own]
        for name, part in vars(self.exchanged).items():
            if isinstance(part, Mapping):
                words += [f"{key}_{value:g}" for key, value in part.items()]
            elif isinstance(part, Component):
                words += [type(part).__name__, *non_default_arguments(part)]
            elif part is not None:
                words.append(f"{name}_{part:g}")
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(words))

    @abstractmethod
    def round(self, clients: list[str]) -> Rounds:
        """Play one round, as a generator: yield requests, receive replies, return the result.

        ``replies = yield [Train(...), ...]`` sends one request to each client. It may be repeated.
        ``return self.finish(...)`` ends the round.

        Args:
            clients: names of the clients that take part in this round.
        """

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        """Prepare for a run: once before its first round, or before :meth:`load_state_dict`.

        Args:
            weights: the initial global model.
            clients: those known at the start of the run, also where it is resumed; others may
                join later.
            spec: the model's tensors.
        """
        self.check_model(spec, self.buffers)
        self.weights = weights
        self.rewards = {}
        self.spec = spec
        self.clients = sorted(clients)
        self._notes = {}

        # A second run knows nothing of the first.
        for row in fields(self):
            if "remembered" in row.metadata:
                setattr(self, row.name, row.metadata["remembered"]())

    def check_model(self, spec: ModelSpec, buffers: str) -> None:  # noqa: B027 (most take any)
        """Refuse a model that the method cannot train; called at preflight and by :meth:`start`.

        Args:
            spec: the model's tensors.
            buffers: the federation's buffer policy.

        Raises:
            ConfigError: naming the strategy, what it needs and the fix.
        """

    def check_parts(self, parts: Parts) -> None:  # noqa: B027 (most take any)
        """Refuse parts with which the method would measure what it does not mean.

        The constructor calls it when it takes the parts, so a subclass passes these on last, when
        its own arguments are stored.

        Args:
            parts: that are to replace the method's own.

        Raises:
            ConfigError: naming the strategy, the part and the fix.
        """

    def start_of(self, client: str) -> Weights:
        """The model from which a client continues: its reward, or else the global model."""
        return self.rewards.get(client, self.weights)

    def train(
        self, clients: Sequence[str], measure: Sequence[str] = (), context: Mapping[str, float] = {}
    ) -> list[Request]:
        """Requests to train the models from which the clients continue.

        Args:
            clients: that are asked.
            measure: names of the measurements to send.
            context: the same numbers for all, see :func:`~monai_fairfl.Train`.
        """
        return [Train(client, self.start_of(client), measure, context) for client in clients]

    # ---- what clients measured

    def known(self, replies: Replies, name: str) -> np.ndarray:
        """Read a measurement of the clients that sent it.

        Args:
            replies: those of the exchange that asked for it.
            name: of the measurement.

        Returns:
            Shape (N,), in the order of the replies; NaN for a client that sent none. With
            ``clip_reports``, the others are limited.

        Raises:
            FederationError: if no client sent one.
        """
        sent = [reply.measurements.get(name, math.nan) for reply in replies]
        values = np.array([value_of(one) for one in sent], float)
        if np.isnan(values).all():
            raise self._nobody_measured(replies, name)
        k = self.exchanged.clip_reports
        if k is None:
            return values

        # Within k median distances of their median. A report on the side that brings no weight
        # stays: the limit would give it weight.
        middle = np.nanmedian(values)
        distance = np.nanmedian(abs(values - middle))
        side = self.gains_when.get(name)
        least = -math.inf if side == "high" else middle - k * distance
        most = math.inf if side == "low" else middle + k * distance
        clipped = np.clip(values, least, most)
        for row in np.flatnonzero(abs(clipped - values) > 0):
            change = f"{name} {values[row]:.6g} clipped to {clipped[row]:.6g}"
            than = "more" if values[row] > clipped[row] else "less"
            self.note(replies[row].client, f"{change}: it reported {than} than the others")
        return clipped

    def measured(self, replies: Replies, name: str) -> np.ndarray:
        """Read a measurement of all present clients.

        Args:
            replies: those of the exchange that asked for it.
            name: of the measurement.

        Returns:
            Shape (N,), in the order of the replies. A client that sent none, or one that was
            dropped, gets the mean of the others, and a note.

        Raises:
            FederationError: if no client sent one.
        """
        values = self.known(replies, name)
        is_absent = np.isnan(values)
        mean = values[~is_absent].sum() / (~is_absent).sum()
        for row in np.flatnonzero(is_absent):
            self.note(replies[row].client, f"{name} absent, {mean:.6g} used: mean of the others")
        return np.where(is_absent, mean, values)

    def _nobody_measured(self, replies: Replies, name: str) -> FederationError:
        """Why there is no measurement ``name``: nobody sent it, or all were dropped."""
        reasons = replies.why_dropped(name) or "nobody measured it"
        return FederationError(
            f"{type(self).__name__} needs {name!r} of {replies.clients}, and none can be used: "
            f"{reasons}"
        )

    def note(self, client: str, text: str) -> None:
        """Add a note on ``client`` to this round's record, beside earlier ones of the round."""
        add_note(self._notes, client, text)

    # ---- the end of a round

    def finish(
        self,
        replies: Replies,
        weights: Aggregation,
        contributions: Sequence[float | Estimate] | np.ndarray,
        rewards: Mapping[str, Weights] | Reward | None = None,
        *,
        start: Weights | None = None,
        scale: np.ndarray | None = None,
        merit: np.ndarray | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> RoundResult:
        """Average the updates into the next global model, and reward the clients.

        Every strategy does both here, so that its parts can be replaced. All arrays are in the
        order of ``replies``.

        Args:
            replies: those of the exchange that trained.
            weights: in the average, shape (N,), or layer -> such weights.
            contributions: a number or :class:`~monai_fairfl.Estimate` for each client; none where
                the method estimates none.
            rewards: client -> the model from which it continues, as new tensors, or a
                :class:`~monai_fairfl.strategies.Reward` that makes these models. A client that is
                not named continues from the new global model; an absent one, from what it had.
            start: the model that the steps are added to, see :meth:`Replies.average`.
            scale: factor of each update, shape (N,); it is also recorded among the details.
            merit: what ``rewards`` pays each client for, shape (N,); ``None``: its contribution.
            details: the method's own quantities: name -> numbers of shape (N,) or (N, classes),
                class or layer -> numbers of shape (N,), or client -> number. NaN: there is none.

        Returns:
            The result, which :meth:`round` returns.
        """
        parts = self.exchanged
        worth = np.zeros(0)
        if len(contributions):
            worth = self._numbers("contributions", contributions, replies)
        recorded = dict(details or {})
        if scale is not None:
            recorded["scale"] = scale

        # The weights: the strategy's own, or those of its parts; copies have one weight together.
        if parts.weighting is not None:
            weights = parts.weighting(replies, worth)
        weights = in_each_layer(weights, lambda given: self._weights(given, replies))

        # The next global model; tensors that are not averaged stay as they are.
        if parts.reward is not None:
            rewards, merit = parts.reward, None
        if start is None and isinstance(rewards, Reward) and rewards.shares_global_step:
            start = self.weights
        how: dict[str, Any] = {"buffers": self.buffers, "start": start, "scale": scale}
        if parts.average is None:
            averaged: Weights = replies.average(weights, **how)
        else:
            averaged = parts.average(replies, weights, **how)
        model = {**self.weights, **averaged}
        if parts.average is not None and not parts.average.uses_weights:
            weights = uniform(replies)

        # The model that each client continues from: its reward or the global model; an absent one
        # keeps what it had.
        models: dict[str, Weights] | None = None
        if isinstance(rewards, Reward):
            paid_for = worth if merit is None else merit
            rewards, quantities = rewards(replies, self.weights, model, paid_for)
            recorded.update(quantities)
        if rewards is not None:
            absent = set(self.clients) - set(replies.clients)
            kept = {client: self.start_of(client) for client in sorted(absent)}
            models = {**self.rewards, **kept, **dict.fromkeys(replies.clients, model), **rewards}

        aggregation = in_each_layer(weights, lambda given: _by_client(replies, given))
        if replies.groups and len(worth):
            contributions = replies.shared(worth)
        notes = self._notes
        self._notes = {}
        return RoundResult(
            model,
            aggregation,
            plain_numbers(dict(zip(replies.clients, contributions))),
            rewards=models,
            notes=notes,
            details={name: _by_client(replies, values) for name, values in recorded.items()},
        )

    def _weights(self, given: Any, replies: Replies) -> np.ndarray:
        """Weights of an average as numbers, limited by ``cap``; copies share one weight."""
        weights = self._numbers("weights", given, replies)
        if self.exchanged.cap is not None:
            weights = capped(weights, self.exchanged.cap)
        # They may be of single precision.
        if not math.isclose(weights.sum(), 1, rel_tol=1e-4):
            logger.warning("%s: weights of an average sum to %g, not 1", self.name, weights.sum())
        return replies.shared(weights)

    def _numbers(self, what: str, values: Any, replies: Replies) -> np.ndarray:
        """Numbers of all clients as an array.

        Raises:
            ConfigError: naming the strategy and what it gave, where these are no N finite numbers.
        """
        numbers = np.array([float(value) for value in values])
        if len(numbers) != len(replies) or not np.isfinite(numbers).all():
            raise ConfigError(
                f"strategy {self.name}: {what} must be {len(replies)} numbers, all finite, of "
                f"{replies.clients}, got {values!r:.200}"
            )
        return numbers

    # ---- what survives a stop

    def state_as_json(self) -> str:
        """:meth:`state_dict` as a text.

        Raises:
            ConfigError: when it is no plain JSON; it names the strategy and its attributes.
        """
        state = self.state_dict()
        try:
            return json.dumps(state)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"strategy {self.name}: its state, {', '.join(state)}, must be plain JSON "
                f"({error}): keep a Memory, numbers, texts, lists and mappings of these"
            ) from error


def compose(strategy: Strategy, **parts: Any) -> Strategy:
    """Replace parts of a strategy that is made, such as its weights or its rewards.

    Args:
        strategy: measures, and estimates contributions.
        **parts: as the arguments of every strategy. Those that are not given, or ``None``, stay as
            they are; ``training`` is added to the strategy's own.

    Returns:
        The same strategy, with the new parts.

    >>> from monai_fairfl.strategies import FedAvg
    >>> compose(FedAvg(), training={"prox_mu": 0.01}).name
    'FedAvg-prox_mu_0.01'
    """
    given = {name: part for name, part in parts.items() if part is not None}
    if "training" in given:
        given["training"] = {**strategy.exchanged.training, **given["training"]}
    together = replace(strategy.exchanged, **given)
    strategy.check_parts(together)
    strategy.exchanged = together
    return strategy


def _by_client(replies: Replies, values: Any) -> dict[str, Any]:
    """Numbers in the order of the replies as the ledger has them, see :meth:`Strategy.finish`."""
    labels: list[str] = []
    if isinstance(values, Mapping):
        if not all(isinstance(of_layer, np.ndarray) for of_layer in values.values()):
            return dict(plain_numbers(values))
        labels = list(values)
        values = np.stack(list(values.values()), axis=1)
    by_client: dict[str, Any] = {}
    for client, value in zip(replies.clients, np.asarray(values, float).tolist(), strict=True):
        if isinstance(value, list):
            by_client[client] = dict(zip(labels or map(str, range(len(value))), value))
        elif not math.isnan(value):
            by_client[client] = value
    return by_client


def play_round(
    strategy: Strategy, clients: Sequence[str], answer: Callable[[list[Request]], Replies]
) -> RoundResult:
    """Play one round of a strategy: send it the replies to what it asks, until it returns.

    Args:
        strategy: that has been started.
        clients: that take part in the round.
        answer: returns the replies to the requests of one exchange.

    Returns:
        The strategy's result.

    Raises:
        ConfigError: naming the strategy whose round asks nothing, or ends with no result.

    >>> import torch
    >>> from monai_fairfl.strategies import FedAvg
    >>> fedavg = FedAvg()
    >>> fedavg.start({"w": torch.zeros(1)}, ["elm", "oak"], ModelSpec(("w",)))
    >>> def answer(requests):
    ...     asked = [replace(request, id=id) for id, request in enumerate(requests)]
    ...     replies = [request.reply({"w": torch.ones(1)}, 10) for request in asked]
    ...     return Replies(replies, asked, fedavg.spec)
    >>> play_round(fedavg, ["elm", "oak"], answer).aggregation
    {'elm': 0.5, 'oak': 0.5}
    """

    # Of a round that was undone.
    strategy._notes = {}
    result: Any = strategy.round(list(clients))
    replies: Replies | None = None
    while isinstance(result, Generator):
        try:
            # The first None begins it.
            asked = result.send(replies)
        except StopIteration as stop:
            result = stop.value
        else:
            replies = answer(list(asked))
    if not isinstance(result, RoundResult):
        raise ConfigError(
            f"strategy {strategy.name}: its round must ask with replies = yield [Train(...), ...], "
            "a list, and end with return self.finish(...)"
        )
    return result
