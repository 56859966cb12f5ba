# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The server half of one published method: a generator of requests that receives replies."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from monai_fairfl.aggregation import Aggregation, Replies
from monai_fairfl.messages import Estimate, ModelSpec, Request, Weights, value_of

__all__ = ["RoundResult", "Rounds", "Strategy"]

Rounds = Generator[list[Request], Replies, "RoundResult"]
"""What :meth:`Strategy.round` is: it yields requests, is sent replies and returns the round's result."""


@dataclass(frozen=True)
class RoundResult:
    """What a round brought.

    Args:
        weights: the next global model.
        aggregation: client -> weight, or layer -> client -> weight.
        contributions: client -> score, with its uncertainty where the method has one.
        rewards: client -> the model it continues from, where the method personalises.
        notes: client -> what a reader of the ledger should know (a measurement filled in, and why).
    """

    weights: Weights
    aggregation: Aggregation
    contributions: Mapping[str, float | Estimate]
    rewards: Mapping[str, Weights] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


class Strategy(ABC):
    """One published method. Subclasses write :meth:`round` as the paper writes its algorithm.

    A strategy does no input or output and owns no model: the federation sets ``weights``, ``rewards`` and ``spec``.
    It changes itself only after its last ``yield``, so that a round can be undone. Its :meth:`state_dict` is every
    public attribute named in ``state``, plain JSON. The tensors of replies are good until the round ends: their memory
    is used again, so what is kept (a reward, say) must be a new tensor.
    """

    requires: ClassVar[frozenset[str]] = frozenset()
    """Measurements the method cannot do without: the preflight checks that the sites can make them."""
    min_clients: ClassVar[int] = 1
    """Fewest clients the method makes sense for."""
    state: ClassVar[tuple[str, ...]] = ()
    """Attributes kept in the checkpoint."""

    weights: Weights
    rewards: Mapping[str, Weights]
    spec: ModelSpec
    buffers: str = "aggregation"

    @property
    def name(self) -> str:
        """Class name and the arguments that are not the defaults, fit for a folder: ``FedCE-sum``."""
        defaults = {k: p.default for k, p in inspect.signature(type(self)).parameters.items()}
        chosen = {k: getattr(self, k) for k in defaults if hasattr(self, k)}
        words = [type(self).__name__, *(str(value) for key, value in chosen.items() if value != defaults[key])]
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(words))

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        """Called once before the first round, and before :meth:`load_state_dict` on resume."""
        self.weights, self.rewards, self.spec = weights, {}, spec
        self._notes: dict[str, str] = {}

    def start_of(self, client: str) -> Weights:
        """The model ``client`` continues from: its reward, else the global model."""
        return self.rewards.get(client, self.weights)

    @abstractmethod
    def round(self, clients: Sequence[str]) -> Rounds:
        """One round with ``clients``: ``replies = yield [Train(...), ...]``, then ``return self.finish(...)``."""

    def finish(
        self,
        replies: Replies,
        aggregation: Aggregation,
        contributions: Mapping[str, float | Estimate],
        rewards: Mapping[str, Weights] | None = None,
    ) -> RoundResult:
        """Average the replies with ``aggregation`` into the next global model: the one place that averages."""
        notes, self._notes = self._notes, {}
        weights = {**self.weights, **replies.average(aggregation, self.buffers)}
        return RoundResult(weights, aggregation, contributions, rewards, notes)

    def measured(self, replies: Replies, name: str, default: float | None = None) -> dict[str, float]:
        """client -> its measurement ``name``; one that is absent becomes the mean of the others, and a note.

        Args:
            replies: of the exchange that asked for it.
            name: of the measurement.
            default: used when nobody sent it; an error when ``None``.
        """
        known = {r.client: value_of(r.measurements[name]) for r in replies if name in r.measurements}
        if not known and default is None:
            raise ValueError(f"{type(self).__name__} needs {name!r}, and no client of {replies.clients} measured it")
        filler = sum(known.values()) / len(known) if known else float(default)  # type: ignore[arg-type]
        for client in replies.clients:
            if client not in known:
                self._notes[client] = f"{name} absent, {filler:.6g} used: " + (
                    "mean of the others" if known else "default"
                )
        return {client: known.get(client, filler) for client in replies.clients}

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
