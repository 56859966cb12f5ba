# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The models that a federation holds: the global one, and the clients' rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monai_fairfl.messages import Weights
from monai_fairfl.strategies.base import RoundResult, Strategy


@dataclass(frozen=True)
class GlobalModels:
    """The models after a round. The federation owns them; a strategy only reads them.

    Args:
        weights: the global model.
        rewards: client -> the model that it continues from, where that is another.

    >>> GlobalModels({}, {"A": {}}).own_model("B") == {}
    True
    """

    weights: Weights
    rewards: Mapping[str, Weights] = field(default_factory=dict)

    def own_model(self, client: str) -> Weights:
        """The model that ``client`` would use: its reward, else the global model."""
        return self.rewards.get(client, self.weights)

    def after(self, result: RoundResult) -> GlobalModels:
        """The models after a round. A round without rewards leaves those of earlier rounds."""
        rewards = self.rewards if result.rewards is None else result.rewards
        return GlobalModels(result.weights, rewards)

    def lend_to(self, strategy: Strategy) -> None:
        """Let a strategy read the models: its ``weights`` and ``rewards``."""
        strategy.weights = self.weights
        strategy.rewards = self.rewards
