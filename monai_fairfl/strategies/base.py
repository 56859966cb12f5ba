# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server half of one published method: a generator of requests that receives replies."""

from __future__ import annotations

import copy
import json
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import (
    Estimate,
    ModelSpec,
    Range,
    Request,
    Weights,
    add_note,
    value_of,
)
from monai_fairfl.replies import Aggregation, Replies, capped, in_each_layer, uniform
from monai_fairfl.strategies.memory import Memory
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting
from monai_fairfl.utils.arguments import Checked, non_default_arguments

ROUNDING = 1e-4
"""By so much the sum of weights may differ from one: they may be of single precision."""

logger = logging.getLogger(__name__)

Rounds = Generator[list[Request], Replies, "RoundResult"]
"""The type of :meth:`Strategy.round`: it yields requests, is sent replies, returns the result."""


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


@dataclass(frozen=True)
class ImagesNeeded:
    """Images that a method's measurement needs of every client.

    Args:
        data: ``"validation"`` or ``"training"``.
        least: fewest different images, as the network takes them: slices, windows or pictures.
        instead: what else a user may do where a site has fewer, such as choosing another argument
            of the strategy.

    >>> needed = ImagesNeeded("validation", 3, "or use similarity='cosine'")
    >>> f"{needed.least} {needed.data} images, {needed.instead}"
    "3 validation images, or use similarity='cosine'"
    """

    data: str
    least: int
    instead: str


