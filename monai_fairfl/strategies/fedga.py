# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedGA: weights grow where averaging made the loss worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monai_fairfl.protocol.averages import merge_with_absent, normalise, renormalised_previous
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


class FedGA(Strategy):
    r"""Generalisation adjustment (Zhang et al., CVPR 2023, Eq. 8-10).

    The generalisation gap of client k is what averaging cost it,
    :math:`g_k = L_k(w_{r}) - L_k(w_{r-1,k})`: the loss of the average less that of its own model
    that went into it.

    .. math:: a_k \leftarrow a_k + d_r \frac{g_k}{\max_j |g_j|}, \qquad d_r = \frac{d}{N} (1 - r / R)

    held in [0, 1], then divided by the sum.

    Args:
        step: d, above 0; ``None``: as the variant says.
        centred: subtract the mean gap first; ``None``: as the variant says.
        variant: ``"paper"``: step 0.2, not centred; ``"released"``, FedISM's authors: step 0.05,
            centred.

    Losses are of the clients' training images. The local loss is measured after training, the
    average's at the start of the next round, so one phase is enough and the first round's weights
    are uniform.

    >>> FedGA(variant="released").step
    0.05
    """

    paper = "Zhang et al., CVPR 2023"
    client_does = "measures the loss of the received and of its own model; trains"
    client_sends = "update, 2 numbers"
    cost = "training + 2 passes over the training images"
    requires = frozenset({"global_loss", "local_loss"})
    min_clients = 2
    state = ("weight", "loss", "rounds")

    def __init__(
        self, step: float | None = None, centred: bool | None = None, variant: str = "paper"
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        step = step if step is not None else {"paper": 0.2, "released": 0.05}[variant]
        if not step > 0:
            raise ValueError(f"FedGA: step must be above 0, got {step!r}")
        self.step, self.variant = step, variant
        self.centred = centred if centred is not None else variant == "released"
        self.weight: dict[str, float] = {}
        self.loss: dict[str, float] = {}  # of each client's own model of the last round
        self.rounds = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [
            Train(client, self.start_of(client), ("global_loss", "local_loss"))
            for client in clients
        ]
        averaged, own = (self.known(local, name) for name in ("global_loss", "local_loss"))
        for client in local.clients:
            if client not in averaged or client not in own:
                self.note(client, "a loss is absent: its gap is the mean of the others'")
        gap = {c: loss - self.loss[c] for c, loss in averaged.items() if c in self.loss}
        weights = normalise(self._adjust(renormalised_previous(self.weight, local.clients), gap))
        result = self.finish(local, weights, weights, details={"gap": gap} if gap else None)
        self.weight, self.rounds = merge_with_absent(self.weight, weights), self.rounds + 1
        self.loss = own
        return result

    def _adjust(self, weight: Mapping[str, float], gap: Mapping[str, float]) -> dict[str, float]:
        """``weight`` moved along the gaps; the mean gap is that of a client without one, new or
        away last round.
        """
        if not gap:
            return dict(weight)
        mean = sum(gap.values()) / len(gap)
        centred = {c: gap.get(c, mean) - (mean if self.centred else 0.0) for c in weight}
        most = max(abs(g) for g in centred.values())
        if most == 0:
            return dict(weight)
        # the gaps of round r belong to the average that ended round r - 1
        rate = (
            self.step
            / len(self.clients)
            * (1 - (self.rounds - 1) / max(self.rounds_planned, self.rounds))
        )
        return {c: min(max(a + rate * centred[c] / most, 0.0), 1.0) for c, a in weight.items()}
