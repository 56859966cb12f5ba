# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""InverseLoss: a strategy of one's own, in one file."""

from __future__ import annotations

from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.utils.arguments import argument


class InverseLoss(Strategy):
    r"""A client counts the less, the worse the training fits its own data.

    So a site with unusable labels counts little:

    .. math:: w_{k+1} = w_k + \sum_i p_i \Delta_{k,i}, \qquad p_i \propto 1 / \max(L_i, \epsilon)

    Args:
        epsilon: least training loss, so that a perfect fit does not take all the weight.

    >>> InverseLoss().epsilon
    0.001
    """

    epsilon: float = argument(1e-3, "(0, inf)")

    requires = frozenset({"train_loss"})

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients, ("train_loss",))

        # What the clients measured, in their order: the mean training loss L_i.
        losses = self.measured(local, "train_loss")

        # The weights p_i: inverse losses, divided by their sum.
        weights = normalise(1 / losses.clip(min=self.epsilon))
        return self.finish(local, weights, contributions=weights)
