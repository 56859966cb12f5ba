# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: clients with a higher loss count more."""

from __future__ import annotations

import numpy as np

from monai_fairfl.errors import FederationError
from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.utils.arguments import argument

LEAST_LOSS = 1e-10  # added to every loss, so that its power is defined where it is 0


class QFedAvg(Strategy):
    r"""Fair resource allocation by q-FedAvg (Li et al., ICLR 2020, Algorithm 2).

    It minimises :math:`\sum_k F_k^{q+1} / (q+1)`. With :math:`F_k` the loss of the received model
    on client k's training images and :math:`\Delta w_k = L (w - w_k)`:

    .. math:: w \leftarrow w - \frac{\sum_k F_k^q \Delta w_k}
              {\sum_k q F_k^{q-1} ||\Delta w_k||^2 + L F_k^q}

    Args:
        q: fairness, 0 to 50; 0 is FedAvg with uniform weights.
        learning_rate: L = 1 / learning_rate estimates the smoothness of the loss. That is the rate
            of SGD clients; for Adam no such number exists. A smaller one makes shorter steps.
        variant: ``"paper"`` as above; ``"released"``, FedISM's authors: a plain average with the
            weights :math:`F_k^q / \sum_j F_j^q`.

    A loss below 0 has no powers, and is refused: use 1 - Dice in place of -Dice. It trusts the
    training losses that clients report.

    >>> QFedAvg(q=2.0).name
    'QFedAvg-q_2.0'
    """

    q: float = argument(1.0, "[0, 50]")
    learning_rate: float = argument(1.0, "(0, inf)")
    variant: str = argument("paper", ("paper", "released"))

    requires = frozenset({"global_loss"})
    gains_when = {"global_loss": "high"}

    def __post_init__(self, *parts: object) -> None:
        super().__post_init__(*parts)
        # Below q = 1, a loss near 0 shortens everybody's step: both sides are limited.
        if self.variant == "paper" and self.q < 1:
            self.gains_when = {}  # type: ignore[misc]

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients, ("global_loss",))

        # The powers F_k^q, divided by their sum, are the weights of the average.
        losses = self.measured(local, "global_loss") + LEAST_LOSS
        if losses.min() < 0:
            raise FederationError(
                f"QFedAvg: {losses.min():.4g} is below 0 and has no powers: use 1 - Dice, not -Dice"
            )
        powers = losses**self.q
        weights = normalise(powers)
        if self.variant == "released":
            return self.finish(local, weights, weights)

        # h_k = q F_k^(q-1) ||Delta w_k||^2 + L F_k^q, with Delta w_k the update times L
        # (Algorithm 2).
        lipschitz = 1 / self.learning_rate
        squared_norms = (lipschitz * local.geometry.norms) ** 2
        curvatures = self.q * losses ** (self.q - 1) * squared_norms + lipschitz * powers

        # The server's step, sum_k F_k^q Delta w_k / sum_k h_k, is the weighted average of the
        # updates times one factor.
        factor = lipschitz * powers.sum() / curvatures.sum()
        return self.finish(local, weights, weights, scale=np.full(len(local), factor))
