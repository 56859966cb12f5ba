# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedGA: weights grow where averaging made the loss worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Train
from monai_fairfl.replies import merge_with_absent, normalise, renormalised_previous
from monai_fairfl.strategies.arguments import check_choice, check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.parts import Parts
from monai_fairfl.strategies.quantities import Quantity


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
        centred: subtract the mean gap first; ``None``: the variant's.
        variant: ``"paper"``: step 0.2, not centred; ``"released"``, FedISM's authors: step 0.05,
            centred.

    Losses are of the clients' training images. The local loss is measured after training, the
    average's at the start of the next round, so one phase is enough and the first round's weights
    are uniform. A client whose update a guard shortened, or averaged with another's, has no gap of
    that average: it counts as the mean of the others'.

    Each client sends both losses, which cost two passes over its training images; the server trusts
    these numbers.

    >>> FedGA(variant="released").step
    0.05
    """

    requires = frozenset({"global_loss", "local_loss"})
    gains_when = {"global_loss": "high", "local_loss": "low"}
    min_clients = 2
    state = ("weight", "loss", "rounds")
    quantities = {
        "gap": Quantity(
            "Generalisation gap",
            "Loss",
            "Training loss of the averaged model less that of the site's own model which went into "
            "it; positive: averaging cost the site something.",
        ),
    }

    def __init__(
        self,
        step: float | None = None,
        centred: bool | None = None,
        variant: str = "paper",
        **parts: Any,
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        if step is None:
            step = 0.2 if variant == "paper" else 0.05
        if centred is None:
            centred = variant == "released"
        check_choice(self, "centred", centred, (True, False))
        check_numbers(self, step=step)
        if not 0 < step < math.inf:
            raise ValueError(f"FedGA: step must be a finite number above 0, got {step!r}")
        self.step = step
        self.centred = centred
        self.variant = variant
        self.weight: dict[str, float] = {}  # a_k, of all clients
        self.loss: dict[str, float] = {}  # of each own model that entered the previous average
        self.rounds = 0
        super().__init__(**parts)

    def check_parts(self, parts: Parts) -> None:
        if parts.reward is not None:
            raise ConfigError(
                "FedGA compares the average with the models that went into it, and with a reward "
                "no client receives the average: leave reward out"
            )

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [
            Train(client, self.start_of(client), ("global_loss", "local_loss"))
            for client in clients
        ]
        average_losses = self.known(local, "global_loss")
        own_losses = self.known(local, "local_loss")
        for client in local.clients:
            if client not in average_losses or client not in own_losses:
                self.note(client, "a loss is absent: its gap is the mean of the others'")

        # Gap g_k: loss of the average less that of the client's own model which went into it.
        gaps = {}
        for client, loss in average_losses.items():
            if client in self.loss:
                gaps[client] = loss - self.loss[client]

        # Weights a_k: they move along the gaps, and are normalised.
        previous = renormalised_previous(self.weight, local.clients)
        weights = normalise(self._adjusted(previous, gaps))

        # The own models that went into the average. A client whose update a guard shortened holds
        # another one.
        entered = {}
        for client, loss in own_losses.items():
            if client in local.shortened:
                self.note(
                    client,
                    "a guard changed its update, so its own model is not the one that went into "
                    "the average: its next gap is the mean of the others'",
                )
            else:
                entered[client] = loss

        details = {"gap": gaps} if gaps else None
        result = self.finish(local, weights, weights, details=details)
        self.weight = merge_with_absent(self.weight, weights)
        self.loss = entered
        self.rounds += 1
        return result

    def _adjusted(
        self, previous: Mapping[str, float], gaps: Mapping[str, float]
    ) -> dict[str, float]:
        """The weights moved along the gaps, each clipped to [0, 1]."""
        if not gaps:
            return dict(previous)

        # A client without a gap, new or absent in the previous round, has the mean one.
        mean_gap = sum(gaps.values()) / len(gaps)
        offset = mean_gap if self.centred else 0.0
        centred = {client: gaps.get(client, mean_gap) - offset for client in previous}
        largest = max(abs(gap) for gap in centred.values())
        if largest == 0:
            return dict(previous)

        # d_r = d / N (1 - r / R). The gaps of round r belong to the average that ended round r - 1.
        rounds = max(self.rounds_planned, self.rounds)
        rate = self.step / len(self.clients) * (1 - (self.rounds - 1) / rounds)

        # a_k + d_r g_k / max_j |g_j|
        adjusted = {}
        for client, weight in previous.items():
            moved = weight + rate * centred[client] / largest
            adjusted[client] = min(max(moved, 0.0), 1.0)
        return adjusted
