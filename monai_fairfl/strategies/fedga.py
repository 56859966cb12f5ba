# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedGA: weights grow where averaging made the loss worse."""

from __future__ import annotations

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Memory, Rounds, Shares, Strategy
from monai_fairfl.strategies.parts import Parts
from monai_fairfl.utils.arguments import argument, remembered


class FedGA(Strategy):
    r"""Generalisation adjustment (Zhang et al., CVPR 2023, Eq. 8-10).

    The generalisation gap of client k is what averaging cost it,
    :math:`g_k = L_k(w_{r}) - L_k(w_{r-1,k})`: the loss of the average less that of its own model
    that went into it.

    .. math:: a_k \leftarrow a_k + d_r \frac{g_k}{\max_j |g_j|}, \qquad
              d_r = \frac{d}{N} (1 - r / R)

    clipped to [0, 1], then divided by the sum.

    Args:
        step: d, above 0; ``None``: the variant's.
        variant: ``"paper"``: step 0.2; ``"released"``, FedISM's authors: step 0.05, and the mean
            gap is subtracted first.

    Losses are of the clients' training images. The local loss is measured after training, the
    average's at the start of the next round, so one phase is enough and the first round's weights
    are uniform. A client whose update a guard shortened has no gap of that average: it counts as
    the mean of the others'. It trusts the losses that clients report.

    >>> FedGA(variant="released").step
    0.05
    """

    step: float = argument(None, "(0, inf)")
    variant: str = argument("paper", ("paper", "released"))
    weight: Shares = remembered(Shares)  # a_k, of all clients
    loss: Memory = remembered(Memory)  # of each own model that entered the previous average
    rounds: int = remembered(int)

    variants = {"paper": {"step": 0.2}, "released": {"step": 0.05}}
    requires = frozenset({"global_loss", "local_loss"})
    gains_when = {"global_loss": "high", "local_loss": "low"}
    min_clients = 2

    def check_parts(self, parts: Parts) -> None:
        if parts.reward is not None:
            raise ConfigError(
                "FedGA compares the average with the models that went into it, and with a reward "
                "no client receives the average: leave reward out"
            )

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients, ("global_loss", "local_loss"))
        names = local.clients
        of_average = self.known(local, "global_loss")
        of_own = self.known(local, "local_loss")
        for row in np.flatnonzero(np.isnan(of_average + of_own)):
            self.note(names[row], "a loss is absent: its gap is the mean of the others'")

        # Gap g_k: loss of the average less that of the client's own model which went into it.
        gap = of_average - self.loss.of(names, np.nan)
        details = None if np.isnan(gap).all() else {"gap": gap}

        # Weights a_k: they move along the gaps, and are normalised.
        weights = normalise(self._adjusted(self.weight.of_present(names), gap))
        self.weight.put(names, weights)

        # The losses of the own models that go into the average.
        self.loss = Memory()
        for client, loss in zip(names, of_own.tolist(), strict=True):
            if client in local.shortened:
                self.note(
                    client,
                    "a guard changed its update, so its own model is not the one that went into "
                    "the average: its next gap is the mean of the others'",
                )
            elif not np.isnan(loss):
                self.loss[client] = loss
        self.rounds += 1
        return self.finish(local, weights, weights, details=details)

    def _adjusted(self, previous: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """The weights moved along the gaps, each clipped to [0, 1]."""
        is_known = ~np.isnan(gap)
        if not is_known.any():
            return previous

        # A client without a gap, new or absent in the previous round, has the mean one.
        mean = gap[is_known].sum() / is_known.sum()
        gap = np.where(is_known, gap, mean) - (mean if self.variant == "released" else 0.0)
        largest = abs(gap).max()
        if largest == 0:
            return previous

        # d_r = d / N (1 - r / R). The gaps of round r belong to the average that ended round r - 1.
        rounds = max(self.rounds_planned, self.rounds)
        rate = self.step / len(self.clients) * (1 - (self.rounds - 1) / rounds)

        # a_k + d_r g_k / max_j |g_j|
        return np.clip(previous + rate * gap / largest, 0.0, 1.0)
