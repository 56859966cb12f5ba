# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCI: each round's Shapley values of validation Dice become the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.messages import Train
from monai_fairfl.replies import normalise
from monai_fairfl.strategies.arguments import check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.coalitions import MOST_CLIENTS, contribution_index
from monai_fairfl.strategies.quantities import Quantity

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

    2^N models are scored in every round: at most ten clients.

    A round has two exchanges: after training, each client downloads and scores all models; the
    server trusts these scores and the numbers of cases.

    >>> FedCI(decay=0.5).name
    'FedCI-decay_0.5'
    """

    additive = True
    requires = frozenset({"score"})
    min_clients = 2
    max_clients = MOST_CLIENTS
    state = ("contribution", "rounds")
    quantities = {
        "round_value": Quantity(
            "Value in the round",
            "Dice",
            "Shapley value of a site in this round alone, in validation Dice; negative: the "
            "coalitions score less with it.",
        ),
    }

    def __init__(self, decay: float = 1.0, **parts: Any):
        check_numbers(self, decay=decay)
        if not 0 < decay <= 1:
            raise ValueError(f"FedCI: decay must be in (0, 1], got {decay!r}")
        self.decay = decay
        self.contribution: dict[str, float] = {}
        self.rounds = 0
        super().__init__(**parts)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]

        # The Shapley values phi_i of this round; normalise() counts negative ones as 0.
        values = local.shared((yield from contribution_index(self, local)))
        weights = normalise(values)

        # The contributions: the sum over rounds, where round t counts decay^t.
        summed = {}
        for client, value in self._scaled(values).items():
            earlier = self.contribution.get(client, 0.0)
            summed[client] = earlier + self.decay**self.rounds * value

        result = self.finish(local, weights, summed, details={"round_value": values}, divided=True)
        self.contribution = {**self.contribution, **summed}
        self.rounds += 1
        return result

    def _scaled(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """A round's values as they enter the sum; with a decay, divided by the round's gain."""
        if self.decay == 1:
            return values
        gain = sum(values.values())
        if gain <= LEAST_GAIN:
            return dict.fromkeys(values, 0.0)
        return {client: value / gain for client, value in values.items()}
