# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""AFL: the mixture of clients that is worst for the model decides the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from monai_fairfl.protocol.averages import normalise, renormalised_previous
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


class AFL(Strategy):
    r"""Agnostic federated learning, :math:`\min_w \max_{\lambda} \sum_k \lambda_k F_k(w)` (Mohri et
    al., ICML 2019).

    The step is averaged with :math:`\lambda`; then :math:`\lambda` climbs the losses of the
    received model and is projected back, :math:`\lambda \leftarrow P(\lambda + \gamma F)`, P the
    nearest point of the simplex.

    Args:
        step: :math:`\gamma`, above 0.
        form: ``"afl"``, or ``"worst_client"``: take over the model of the client with the highest
            loss, which FedISM's authors run under the name Agnostic-FL; ``None``: as the variant
            says.
        variant: ``"paper"``: ``"afl"``; ``"released"``, FedISM's authors: ``"worst_client"``.

    The paper returns the mean of all rounds' models; here, as usual in its use for networks, the
    last one.

    >>> AFL(form="worst_client").name
    'AFL-worst_client'
    """

    paper = "Mohri et al., ICML 2019"
    client_does = "measures the received model's training loss; trains"
    client_sends = "update, 1 number"
    cost = "training + 1 pass over the training images"
    requires = frozenset({"global_loss"})
    state = ("mixture",)

    def __init__(self, step: float = 0.1, form: str | None = None, variant: str = "paper"):
        check_choice(self, "variant", variant, ("paper", "released"))
        form = form or {"paper": "afl", "released": "worst_client"}[variant]
        check_choice(self, "form", form, ("afl", "worst_client"))
        if not step > 0:
            raise ValueError(f"AFL: step must be above 0, got {step!r}")
        self.step, self.form, self.variant = step, form, variant
        self.mixture: dict[str, float] = {}

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("global_loss",)) for client in clients]
        loss = self.measured(local, "global_loss")
        if self.form == "worst_client":
            worst = max(loss, key=lambda client: loss[client])
            weights = {client: float(client == worst) for client in loss}
            return self.finish(local, weights, weights)
        every = renormalised_previous(self.mixture, sorted({*self.clients, *loss}))
        weights = normalise({c: every[c] for c in loss})
        result = self.finish(local, weights, weights)
        mean = sum(loss.values()) / len(loss)  # for those who are away
        self.mixture = project_to_simplex(
            {c: m + self.step * loss.get(c, mean) for c, m in every.items()}
        )
        return result


def project_to_simplex(point: Mapping[str, float]) -> dict[str, float]:
    r"""The nearest point with coordinates of at least 0 that sum to 1 (Euclidean distance, by
    sorting).

    >>> project_to_simplex({"A": 0.8, "B": 0.6, "C": -1.0})
    {'A': 0.6, 'B': 0.4, 'C': 0.0}
    """
    descending = np.sort(list(point.values()))[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(descending) + 1)
    threshold = float(excess[np.flatnonzero(descending > excess)[-1]])
    return {client: round(max(value - threshold, 0.0), 15) for client, value in point.items()}
