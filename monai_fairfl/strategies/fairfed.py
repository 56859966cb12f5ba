# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FairFed: weights follow how far each client's score is from the mean."""

from __future__ import annotations

from monai_fairfl.replies import normalise, sample_shares
from monai_fairfl.strategies.base import Rounds, Shares, Strategy
from monai_fairfl.utils.arguments import argument, remembered


class FairFed(Strategy):
    r"""FairFed (Ezzeldin et al., AAAI 2023, Algorithm 1).

    The metric is validation Dice, as where FedISM compares the method. With :math:`F_k` the
    received model's score at client k, :math:`F = \sum_k p_k F_k` and the gap
    :math:`\Delta_k = |F_k - F|`:

    .. math:: \omega_k \leftarrow \omega_k - \beta (\Delta_k - \bar\Delta)

    cut at 0, then divided by the sum. A client far from the mean *loses* weight, whichever side it
    is on: with a score as the metric that does not protect a weak client.

    Args:
        beta: step, at least 0; 0.1, 0.5 and 1 are usual, for scores between 0 and 1 (for percent a
            hundredth of it).
        variant: ``"paper"``; ``"released"``, FedISM's authors: the gap is :math:`|F_k - p_k F_k|`,
            because they leave the other clients' scores out of the mean.

    It trusts the scores and image counts that clients report.

    >>> FairFed(beta=1.0).name
    'FairFed-beta_1.0'
    """

    beta: float = argument(0.5, "[0, inf)")
    variant: str = argument("paper", ("paper", "released"))
    weight: Shares = remembered(Shares)  # omega, of all clients

    requires = frozenset({"global_score"})
    min_clients = 2

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients, ("global_score",))
        scores = self.measured(local, "global_score")
        shares = sample_shares(local)

        # Gap: how far a client's score is from the overall one, Delta_k = |F_k - F|.
        overall = (shares * scores).sum()
        gap = abs(scores - (overall if self.variant == "paper" else shares * scores))

        # Weights: a step against the gap, omega_k - beta (Delta_k - mean gap), then normalised. The
        # first step starts at the shares of images.
        previous = self.weight.of_present(local.clients) if self.weight else shares
        weights = normalise(previous - self.beta * (gap - gap.sum() / len(gap)))

        self.weight.put(local.clients, weights)
        return self.finish(local, weights, weights, details={"gap": gap})
