# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""AFL: the mixture of clients that is worst for the model decides the step."""

from __future__ import annotations

import numpy as np

from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Memory, Rounds, Shares, Strategy
from monai_fairfl.utils.arguments import argument, remembered


class AFL(Strategy):
    r"""Agnostic federated learning (Mohri et al., ICML 2019).

    It solves :math:`\min_w \max_{\lambda} \sum_k \lambda_k F_k(w)`. The step is averaged with
    :math:`\lambda`. Then :math:`\lambda` climbs the losses of the received model and is projected
    back, :math:`\lambda \leftarrow P(\lambda + \gamma F)`, P the nearest point of the simplex.

    Args:
        step: :math:`\gamma`, above 0 and at most 1e6, where the worst client has all weight.
        variant: ``"paper"`` as above; ``"released"``: take over the model of the client with the
            highest loss, which FedISM's authors run under the name Agnostic-FL.

    The paper returns the mean of all rounds' models; here, as usual in its use for networks, the
    last one. It trusts the training losses that clients report.

    >>> AFL(variant="released").name
    'AFL-released'
    """

    step: float = argument(0.1, "(0, 1e6]")
    variant: str = argument("paper", ("paper", "released"))
    mixture: Memory = remembered(Memory)  # lambda, of all clients

    requires = frozenset({"global_loss"})
    gains_when = {"global_loss": "high"}

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients, ("global_loss",))
        losses = self.measured(local, "global_loss")
        if self.variant == "released":
            worst = np.eye(len(local))[losses.argmax()]
            return self.finish(local, worst, worst)

        # The present clients' part of the mixture lambda weighs the step.
        everybody = sorted({*self.clients, *local.clients})
        mixture = Shares(self.mixture).of_present(everybody)
        is_present = np.array([client in local.clients for client in everybody])
        weights = normalise(mixture[is_present])

        # lambda climbs the losses, then goes back to the simplex: lambda <- P(lambda + gamma F). An
        # absent client climbs by the mean loss.
        climb = np.full(len(everybody), losses.sum() / len(losses))
        climb[is_present] = losses
        self.mixture.put(everybody, project_to_simplex(mixture + self.step * climb))
        return self.finish(local, weights, weights)


def project_to_simplex(point: np.ndarray) -> np.ndarray:
    """The nearest point, by Euclidean distance, with coordinates of at least 0 that sum to 1.

    All coordinates are lowered by one threshold and cut at 0; sorting finds the threshold.

    >>> project_to_simplex(np.array([0.8, 0.6, -1.0])).tolist()
    [0.6, 0.4, 0.0]
    """
    # If the k largest coordinates stay above 0, these lowered by the threshold sum to 1: it is
    # their sum less 1, divided by k.
    descending = np.sort(point)[::-1]
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(descending) + 1)

    # The true k is the largest whose k-th coordinate is above its threshold.
    count = np.flatnonzero(descending > thresholds)[-1]
    return np.maximum(point - thresholds[count], 0.0).round(15)
