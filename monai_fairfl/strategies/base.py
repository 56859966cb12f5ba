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
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, ClassVar

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import Estimate, ModelSpec, Range, Request, Weights, add_note, value_of
from monai_fairfl.replies import Aggregation, Replies, capped, in_each_layer, is_by_layer, uniform
from monai_fairfl.strategies.arguments import non_default_arguments
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting
from monai_fairfl.strategies.quantities import Quantity

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

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> model = {"w": torch.zeros(1)}
    >>> asked = [Request("A", "train", model, id=0), Request("B", "train", model, id=1)]
    >>> sent = [Reply("A", {"w": torch.ones(1)}, 8, id=0), Reply("B", model, 8, id=1)]
    >>> replies, shares = Replies(sent, asked, ModelSpec(("w",))), {"A": 0.75, "B": 0.25}
    >>> result = RoundResult(replies.average(shares), shares, contributions=shares)
    >>> result.weights
    {'w': tensor([0.7500])}
    """

    weights: Weights
    aggregation: Aggregation
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


class Strategy(ABC):
    """The server's half of a method. A subclass writes :meth:`round` as the paper's algorithm.

    Every round has the same four parts: a *measurement* (what the requests ask for), a
    *contribution* of each client, a *weighting* of the average, and a *reward* (the model from
    which each client continues). Arguments of every strategy replace the last two, and more: see
    :class:`~monai_fairfl.strategies.Parts`. A subclass with a constructor of its own takes
    ``**parts``, stores its arguments in attributes of their names, and ends with
    ``super().__init__(**parts)``.

    A strategy does no input or output, and owns no model. The federation owns the global model and
    the rewards. It sets ``weights``, ``rewards``, ``clients``, ``spec``, ``buffers`` and
    ``rounds_planned``, which a strategy only reads. A strategy changes its own attributes only
    after its last ``yield``, so that a round can be undone. Those that a checkpoint must store are
    named in ``state``, and are plain JSON.

    A tensor that outlives the round, such as a reward, must be a new one: a view of a reply's
    update would hold all updates in memory.

    >>> from monai_fairfl.messages import Train
    >>> from monai_fairfl.replies import sample_shares
    >>> class ByImages(Strategy):
    ...     def round(self, clients):
    ...         local = yield [Train(client, self.start_of(client)) for client in clients]
    ...         shares = sample_shares(local)
    ...         return self.finish(local, shares, contributions=shares)
    >>> ByImages().name
    'ByImages'
    """

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

    max_clients: ClassVar[int | None] = None
    """Most clients of a round that the method can take; ``None``: any number."""

    images_needed: ClassVar[ImagesNeeded | None] = None
    """Images that its measurement needs of every client; ``None``: any number will do."""

    weights_sum_to_one: bool = True
    """Whether the weights of each average sum to one; others are then logged."""

    output_layer: str | None = None
    """Module that makes the logits, where the method reads it; ``None``: found by a network's run.
    """

    # What the report needs.

    additive: ClassVar[bool | None] = None
    """Whether its contributions of several clients can be added up, as shares can; ``None``: they
    are its weights, and it estimates nobody's contribution.
    """

    personal: ClassVar[bool] = False
    """Whether clients train a personal model, which nobody else sees and which they would use."""

    shares_nothing: ClassVar[bool] = False
    """Whether no client's update reaches another's model. Guards then judge each by itself."""

    quantities: ClassVar[Mapping[str, Quantity]] = {}
    """Name -> text of what it gives to :meth:`finish` as ``details``."""

    # What survives a stop and a resume.

    state: ClassVar[tuple[str, ...]] = ()
    """Attributes that the checkpoint holds."""

    # What the constructor and the federation set.

    weights: Weights
    rewards: Mapping[str, Weights]

    clients: Sequence[str]
    """All known clients, sorted: those of the run's start, and those that any round has asked."""

    spec: ModelSpec
    buffers: str = "aggregation"
    rounds_planned: int = 0

    _own_parts: Parts = Parts()
    _initial_state: dict[str, Any] | None = None
    _sum_was_logged: bool = False

    def __init__(
        self,
        *,
        weighting: Weighting | None = None,
        reward: Reward | None = None,
        average: Average | None = None,
        training: Mapping[str, float] | None = None,
        cap: float | None = None,
        clip_reports: float | None = None,
    ):
        training = {} if training is None else training
        self.parts = Parts(weighting, reward, average, training, cap, clip_reports)
        self.check_parts(self.parts)

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
        self._notes: dict[str, str] = {}
        self._sum_was_logged = False

        # A second run knows nothing of the first.
        if self._initial_state is None:
            self._initial_state = copy.deepcopy(self.state_dict())
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

    def context_of(self, client: str) -> Mapping[str, float]:
        """Return the context of the next training request to ``client``.

        A method whose context differs from client to client overrides it and uses it in
        :meth:`round`. A transport that sends all contexts in one message asks for them here.
        """
        return {}

    def value_from_mean(self, client: str, name: str, mean: float) -> float:
        """Return the measurement ``name`` of this round, from a client that sends a running mean.

        Args:
            client: that sent the mean.
            name: of the measurement.
            mean: of the client's values of all its rounds, this one included.

        Returns:
            The mean itself, unless the method averages the measurement over rounds: then the value
            that brings the method's own mean to ``mean``.
        """
        return mean

    @abstractmethod
    def round(self, clients: Sequence[str]) -> Rounds:
        """Play one round, as a generator: yield requests, receive replies, return the result.

        ``replies = yield [Train(...), ...]`` sends one request to each client. It may be repeated.
        ``return self.finish(...)`` ends the round.

        Args:
            clients: names of the clients that take part in this round.
        """

    def finish(
        self,
        replies: Replies,
        aggregation: Aggregation,
        contributions: Mapping[str, float | Estimate],
        rewards: Mapping[str, Weights] | Reward | None = None,
        *,
        start: Weights | None = None,
        scale: Mapping[str, float] | None = None,
        details: Mapping[str, Mapping[str, Any]] | None = None,
        divided: bool = False,
    ) -> RoundResult:
        """Average the updates into the next global model, and reward the clients.

        Every strategy does both here, so that its arguments can replace these parts.

        Args:
            replies: those of the exchange that trained.
            aggregation: client -> weight in the average, or layer -> client -> weight. Unless
                ``weights_sum_to_one`` is false, another sum than 1 is logged.
            contributions: client -> contribution.
            rewards: client -> the model from which it continues, as new tensors, or a
                :class:`~monai_fairfl.strategies.Reward` that makes these models; ``None``: all
                continue from the global model.
            start: the model that the steps are added to, see :meth:`Replies.average`.
            scale: client -> factor of its update; it is also recorded among the details.
            details: the method's own quantities, see :class:`RoundResult`.
            divided: whether the clients of a group of copies have one weight and one contribution
                together already; else :meth:`Replies.shared` sees to it.

        Returns:
            The result, which :meth:`round` returns.
        """
        notes = self._notes
        self._notes = {}
        uses_weights = self.parts.average is None or self.parts.average.uses_weights
        recorded: dict[str, Mapping[str, Any]] = dict(details or {})
        if scale is not None:
            recorded["scale"] = dict(scale)

        # Parts that were given replace the method's own.
        if self.parts.weighting is not None:
            aggregation = self.parts.weighting(replies, contributions)
        if self.parts.cap is not None:
            aggregation = in_each_layer(aggregation, partial(capped, most=self.parts.cap))
        if uses_weights:
            self._warn_of_sum(aggregation)
        if not divided:
            aggregation = in_each_layer(aggregation, replies.shared)
        if self.parts.reward is not None:
            rewards = self.parts.reward

        # The next global model; tensors that are not averaged stay as they are.
        if start is None and isinstance(rewards, Reward) and rewards.shares_global_step:
            start = self.weights
        average = self.parts.average
        if average is None:
            averaged = replies.average(aggregation, self.buffers, start, scale)
        else:
            averaged = average(replies, aggregation, self.buffers, start, scale)
            if not uses_weights:
                aggregation = uniform(replies.clients)
        weights = {**self.weights, **averaged}

        # The model that each client continues from.
        if isinstance(rewards, Reward):
            rewards, quantities = rewards(replies, self.weights, weights, contributions)
            recorded.update(quantities)
        if rewards is not None:
            rewards = self._with_absent(rewards)
        return RoundResult(
            weights,
            aggregation,
            contributions if divided else replies.shared(contributions),
            rewards=rewards,
            notes=notes,
            details=recorded,
        )

    def _warn_of_sum(self, aggregation: Aggregation) -> None:
        """Log, once a run, that weights do not sum to one: the average is then no mean."""
        if self._sum_was_logged or not self.weights_sum_to_one:
            return
        layers = aggregation.values() if is_by_layer(aggregation) else [aggregation]
        for weights in layers:
            total = math.fsum(weights.values())  # type: ignore[arg-type]
            if math.isfinite(total) and abs(total - 1) > ROUNDING:
                self._sum_was_logged = True
                logger.warning(
                    "strategy %s: the weights of an average sum to %.6g, and not to 1, so that the "
                    "model moves by %.6g times their mean update: divide them by their sum, or set "
                    "weights_sum_to_one = False",
                    self.name,
                    total,
                    total,
                )
                return

    def _with_absent(self, rewards: Mapping[str, Weights]) -> dict[str, Weights]:
        """The rewards of the present clients beside what the absent ones had before."""
        all_rewards = dict(self.rewards)
        for client in self.clients:
            all_rewards[client] = self.start_of(client)
        all_rewards.update(rewards)
        return all_rewards

    def known(self, replies: Replies, name: str) -> dict[str, float]:
        """Read a measurement of the clients that sent it.

        Args:
            replies: those of the exchange that asked for it.
            name: of the measurement.

        Returns:
            client -> finite number in the range of the measurement, without clients that sent none.
            With ``clip_reports``, it is limited.

        Raises:
            FederationError: if no client sent one.
        """
        known = {}
        for reply in replies:
            if name in reply.measurements:
                known[reply.client] = value_of(reply.measurements[name])
        if not known:
            raise FederationError(
                f"{type(self).__name__} needs {name!r}, and {self._nobody_measured(replies, name)}"
            )
        if self.parts.clip_reports is not None:
            return self._clipped(known, name, self.parts.clip_reports)
        return known

    def _nobody_measured(self, replies: Replies, name: str) -> str:
        """Why there is no measurement ``name``: nobody sent it, or all were dropped."""
        reasons = replies.why_dropped(name)
        if not reasons:
            return f"no client of {replies.clients} measured it"
        of_clients = [f"{client} ({reason})" for client, reason in reasons.items()]
        return f"what the clients sent cannot be used: {'; '.join(of_clients)}"

    def _clipped(self, known: Mapping[str, float], name: str, k: float) -> dict[str, float]:
        """The measurements, within k median distances of their median on the side that gains."""
        middle = median(known.values())
        distance = median(abs(value - middle) for value in known.values())
        least, most = middle - k * distance, middle + k * distance
        # A report on the side that brings no weight stays: the limit would give it weight.
        side = self.gains_when.get(name)
        if side == "high":
            least = -math.inf
        elif side == "low":
            most = math.inf
        clipped = {}
        for client, value in known.items():
            clipped[client] = min(max(value, least), most)
            if clipped[client] != value:
                change = f"{name} {value:.6g} clipped to {clipped[client]:.6g}"
                than = "more" if value > clipped[client] else "less"
                self.note(client, f"{change}: it reported {than} than the others")
        return clipped

    def measured(self, replies: Replies, name: str) -> dict[str, float]:
        """Read a measurement of all present clients.

        Args:
            replies: those of the exchange that asked for it.
            name: of the measurement.

        Returns:
            client -> number. A client that sent none, or one that was dropped, gets the mean of the
            others, and a note. Copies have the number of their group's first client.

        Raises:
            FederationError: if no client sent one.
        """
        known = dict(self.known(replies, name))
        mean = sum(known.values()) / len(known)
        for first, *copies in replies.groups:
            known.update(dict.fromkeys(copies, known.get(first, mean)))
        measured = {}
        for client in replies.clients:
            if client not in known:
                self.note(client, f"{name} absent, {mean:.6g} used: mean of the others")
            measured[client] = known.get(client, mean)
        return measured

    def note(self, client: str, text: str) -> None:
        """Add a note on ``client`` to this round's record, beside earlier ones of the round."""
        add_note(self._notes, client, text)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs but the models; JSON."""
        return {name: getattr(self, name) for name in self.state}

    def state_as_json(self) -> str:
        """:meth:`state_dict` as a text.

        Raises:
            ConfigError: when it is no plain JSON; it names the strategy and the attribute.
        """
        state = self.state_dict()
        for name, value in state.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"strategy {self.name}: its state {name!r} is no plain JSON ({error}): keep "
                    "numbers, texts, lists and mappings of these, such as float(...) of a number "
                    "of NumPy or PyTorch"
                ) from error
        return json.dumps(state)

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
        for name in self.state:
            setattr(self, name, state[name])
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
