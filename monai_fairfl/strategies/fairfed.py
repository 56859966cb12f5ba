# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FairFed: weights follow how far each client's score is from the mean."""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.protocol.averages import (
    merge_with_absent,
    normalise,
    renormalised_previous,
    sample_shares,
)
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


class FairFed(Strategy):
    r"""FairFed (Ezzeldin et al., AAAI 2023, Algorithm 1) with validation Dice as the metric, as
    FedISM compares it.

    With :math:`F_k` the received model's score at client k, :math:`F = \sum_k p_k F_k` and the gap
    :math:`\Delta_k = |F_k - F|`:

    .. math:: \omega_k \leftarrow \omega_k - \beta (\Delta_k - \bar\Delta)

    held at 0 or more, then divided by the sum. A client far from the mean *loses* weight, whichever
    side it is on: with a score as the metric that does not protect a weak client.

    Args:
        beta: step, at least 0; 0.1, 0.5 and 1 are usual, for scores between 0 and 1 (for percent a
            hundredth of it).
        variant: ``"paper"``; ``"released"``, FedISM's authors: the gap is :math:`|F_k - p_k F_k|`,
            for they do not add the other clients' scores to the mean.

    >>> FairFed(beta=1.0).name
    'FairFed-beta_1.0'
    """

    paper = "Ezzeldin et al., AAAI 2023"
    client_does = "scores the received model; trains"
    client_sends = "update, 1 number"
    cost = "training + 1 validation pass"
    requires = frozenset({"global_score"})
    min_clients = 2
    state = ("weight",)

    def __init__(self, beta: float = 0.5, variant: str = "paper"):
        check_choice(self, "variant", variant, ("paper", "released"))
        if not beta >= 0:
            raise ValueError(f"FairFed: beta must be at least 0, got {beta!r}")
        self.beta, self.variant = beta, variant
        self.weight: dict[str, float] = {}

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [
            Train(client, self.start_of(client), ("global_score",)) for client in clients
        ]
        score, share = self.measured(local, "global_score"), sample_shares(local)
        overall = sum(share[c] * score[c] for c in score)
        gap = {
            c: abs(score[c] - (overall if self.variant == "paper" else share[c] * score[c]))
            for c in score
        }
        mean = sum(gap.values()) / len(gap)
        before = renormalised_previous(self.weight, gap) if self.weight else share
        weights = normalise({c: before[c] - self.beta * (gap[c] - mean) for c in gap})
        result = self.finish(local, weights, weights, details={"gap": gap})
        self.weight = merge_with_absent(self.weight, weights)
        return result
