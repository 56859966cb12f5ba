# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: clients with a higher loss count more."""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.averages import normalise
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


class QFedAvg(Strategy):
    r"""q-FedAvg for the objective :math:`\sum_k F_k^{q+1} / (q+1)` (Li et al., ICLR 2020, Algorithm
    2).

    With :math:`F_k` the loss of the received model on client k's training images,
    :math:`\Delta w_k = L (w - w_k)`:

    .. math:: w \leftarrow w - \frac{\sum_k F_k^q \Delta w_k}
              {\sum_k q F_k^{q-1} ||\Delta w_k||^2 + L F_k^q}

    Args:
        q: fairness, at least 0; 0 is FedAvg with uniform weights.
        learning_rate: L = 1 / learning_rate estimates the smoothness of the loss. That is the rate
            of SGD clients; for Adam no such number exists. A smaller one makes shorter steps.
        form: ``"lipschitz"`` as above, or ``"loss_weighted"``: a plain average with weights
            :math:`F_k^q / \sum_j F_j^q`, as FedISM's authors implement it; ``None``: as the variant
            says.
        variant: ``"paper"``: ``"lipschitz"``; ``"released"``, FedISM's authors:
            ``"loss_weighted"``.

    >>> QFedAvg(q=2.0).name
    'QFedAvg-q_2.0'
    """

    paper = "Li et al., ICLR 2020"
    client_does = "measures the received model's training loss; trains"
    client_sends = "update, 1 number"
    cost = "training + 1 pass over the training images"
    requires = frozenset({"global_loss"})

    def __init__(
        self,
        q: float = 1.0,
        learning_rate: float = 1.0,
        form: str | None = None,
        variant: str = "paper",
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        form = form or {"paper": "lipschitz", "released": "loss_weighted"}[variant]
        check_choice(self, "form", form, ("lipschitz", "loss_weighted"))
        if q < 0 or not learning_rate > 0:
            raise ValueError(
                f"QFedAvg: q must be at least 0 and learning_rate above 0, got {q!r}, {learning_rate!r}"
            )
        self.q, self.learning_rate, self.form, self.variant = q, learning_rate, form, variant

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("global_loss",)) for client in clients]
        measured = self.measured(local, "global_loss")
        for client, value in measured.items():
            if value < 0:
                raise FederationError(
                    f"QFedAvg takes powers of losses, and the loss of {client!r} is {value:.4g}: use a loss that is "
                    "never below 0, such as 1 - Dice for -Dice"
                )
        loss = {c: value + 1e-10 for c, value in measured.items()}
        power = {c: value**self.q for c, value in loss.items()}
        weights = normalise(power)
        if self.form == "loss_weighted":
            return self.finish(local, weights, weights)
        smooth = 1 / self.learning_rate
        squared = {
            c: (smooth * norm) ** 2
            for c, norm in zip(local.clients, local.geometry.norms, strict=True)
        }
        bound = sum(self.q * loss[c] ** (self.q - 1) * squared[c] + smooth * power[c] for c in loss)
        step = smooth * sum(power.values()) / bound
        return self.finish(local, weights, weights, scale=dict.fromkeys(local.clients, float(step)))
