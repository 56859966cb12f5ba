# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts a strategy is made of, which can be exchanged: how contributions weigh, and how they are
rewarded.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.protocol.averages import normalise, sample_shares, uniform
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate, Weights

Details = dict[str, Mapping[str, Any]]


class Weighting(ABC):
    """How contributions become the weights of the average."""

    @abstractmethod
    def __call__(
        self, replies: Replies, contributions: Mapping[str, float | Estimate]
    ) -> dict[str, float]:
        """Client -> weight, not negative, summing to one."""


class Uniform(Weighting):
    """The same weight for every client, whatever it contributed."""

    def __call__(
        self, replies: Replies, contributions: Mapping[str, float | Estimate]
    ) -> dict[str, float]:
        return uniform(replies.clients)


class BySamples(Weighting):
    """FedAvg's weights: each client's share of the images."""

    def __call__(
        self, replies: Replies, contributions: Mapping[str, float | Estimate]
    ) -> dict[str, float]:
        return sample_shares(replies)


class Proportional(Weighting):
    r"""Weights proportional to a power of the contribution: :math:`\rho_i \propto \max(c_i, 0)^q`.

    Args:
        power: q; 0 is uniform, large values leave all to the greatest contributor.
    """

    def __init__(self, power: float = 1.0):
        self.power = power

    def __call__(
        self, replies: Replies, contributions: Mapping[str, float | Estimate]
    ) -> dict[str, float]:
        return normalise(
            {c: max(float(contributions[c]), 0.0) ** self.power for c in replies.clients}
        )


class Reward(ABC):
    """The model each client continues from, made of the new global model and the contributions."""

    of_step: bool = False
    """It shares out the global *step*: the mean of the updates, added to the global model, whatever
    models these began from. Else the global model is the mean of the clients' own models."""

    @abstractmethod
    def __call__(
        self,
        replies: Replies,
        old: Weights,
        new: Weights,
        contributions: Mapping[str, float | Estimate],
    ) -> tuple[dict[str, Weights], Details]:
        """Client -> its next model, in tensors of its own; and quantities for the ledger.

        Args:
            replies: of the exchange that trained; ``replies.start(reply)`` is what a client had.
            old: the global model before the round.
            new: the global model after it.
            contributions: of each client.
        """


@dataclass(frozen=True)
class Parts:
    """What a composed strategy has in place of its own parts; see :func:`~monai_fairfl.strategies.compose`."""

    weighting: Weighting | None = None
    reward: Reward | None = None
    training: Mapping[str, float] = field(default_factory=dict)

    def words(self) -> list[str]:
        """For the strategy's name."""
        words = [
            word
            for part in (self.weighting, self.reward)
            if part is not None
            for word in words_of(part)
        ]
        return words + [f"{key}_{value:g}" for key, value in self.training.items()]


def check_choice(owner: object, argument: str, value: object, allowed: Collection[object]) -> None:
    """Refuse an argument that is not one of ``allowed``.

    >>> check_choice("FedCE", "mode", "plus", ("multi", "sum"))
    Traceback (most recent call last):
    ValueError: FedCE: mode must be one of 'multi', 'sum', got 'plus'
    """
    if value not in allowed:
        name = owner if isinstance(owner, str) else type(owner).__name__
        raise ValueError(
            f"{name}: {argument} must be one of {', '.join(map(repr, allowed))}, got {value!r}"
        )


def words_of(component: object) -> list[str]:
    """Class name and the arguments that are not the defaults, which the component keeps under their
    names.

    A choice shows as it is, a switch by the argument's name, a number with both. What follows from
    the ``variant`` is not said twice.

    >>> words_of(Proportional(2.0)), words_of(Uniform())
    (['Proportional', 'power_2.0'], ['Uniform'])
    """
    defaults = {
        name: argument.default
        for name, argument in inspect.signature(type(component)).parameters.items()
    }
    chosen = {name: getattr(component, name, default) for name, default in defaults.items()}
    if "variant" in defaults:
        kind: Any = type(component)
        usual = kind(variant=chosen["variant"])
        defaults |= {
            name: getattr(usual, name, default)
            for name, default in defaults.items()
            if name != "variant"
        }
    return [
        type(component).__name__,
        *(_word(n, value) for n, value in chosen.items() if value != defaults[n]),
    ]


def _word(argument: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if value is True:
        return argument
    return f"no_{argument}" if value is None or value is False else f"{argument}_{value}"
