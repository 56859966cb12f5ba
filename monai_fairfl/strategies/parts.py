# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a strategy that can be exchanged: how contributions weigh, how they are rewarded.

:func:`~monai_fairfl.strategies.compose` puts them into a strategy. The rewards of the methods are
in :mod:`monai_fairfl.strategies.rewards`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from monai_fairfl.errors import did_you_mean
from monai_fairfl.messages import Weights
from monai_fairfl.replies import (
    Aggregation,
    Replies,
    normalise,
    powers,
    sample_shares,
    uniform,
)
from monai_fairfl.utils.arguments import Checked, argument, is_finite, non_default_arguments

Details = dict[str, Any]
"""Quantities for ledger and report: name -> numbers of the clients, shape (N,)."""


@dataclass(eq=False, repr=False)
class Weighting(Checked, ABC):
    """How contributions become the weights of the average.

    >>> import numpy as np
    >>> from monai_fairfl import ModelSpec, Replies, Reply, normalise
    >>> class Helpers(Weighting):
    ...     def __call__(self, replies, contributions):
    ...         return normalise(contributions > 0)
    >>> sent = [Reply("A", None, 30), Reply("B", None, 10), Reply("C", None, 10)]
    >>> replies = Replies(sent, [], ModelSpec(()))
    >>> Helpers()(replies, np.array([0.3, 0.1, -0.2])).tolist()
    [0.5, 0.5, 0.0]
    """

    @abstractmethod
    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        """The clients' weights, in the order of the replies: not negative, summing to one."""


class Uniform(Weighting):
    """The same weight for every client, whatever it contributed.

    >>> from monai_fairfl.strategies import FedAvg
    >>> FedAvg(weighting=Uniform()).name
    'FedAvg-Uniform'
    """

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        return uniform(replies)


class BySamples(Weighting):
    """FedAvg's weights: each client's share of the images.

    >>> from monai_fairfl.strategies import FedCE
    >>> FedCE("cos", weighting=BySamples()).name
    'FedCE-cos-BySamples'
    """

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        return sample_shares(replies)


@dataclass(eq=False, repr=False)
class Proportional(Weighting):
    r"""Weights proportional to a power of the contribution: :math:`\rho_i \propto \max(c_i, 0)^q`.

    Args:
        power: q, at least 0; 0 is uniform, large values leave all to the greatest contributor.

    Raises:
        ValueError: when ``power`` is no number, below 0 or not finite.

    >>> import numpy as np
    >>> from monai_fairfl import ModelSpec, Replies
    >>> nobody = Replies([], [], ModelSpec(()))
    >>> Proportional(power=2)(nobody, np.array([3.0, 1.0, -2.0])).tolist()
    [0.9, 0.1, 0.0]
    """

    power: float = argument(1.0, "[0, inf)")

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        return normalise(powers(np.maximum(contributions, 0.0), self.power))


@dataclass(eq=False, repr=False)
class Average(Checked, ABC):
    """How updates and weights become the next global model.

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> class HalfStep(Average):
    ...     def __call__(self, replies, weights, **how):
    ...         return replies.average(weights, **{**how, "scale": np.full(len(replies), 0.5)})
    >>> asked = Request("A", "train", {"w": torch.zeros(1)})
    >>> sent = Reply("A", {"w": torch.tensor([3.0])}, 10)
    >>> replies = Replies([sent], [asked], ModelSpec(("w",)))
    >>> HalfStep()(replies, np.ones(1))["w"].item()
    1.5
    """

    uses_weights: bool = field(default=True, init=False)
    """Whether the strategy's weights play a part; else the ledger has equal ones."""

    @abstractmethod
    def __call__(
        self, replies: Replies, weights: Aggregation, **how: Any
    ) -> dict[str, torch.Tensor]:
        """The averaged model; ``how`` has the other arguments of :meth:`Replies.average`."""


