# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server half of one published method: a generator of requests that receives replies."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.averages import Aggregation
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate, Weights, value_of
from monai_fairfl.strategies.parts import Parts, Reward
from monai_fairfl.strategies.parts import check_choice as check_choice
from monai_fairfl.strategies.parts import words_of

Rounds = Generator[list[Request], Replies, "RoundResult"]
"""What :meth:`Strategy.round` is: it yields requests, is sent replies and returns the round's
result.
"""


@dataclass(frozen=True)
class RoundResult:
    """What a round brought.

    Args:
        weights: the next global model.
        aggregation: client -> weight, or layer -> client -> weight.
        contributions: client -> score, with its uncertainty where the method has one.
        rewards: client -> the model it continues from, where the method personalises.
        notes: client -> what a reader of the ledger should know (a measurement filled in, and why).
        details: the method's own quantities for ledger and report: name -> client -> number, or
            name -> client -> class or layer -> number.
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
        instead: what else a user may do where a site has fewer, such as another argument of the
            strategy.
    """

    data: str
    least: int
    instead: str


class Strategy(ABC):
    """One published method. Subclasses write :meth:`round` as the paper writes its algorithm.

    Every round goes through the same four parts: a *measurement* (what the requests ask for), a
    *contribution* of each client, a *weighting* of the average, and a *reward* (the model each
    client continues from). ``parts`` replaces the last two, see
    :func:`~monai_fairfl.strategies.compose`.

    A strategy does no input or output and owns no model: the federation sets ``weights``,
    ``rewards``, ``spec``, ``buffers`` and ``rounds_planned``.
    It changes itself only after its last ``yield``, so that a round can be undone. Its
    :meth:`state_dict` is every public attribute named in ``state``, plain JSON. The tensors of
    replies are good until the round ends: their memory is used again, so what is kept (a reward,
    say) must be a new tensor.
    """

    requires: ClassVar[frozenset[str]] = frozenset()
    """Measurements the method cannot do without: the preflight checks that the sites can make them.
    """
    min_clients: ClassVar[int] = 1
    """Fewest clients the method makes sense for."""
    max_clients: ClassVar[int | None] = None
    """Most clients of a round that the method can take; ``None``: any number."""
    images_needed: ClassVar[ImagesNeeded | None] = None
    """Images that its measurement needs of every client, which the preflight counts; ``None``: any
    number will do.
    """
    state: ClassVar[tuple[str, ...]] = ()
    """Attributes kept in the checkpoint."""
    output_layer: str | None = None
    """Module that makes the logits, where the method looks at it and the user names it; ``None``:
    the one found when the network ran.
    """

    personal: ClassVar[bool] = False
    """Clients keep a personal model of their own, which no one else sees: it is the one they would
    use.
    """

    paper: ClassVar[str] = ""
    estimates: ClassVar[str] = ""
    """What its contributions are, with their unit; nothing where the method weights clients and
    estimates nobody's.
    """
    client_does: ClassVar[str] = "trains"
    client_sends: ClassVar[str] = "update"
    phases: ClassVar[int] = 1
    cost: ClassVar[str] = "training"

    weights: Weights
    rewards: Mapping[str, Weights]
    spec: ModelSpec
    buffers: str = "aggregation"
    rounds_planned: int = 0
    parts: Parts = Parts()
    _before: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Class name and arguments that are not the defaults, fit for a folder: ``FedCE-sum``,
        ``Ditto-lam_0.1``.
        """
        words = [*words_of(self), *self.parts.words()]
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(words))

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        """Called once before the first round, and before :meth:`load_state_dict` on resume."""
        self.check_model(spec, self.buffers)
        self.weights, self.rewards, self.spec = weights, {}, spec
        self.clients = sorted(clients)
        self._notes: dict[str, str] = {}
        if self._before is None:
            self._before = copy.deepcopy(self.state_dict())
        self.load_state_dict(
            copy.deepcopy(self._before)
        )  # so that a second run knows nothing of the first

    def check_model(self, spec: ModelSpec, buffers: str) -> None:  # noqa: B027 (most take any)
        """Refuse a model that the method cannot train; called at preflight and by :meth:`start`.

        Args:
            spec: the model's tensors.
            buffers: the federation's buffer policy.

        Raises:
            ConfigError: naming the strategy, what it needs and the fix.
        """

    def start_of(self, client: str) -> Weights:
        """The model ``client`` continues from: its reward, else the global model."""
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
        """One round with ``clients``: ``replies = yield [Train(...), ...]``, then
        ``return self.finish(...)``.
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
    ) -> RoundResult:
        """Average the replies into the next global model, and reward the clients: the one place
        that does either.

        Args:
            replies: of the exchange that trained.
            aggregation: weights of the average.
            contributions: of each client.
            rewards: client -> model, or what makes these of the new global model; ``None``: all get
                the global model.
            start: the model that the steps are added to, see :meth:`Replies.average`.
            scale: client -> factor of its update.
            details: the method's own quantities; ``scale`` goes with them.
        """
        notes, self._notes = self._notes, {}
        if self.parts.weighting is not None:
            aggregation = self.parts.weighting(replies, contributions)
        rewards, found = self.parts.reward or rewards, dict(details or {})
        if start is None and isinstance(rewards, Reward) and rewards.of_step:
            start = self.weights
        if scale is not None:
            found["scale"] = dict(scale)
        weights = {**self.weights, **replies.average(aggregation, self.buffers, start, scale)}
        if isinstance(rewards, Reward):
            rewards, own = rewards(replies, self.weights, weights, contributions)
            found |= own
        if rewards is not None:  # who was away keeps what it had
            rewards = {
                **self.rewards,
                **{client: self.start_of(client) for client in self.clients},
                **rewards,
            }
        return RoundResult(weights, aggregation, contributions, rewards, notes, found)

    def known(self, replies: Replies, name: str) -> dict[str, float]:
        """client -> its measurement ``name``, of those who sent a finite one.

        Args:
            replies: of the exchange that asked for it.
            name: of the measurement.

        Raises:
            FederationError: when nobody did.
        """
        known = {}
        for reply in replies:
            if name in reply.measurements:
                known[reply.client] = value_of(reply.measurements[name])
        if not known:
            raise FederationError(
                f"{type(self).__name__} needs {name!r}, and no client of {replies.clients} measured it"
            )
        return known

    def measured(self, replies: Replies, name: str) -> dict[str, float]:
        """The same of everybody: one that is absent or not finite becomes the others' mean, and a
        note.
        """
        known = self.known(replies, name)
        filler = sum(known.values()) / len(known)
        for client in replies.clients:
            if client not in known:
                self.note(client, f"{name} absent, {filler:.6g} used: mean of the others")
        return {client: known.get(client, filler) for client in replies.clients}

    def note(self, client: str, text: str) -> None:
        """Something of ``client`` for this round's record, beside what was noted before."""
        self._notes[client] = "; ".join(
            dict.fromkeys([*filter(None, [self._notes.get(client)]), text])
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs but the models; JSON."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        if set(state) != set(self.state):
            raise ValueError(
                f"{type(self).__name__} keeps {sorted(self.state)}, the checkpoint holds {sorted(state)}: "
                "it was written by another strategy or version"
            )
        for name in self.state:
            setattr(self, name, state[name])
        self._notes = {}
