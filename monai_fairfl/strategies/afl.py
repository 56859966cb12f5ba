# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""AFL: the mixture of clients that is worst for the model decides the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl.messages import Train
from monai_fairfl.replies import normalise, renormalised_previous
from monai_fairfl.strategies.arguments import check_choice, check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy

MOST_STEP = 1e6
"""Longer steps differ in rounding only: the client with the highest loss has all weight."""


class AFL(Strategy):
    r"""Agnostic federated learning (Mohri et al., ICML 2019).

    It solves :math:`\min_w \max_{\lambda} \sum_k \lambda_k F_k(w)`. The step is averaged with
    :math:`\lambda`. Then :math:`\lambda` climbs the losses of the received model and is projected
    back, :math:`\lambda \leftarrow P(\lambda + \gamma F)`, P the nearest point of the simplex.

    Args:
        step: :math:`\gamma`, above 0 and at most 1e6, where the worst client has all weight.
        form: ``"afl"``, or ``"worst_client"``: take over the model of the client with the highest
            loss, which FedISM's authors run under the name Agnostic-FL; ``None``: that of the
            variant.
        variant: ``"paper"``: ``"afl"``; ``"released"``, FedISM's authors: ``"worst_client"``.

    The paper returns the mean of all rounds' models; here, as usual in its use for networks, the
    last one.

    Each client also sends the training loss of the received model, which costs a pass over its
    training images; the server trusts this number.

    >>> AFL(form="worst_client").name
    'AFL-worst_client'
    """

    requires = frozenset({"global_loss"})
    gains_when = {"global_loss": "high"}
    state = ("mixture",)

    def __init__(
        self, step: float = 0.1, form: str | None = None, variant: str = "paper", **parts: Any
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        if form is None:
            form = "afl" if variant == "paper" else "worst_client"
        check_choice(self, "form", form, ("afl", "worst_client"))
        check_numbers(self, step=step)
        if not 0 < step <= MOST_STEP:
            raise ValueError(
                f"AFL: step must be above 0 and at most {MOST_STEP:g}, got {step!r}. A longer "
                "one gives all weight to the client with the highest loss, which is "
                "form='worst_client'"
            )
        self.step = step
        self.form = form
        self.variant = variant
        self.mixture: dict[str, float] = {}  # lambda, of all clients
        super().__init__(**parts)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("global_loss",)) for client in clients]
        losses = self.measured(local, "global_loss")
        if self.form == "worst_client":
            worst = max(losses, key=lambda client: losses[client])
            weights = {client: float(client == worst) for client in losses}
            return self.finish(local, weights, weights)

        # The present clients' part of the mixture lambda weighs the step.
        everybody = sorted({*self.clients, *losses})
        mixture = renormalised_previous(self.mixture, everybody)
        weights = normalise({client: mixture[client] for client in losses})
        result = self.finish(local, weights, weights)

        # lambda climbs the losses, then goes back to the simplex: lambda <- P(lambda + gamma F). An
        # absent client climbs by the mean loss.
        mean_loss = sum(losses.values()) / len(losses)
        climbed = {}
        for client, share in mixture.items():
            climbed[client] = share + self.step * losses.get(client, mean_loss)
        self.mixture = project_to_simplex(climbed)
        return result


def project_to_simplex(point: Mapping[str, float]) -> dict[str, float]:
    """The nearest point, by Euclidean distance, with coordinates of at least 0 that sum to 1.

    All coordinates are lowered by one threshold and cut at 0; sorting finds the threshold.

    >>> project_to_simplex({"A": 0.8, "B": 0.6, "C": -1.0})
    {'A': 0.6, 'B': 0.4, 'C': 0.0}
    >>> project_to_simplex({"A": 1e30, "B": 0.5})
    {'A': 1.0, 'B': 0.0}
    """
    # If the k largest coordinates stay above 0, these lowered by the threshold sum to 1: it is
    # their sum less 1, divided by k.
    descending = np.sort(list(point.values()))[::-1]
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(descending) + 1)

    # The true k is the largest whose k-th coordinate is above its threshold. The first one is,
    # unless it is so large that 1 is lost in rounding; a shift by it leaves the nearest point.
    possible = np.flatnonzero(descending > thresholds)
    if not possible.size:
        largest = float(descending[0])
        return project_to_simplex({client: value - largest for client, value in point.items()})
    threshold = float(thresholds[possible[-1]])

    projected = {}
    for client, value in point.items():
        projected[client] = round(max(value - threshold, 0.0), 15)
    return projected