@dataclass(eq=False, repr=False)
class Reward(Checked, ABC):
    """The model each client continues from, made of the new global model and the contributions.

    >>> import numpy as np
    >>> import copy, torch
    >>> from monai_fairfl.messages import ModelSpec, Reply
    >>> from monai_fairfl.replies import Replies
    >>> class ForHelpers(Reward):
    ...     def __call__(self, replies, old, new, contributions):
    ...         models = {}
    ...         for client, contribution in zip(replies.clients, contributions):
    ...             models[client] = copy.deepcopy(new if contribution > 0 else old)
    ...         return models, {}
    >>> replies = Replies([Reply("A", None, 30), Reply("B", None, 10)], [], ModelSpec(()))
    >>> old, new = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    >>> ForHelpers()(replies, old, new, np.array([0.3, -0.2]))[0]
    {'A': {'w': tensor([1.])}, 'B': {'w': tensor([0.])}}
    """

    gives: ClassVar[frozenset[str]] = frozenset()
    """Names of its quantities for the ledger."""

    shares_global_step: bool = field(default=False, init=False)
    """Whether it shares out the global *step*: the mean of the updates, added to the global model,
    whatever models the clients began from. Else the global model is the mean of the clients' own
    models.
    """

    @abstractmethod
    def __call__(
        self,
        replies: Replies,
        old: Weights,
        new: Weights,
        contributions: np.ndarray,
    ) -> tuple[dict[str, Weights], Details]:
        """Client -> its next model, in tensors of its own; and quantities for the ledger.

        Args:
            replies: of the exchange that trained; ``replies.start(reply)`` is what a client had.
            old: the global model before the round.
            new: the global model after it.
            contributions: of the clients, in the order of the replies.
        """


TRAINING: Mapping[str, tuple[float, float, bool]] = {
    "sam_rho": (0, math.inf, False),
    "gsam_alpha": (0, math.inf, False),
    "prox_mu": (0, math.inf, False),
    "reset_optimizer": (0, 1, True),
    "local_epochs": (1, math.inf, True),
}
"""Key that ``training`` may have -> its least and its largest value, and whether it is whole."""


@dataclass(frozen=True)
class Parts(Checked):
    """What a strategy has in place of the method's own parts; every strategy takes them.

    Args:
        weighting: makes the weights of the average from the contributions; ``None``: the method's
            own weights.
        reward: makes the model from which each client continues from the contributions; ``None``:
            the method's own reward, if it has one.
        average: makes the next global model from updates and weights; ``None``: the weighted mean.
        training: numbers that go with every training request, and switch on training handlers of
            the clients: ``prox_mu`` (FedProx), ``sam_rho`` and ``gsam_alpha`` (FedISM),
            ``reset_optimizer``, ``local_epochs``.
        cap: the largest weight of any client; if a method has weights for each layer, in each
            layer. A value of 1 or more counts equal shares, 1/N; a value below 1 is a share of the
            total. The weight above the cap goes to the others in proportion to their weights.
            ``None``: no limit.
        clip_reports: k, at least 0. A number that clients report, and from which the strategy
            computes weights, is moved to the limit median +- k MAD of the present clients if it is
            beyond it, and the ledger notes this. MAD is the median distance to the median; if more
            than half of the clients report one number, this is the limit. If the strategy says
            which side brings weight (:attr:`~monai_fairfl.strategies.Strategy.gains_when`), only
            that side is limited. Scores of coalitions and similarities of features are not.
            ``None``: no limit. Honest hospitals differ: at k = 3, 5 to 28 % of the errors that
            honest sites of FedCE reported in real trainings would be beyond the limit of either
            side.

    Raises:
        TypeError: if a part is of another class, or ``training`` is no mapping.
        ValueError: if a number is out of its range, or ``training`` has an unknown key.

    >>> Parts(cap=0.0)
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: Parts: cap must be a number in (0, inf), got 0.0
    """

    weighting: Weighting | None = None
    reward: Reward | None = None
    average: Average | None = None
    training: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = argument(None, "(0, inf)")
    clip_reports: float | None = argument(None, "[0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {"weighting": Weighting, "reward": Reward, "average": Average, "training": Mapping}
        for name, kind in kinds.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                raise TypeError(f"{name} must be of the class {kind.__name__}, got {part!r}")
        for key, value in self.training.items():
            if key not in TRAINING:
                raise ValueError(f"training has no key {key!r}{did_you_mean(str(key), TRAINING)}")
            least, most, whole = TRAINING[key]
            is_switch = isinstance(value, bool) and most == 1
            if not (is_finite(value) or is_switch) or not least <= value <= most:
                raise ValueError(f"{key} in training must be from {least} to {most}, got {value!r}")
            if whole and value != int(value):
                raise ValueError(f"{key} in training must be a whole number, got {value!r}")
        if "gsam_alpha" in self.training and "sam_rho" not in self.training:
            raise ValueError(
                "gsam_alpha in training needs sam_rho, the radius: GSAM is a refinement of SAM"
            )

    def name_words(self) -> list[str]:
        """The words that the parts add to the strategy's name."""
        words = []
        for part in (self.weighting, self.reward, self.average):
            if part is not None:
                words += [type(part).__name__, *non_default_arguments(part)]
        words += [f"{key}_{value:g}" for key, value in self.training.items()]
        for name in ("cap", "clip_reports"):
            if getattr(self, name) is not None:
                words.append(f"{name}_{getattr(self, name):g}")
        return words