@dataclass(eq=False, repr=False)
class Strategy(Checked, ABC):
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
    :class:`~monai_fairfl.strategies.memory.Memory`: a checkpoint holds them.

    A tensor that outlives the round, such as a reward, must be a new one: a view of a reply's
    update would hold all updates in memory.

    >>> from monai_fairfl import Train
    >>> from monai_fairfl.replies import sample_shares
    >>> class ByImages(Strategy):
    ...     def round(self, clients):
    ...         local = yield [Train(client, self.start_of(client)) for client in clients]
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

    ranges: ClassVar[Mapping[str, Range]] = {}
    """Measurement -> its range, of those that the package does not know."""

    gains_when: ClassVar[Mapping[str, str]] = {}
    """Measurement -> ``"high"`` or ``"low"``: which reports of it bring a client weight.

    ``clip_reports`` limits that side alone, and both sides of a measurement that is not here.
    """

    min_clients: ClassVar[int] = 1
    """Fewest clients of a round for which the method makes sense."""

    max_clients: ClassVar[float] = math.inf
    """Most clients of a round that the method can take."""

    images_needed: ClassVar[ImagesNeeded | None] = None
    """Images that its measurement needs of every client; ``None``: any number will do."""

    # What others must know of its models.

    weights_sum_to_one: bool = field(default=True, init=False)
    """Whether the weights of each average sum to one; others are then logged."""

    additive: ClassVar[bool | None] = None
    """Whether its contributions of several clients can be added up, as shares can; ``None``: they
    are its weights, and it estimates nobody's contribution.
    """

    personal: ClassVar[bool] = False
    """Whether clients train a personal model, which nobody else sees and which they would use."""

    shares_nothing: ClassVar[bool] = False
    """Whether no client's update reaches another's model. Guards then judge each by itself."""

    # What the constructor and the federation set.

    weights: Weights = field(init=False)
    rewards: Mapping[str, Weights] = field(init=False)

    clients: Sequence[str] = field(init=False)
    """All known clients, sorted: those of the run's start, and those that any round has asked."""

    spec: ModelSpec = field(init=False)
    buffers: str = field(default="aggregation", init=False)
    rounds_planned: int = field(default=0, init=False)
    _own_parts: Parts = field(default=Parts(), init=False)
    _initial_state: dict[str, Any] | None = field(default=None, init=False)
    _notes: dict[str, str] = field(init=False)

    def __post_init__(
        self,
        weighting: Weighting | None = None,
        reward: Reward | None = None,
        average: Average | None = None,
        training: Mapping[str, float] | None = None,
        *limits: float | None,
    ) -> None:
        super().__post_init__()
        training = {} if training is None else training
        self.parts = Parts(weighting, reward, average, training, *limits)
        self.check_parts(self.parts)

    def part_given_as(self, argument: str, kind: type) -> Any:
        """The part that was given as an argument of the method's own, which then has its default.

        Args:
            argument: its name.
            kind: of the part; ``None`` where the argument is of another.
        """
        part = getattr(self, argument)
        if not isinstance(part, kind):
            return None
        [row] = [row for row in fields(self) if row.name == argument]
        setattr(self, argument, row.default)
        return part

    # NVFlare writes into a job the attributes that are named as arguments, and cannot write these.
    @property
    def parts(self) -> Parts:
        """What replaces the method's own parts."""
        return self._own_parts

    @parts.setter
    def parts(self, parts: Parts) -> None:
        self._own_parts = parts

    @property
    def name(self) -> str:
        """Class name and arguments that are not the defaults, fit for a folder: ``FedCE-sum``."""
        own = non_default_arguments(self, Strategy)
        words = [type(self).__name__, *own, *self.parts.name_words()]
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(words))

    @abstractmethod
    def round(self, clients: Sequence[str]) -> Rounds:
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
        self._sum_was_logged = False

        # A second run knows nothing of the first.
        if self._initial_state is None:
            self._initial_state = self.state_dict()
        self.load_state_dict(copy.deepcopy(self._initial_state))

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
        values = np.full(len(replies), np.nan)
        for row, reply in enumerate(replies):
            if name in reply.measurements:
                values[row] = value_of(reply.measurements[name])
        if np.isnan(values).all():
            raise FederationError(
                f"{type(self).__name__} needs {name!r}, and {self._nobody_measured(replies, name)}"
            )
        if self.parts.clip_reports is not None:
            values = self._clipped(replies, values, name, self.parts.clip_reports)
        return values

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
        absent = np.isnan(values)
        mean = values[~absent].sum() / (~absent).sum()
        for row in np.flatnonzero(absent):
            self.note(replies[row].client, f"{name} absent, {mean:.6g} used: mean of the others")
        return np.where(absent, mean, values)

    def _nobody_measured(self, replies: Replies, name: str) -> str:
        """Why there is no measurement ``name``: nobody sent it, or all were dropped."""
        reasons = replies.why_dropped(name)
        if not reasons:
            return f"no client of {replies.clients} measured it"
        of_clients = [f"{client} ({reason})" for client, reason in reasons.items()]
        return f"what the clients sent cannot be used: {'; '.join(of_clients)}"

    def _clipped(self, replies: Replies, values: np.ndarray, name: str, k: float) -> np.ndarray:
        """The measurements, within k median distances of their median on the side that gains."""
        middle = np.nanmedian(values)
        distance = np.nanmedian(abs(values - middle))
        least, most = middle - k * distance, middle + k * distance
        # A report on the side that brings no weight stays: the limit would give it weight.
        side = self.gains_when.get(name)
        if side == "high":
            least = -math.inf
        elif side == "low":
            most = math.inf
        clipped = np.clip(values, least, most)
        for row in np.flatnonzero((clipped != values) & ~np.isnan(values)):
            change = f"{name} {values[row]:.6g} clipped to {clipped[row]:.6g}"
            than = "more" if values[row] > clipped[row] else "less"
            self.note(replies[row].client, f"{change}: it reported {than} than the others")
        return clipped

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
        details: Mapping[str, Any] | None = None,
    ) -> RoundResult:
        """Average the updates into the next global model, and reward the clients.

        Every strategy does both here, so that its parts can be replaced. All arrays are in the
        order of ``replies``.

        Args:
            replies: those of the exchange that trained.
            weights: in the average, shape (N,), or layer -> such weights. Unless
                ``weights_sum_to_one`` is false, another sum than 1 is logged.
            contributions: a number or :class:`~monai_fairfl.Estimate` for each client; none where
                the method estimates none.
            rewards: client -> the model from which it continues, as new tensors, or a
                :class:`~monai_fairfl.strategies.Reward` that makes these models. A client that is
                not named continues from the new global model; an absent one, from what it had.
            start: the model that the steps are added to, see :meth:`Replies.average`.
            scale: factor of each update, shape (N,); it is also recorded among the details.
            details: the method's own quantities: name -> numbers of shape (N,) or (N, classes),
                class or layer -> numbers of shape (N,), or client -> number. NaN: there is none.

        Returns:
            The result, which :meth:`round` returns.
        """
        parts = self.parts
        numbers = np.zeros(0)
        if len(contributions):
            numbers = self._numbers("contributions", contributions, replies)
        recorded = dict(details or {})
        if scale is not None:
            recorded["scale"] = scale

        # The weights: the strategy's own, or those of its parts; copies have one weight together.
        if parts.weighting is not None:
            weights = parts.weighting(replies, numbers)
        weights = in_each_layer(weights, lambda of: self._numbers("weights", of, replies))
        if parts.cap is not None:
            weights = in_each_layer(weights, partial(capped, most=parts.cap))
        uses_weights = parts.average is None or parts.average.uses_weights
        if uses_weights:
            self._warn_of_sum(weights)
        weights = in_each_layer(weights, replies.shared)

        # The next global model; tensors that are not averaged stay as they are.
        rewards = parts.reward or rewards
        if start is None and isinstance(rewards, Reward) and rewards.shares_global_step:
            start = self.weights
        how: dict[str, Any] = {"buffers": self.buffers, "start": start, "scale": scale}
        if parts.average is None:
            averaged = replies.average(weights, **how)
        else:
            averaged = parts.average(replies, weights, **how)
        model = {**self.weights, **averaged}

        # The model that each client continues from: its reward or the global model; an absent one
        # keeps what it had.
        models: dict[str, Weights] | None = None
        if isinstance(rewards, Reward):
            rewards, quantities = rewards(replies, self.weights, model, numbers)
            recorded.update(quantities)
        if rewards is not None:
            absent = set(self.clients) - set(replies.clients)
            kept = {client: self.start_of(client) for client in sorted(absent)}
            models = {**self.rewards, **kept, **dict.fromkeys(replies.clients, model), **rewards}

        if not uses_weights:
            weights = uniform(replies)
        if isinstance(weights, Mapping):
            aggregation = {layer: _by_client(replies, of) for layer, of in weights.items()}
        else:
            aggregation = _by_client(replies, weights)
        given = replies.shared(numbers) if replies.groups and len(numbers) else contributions
        named = zip(replies.clients, np.asarray(given, object).tolist(), strict=bool(len(numbers)))
        notes = self._notes
        self._notes = {}
        return RoundResult(
            model,
            aggregation,
            dict(named),
            rewards=models,
            notes=notes,
            details={name: _by_client(replies, values) for name, values in recorded.items()},
        )

    def _numbers(self, what: str, values: Any, replies: Replies) -> np.ndarray:
        """Numbers of all clients as an array.

        Raises:
            ConfigError: naming the strategy and what it gave, where these are no N finite numbers.
        """
        try:
            numbers = np.array([float(value) for value in values])
        except (TypeError, ValueError):
            numbers = np.empty(0)
        if numbers.shape != (len(replies),):
            raise ConfigError(
                f"strategy {self.name}: {what} must be {len(replies)} numbers in the order of "
                f"replies.clients, got {values!r:.200}"
            )
        for client, number in zip(replies.clients, numbers, strict=True):
            if not math.isfinite(number):
                raise ConfigError(
                    f"strategy {self.name}: {what} of client {client!r} must be a finite number, "
                    f"got {number!r}"
                )
        return numbers

    def _warn_of_sum(self, weights: Aggregation) -> None:
        """Log, once a run, that weights do not sum to one: the average is then no mean."""
        for of_layer in weights.values() if isinstance(weights, Mapping) else [weights]:
            total = math.fsum(of_layer)
            is_odd = math.isfinite(total) and abs(total - 1) > ROUNDING
            if is_odd and self.weights_sum_to_one and not self._sum_was_logged:
                self._sum_was_logged = True
                logger.warning(
                    "strategy %s: the weights of an average sum to %.6g, and not to 1: divide them "
                    "by their sum, or set weights_sum_to_one = False",
                    self.name,
                    total,
                )

    # ---- what survives a stop

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs but the models; JSON."""
        return {name: getattr(self, name) for name in self.state}

    def state_as_json(self) -> str:
        """:meth:`state_dict` as a text.

        Raises:
            ConfigError: when it is no plain JSON; it names the strategy and its attributes.
        """
        try:
            return json.dumps(self.state_dict())
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"strategy {self.name}: its state, {', '.join(self.state)}, must be plain JSON "
                f"({error}): keep a Memory, numbers, texts, lists and mappings of these"
            ) from error

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`.

        Raises:
            ValueError: when ``state`` is of another strategy or version.
        """
        if set(state) != set(self.state):
            raise ValueError(
                f"the state of {type(self).__name__} is {sorted(self.state)}, the checkpoint holds "
                f"{sorted(state)}: it was written by another strategy or version"
            )
        for name, value in state.items():
            kind = type(getattr(self, name))
            setattr(self, name, kind(value) if issubclass(kind, Memory) else value)
        self._notes = {}


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
    if isinstance(given.get("training"), Mapping):
        given["training"] = {**strategy.parts.training, **given["training"]}
    together = replace(strategy.parts, **given)
    strategy.check_parts(together)
    strategy.parts = together
    return strategy


def _by_client(replies: Replies, values: Any) -> dict[str, Any]:
    """Numbers in the order of the replies as the ledger has them, see :meth:`Strategy.finish`."""
    if isinstance(values, Mapping):
        layers = {key: of for key, of in values.items() if isinstance(of, np.ndarray)}
        if len(layers) < len(values):
            return {client: _plain(value) for client, value in values.items()}
        rows = zip(*layers.values(), strict=True)
        found = [dict(zip(layers, map(_plain, row), strict=True)) for row in rows]
        return dict(zip(replies.clients, found, strict=True))
    by_client: dict[str, Any] = {}
    for client, value in zip(replies.clients, np.asarray(values, float), strict=True):
        if value.ndim:
            by_client[client] = {str(number): _plain(one) for number, one in enumerate(value)}
        elif not np.isnan(value):
            by_client[client] = _plain(value)
    return by_client


def _plain(value: float) -> float | None:
    """A number as Python's; ``None`` where it is NaN."""
    return None if math.isnan(value) else float(value)
