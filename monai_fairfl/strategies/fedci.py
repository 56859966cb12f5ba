# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCI: each round's Shapley values of validation Dice become the weights."""

from __future__ import annotations

import numpy as np

from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Memory, Rounds, Strategy
from monai_fairfl.strategies.coalitions import MOST_CLIENTS, contribution_index
from monai_fairfl.utils.arguments import argument, remembered

LEAST_GAIN = 1e-12  # a round whose values sum to less has nothing to share out


class FedCI(Strategy):
    r"""The contribution index as aggregation weights (Song et al., IEEE Big Data 2019).

    This is its multi-round form. In every round the model of each coalition,
    :math:`w + \sum_{i \in S} n_i \Delta_i / \sum_{i \in S} n_i`, is scored on all clients'
    validation data; the clients' Shapley values :math:`\phi_i` of that score, negative ones counted
    as 0, divided by their sum, are the weights of this round. The contribution is the sum over
    rounds, so that a client that takes part more often has more of it.

    Args:
        decay: factor of each further round in that sum, in (0, 1]; 1: a plain sum. Below 1 every
            round's values are first divided by their sum; a round whose values do not sum to more
            than 0 adds nothing.

    2^N models are scored in every round: at most ten clients. It trusts the scores and numbers of
    cases that clients report.

    >>> FedCI(decay=0.5).name
    'FedCI-decay_0.5'
    """

    decay: float = argument(1.0, "(0, 1]")
    contribution: Memory = remembered(Memory)
    rounds: int = remembered(int)

    has_contributions = True
    requires = frozenset({"score"})
    min_clients = 2
    max_clients = MOST_CLIENTS

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients)

        # The Shapley values phi_i of this round; normalise() counts negative ones as 0.
        values = yield from contribution_index(self, local)
        weights = normalise(values)

        # The contributions: the sum over rounds, where round t counts decay^t of its values, which
        # are then divided by the round's gain.
        counted = values
        if self.decay < 1:
            gain = values.sum()
            counted = values / gain if gain > LEAST_GAIN else np.zeros(len(local))
        summed = self.contribution.add(local.clients, self.decay**self.rounds * counted)
        self.rounds += 1
        return self.finish(local, weights, summed, details={"round_value": values})
