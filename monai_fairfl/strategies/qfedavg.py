# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: clients with a higher loss count more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import Train
from monai_fairfl.replies import Replies, normalise, unit_of_powers
from monai_fairfl.strategies.arguments import check_choice, check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy

LEAST_LOSS = 1e-10  # added to every loss, so that its power is defined where it is 0


class QFedAvg(Strategy):
    r"""Fair resource allocation by q-FedAvg (Li et al., ICLR 2020, Algorithm 2).

    It minimises :math:`\sum_k F_k^{q+1} / (q+1)`. With :math:`F_k` the loss of the received model
    on client k's training images and :math:`\Delta w_k = L (w - w_k)`:

    .. math:: w \leftarrow w - \frac{\sum_k F_k^q \Delta w_k}
              {\sum_k q F_k^{q-1} ||\Delta w_k||^2 + L F_k^q}

    Args:
        q: fairness, at least 0; 0 is FedAvg with uniform weights.
        learning_rate: L = 1 / learning_rate estimates the smoothness of the loss. That is the rate
            of SGD clients; for Adam no such number exists. A smaller one makes shorter steps.
        form: ``"lipschitz"`` as above, or ``"loss_weighted"``: a plain average with weights
            :math:`F_k^q / \sum_j F_j^q`, as FedISM's authors implement it; ``None``: the variant's.
        variant: ``"paper"``: ``"lipschitz"``; ``"released"``, FedISM's authors:
            ``"loss_weighted"``.

    Each client also sends the training loss of the received model, which costs a pass over its
    training images; the server trusts this number.

    >>> QFedAvg(q=2.0).name
    'QFedAvg-q_2.0'
    """

    requires = frozenset({"global_loss"})
    gains_when = {"global_loss": "high"}

    def __init__(
        self,
        q: float = 1.0,
        learning_rate: float = 1.0,
        form: str | None = None,
        variant: str = "paper",
        **parts: Any,
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        if form is None:
            form = "lipschitz" if variant == "paper" else "loss_weighted"
        check_choice(self, "form", form, ("lipschitz", "loss_weighted"))
        check_numbers(self, q=q, learning_rate=learning_rate)
        if not 0 <= q < math.inf or not 0 < learning_rate < math.inf:
            raise ValueError(
                "QFedAvg: q and learning_rate must be finite, at least 0 and above 0, "
                f"got {q!r}, {learning_rate!r}"
            )
        self.q = q
        self.learning_rate = learning_rate
        self.form = form
        # Below q = 1, a loss near 0 shortens everybody's step: both sides are limited.
        if form == "lipschitz" and q < 1:
            self.gains_when = {}  # type: ignore[misc]
        self.variant = variant
        super().__init__(**parts)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("global_loss",)) for client in clients]
        losses = self._losses(local)

        # The powers F_k^q, divided by their sum, are the weights of the average.
        losses = {client: loss + LEAST_LOSS for client, loss in losses.items()}
        unit = unit_of_powers(losses, self.q)
        losses = {client: loss / unit for client, loss in losses.items()}
        powers = {client: loss**self.q for client, loss in losses.items()}
        weights = normalise(powers)
        if self.form == "loss_weighted":
            return self.finish(local, weights, weights)

        # h_k = q F_k^(q-1) ||Delta w_k||^2 + L F_k^q, with Delta w_k the update times L
        # (Algorithm 2).
        lipschitz = 1 / self.learning_rate
        curvatures = []
        for client, norm in zip(local.clients, local.geometry.norms, strict=True):
            squared_norm = (lipschitz * norm) ** 2
            slope = self.q * losses[client] ** (self.q - 1) / unit
            curvatures.append(slope * squared_norm + lipschitz * powers[client])

        # The server's step, sum_k F_k^q Delta w_k / sum_k h_k, is the weighted average of the
        # updates times one factor.
        factor = lipschitz * sum(powers.values()) / sum(curvatures)
        scale = dict.fromkeys(local.clients, float(factor))
        return self.finish(local, weights, weights, scale=scale)

    def _losses(self, local: Replies) -> dict[str, float]:
        """The loss of every client; one below 0 counts as absent.

        Raises:
            FederationError: when no loss is at least 0.
        """
        known = self.known(local, "global_loss")
        usable = {client: loss for client, loss in known.items() if loss >= 0}
        if not usable:
            client, loss = min(known.items(), key=lambda found: found[1])
            raise FederationError(
                f"QFedAvg takes powers of losses, and the loss of {client!r} is {loss:.4g}: "
                "use a loss that is never below 0, such as 1 - Dice for -Dice"
            )
        mean = sum(usable.values()) / len(usable)
        losses = {}
        for client in local.clients:
            if client not in usable:
                reported = f"{known[client]:.4g}, below 0" if client in known else "absent"
                self.note(client, f"global_loss {reported}, {mean:.6g} used: mean of the others")
            losses[client] = usable.get(client, mean)
        return losses
