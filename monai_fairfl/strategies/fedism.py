# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM: sharpness-aware local training, aggregation by sharpness."""

from __future__ import annotations

import numpy as np

from monai_fairfl.messages import Measure
from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Rounds, Shares, Strategy
from monai_fairfl.utils.arguments import argument, remembered

LEAST_SHARPNESS = 1e-10  # in place of a negative one; also added to each share, as in the code


class FedISM(Strategy):
    r"""Federated learning against image-quality shift by sharpness (Wu et al., IJCAI 2024).

    Sharpness of client k: how much its loss rises when the received model moves the distance rho up
    its gradient, :math:`s_k = L_k(w + \rho g / ||g||) - L_k(w)`. Clients train with GSAM, which
    seeks flat minima (SALT); the server averages by sharpness, so that no client is left with a
    sharp one (SAGA):

    .. math:: a_k = s_k^q / \sum_j s_j^q, \qquad
              \tilde a_k \leftarrow \beta a_k + (1 - \beta) \tilde a_k

    Args:
        q: power, 0 to 50; 0 is uniform, large values leave all to the sharpest client.
        beta: of the moving average, on the new value, in (0, 1]; 1: no averaging.
        rho: radius of the perturbation, in training and in measuring.
        alpha: GSAM's share of the orthogonal gradient, at least 0; 0 is SAM.
        salt: clients train with GSAM (SALT); ``False``: they train as the bundle does, and only the
            average is by sharpness (SAGA, the ablation of the paper's Table 2). SALT alone: FedAvg
            with ``sam_rho`` in ``training``.
        reset_optimizer: forget the optimizer's moments before every round; ``None``: the variant's.
        variant: ``"recommended"``: a new optimizer in every round, as in the authors' code;
            ``"paper"``: the optimizer goes on, as the paper mentions no new one.

    Sharpness is measured on the received model, on all local training images without changing
    augmentation, and may come out negative: such a client gets the least weight; all at or below 0
    is uniform. There is no logit adjustment: it shifts the logits of whole-image classes by their
    frequency, and a segmentation's foreground share is learnt by the Dice loss. It trusts the
    sharpness that clients report, and costs two trainings and three passes over the images.

    >>> FedISM(beta=1.0).name
    'FedISM-beta_1.0'
    """

    q: float = argument(2.0, "[0, 50]")
    beta: float = argument(0.5, "(0, 1]")
    rho: float = argument(0.05, "[0, inf)")
    alpha: float = argument(0.1, "[0, inf)")
    salt: bool = True
    reset_optimizer: bool | None = argument(None, (True, False))
    variant: str = argument("recommended", ("recommended", "paper"))
    smoothed: Shares = remembered(Shares)  # the moving average of the weights, of all clients

    requires = frozenset({"sharpness"})
    gains_when = {"sharpness": "high"}
    min_clients = 2

    def round(self, clients: list[str]) -> Rounds:
        resets = self.variant != "paper" if self.reset_optimizer is None else self.reset_optimizer
        training = {"reset_optimizer": float(resets)}
        if self.salt:
            training.update(sam_rho=self.rho, gsam_alpha=self.alpha)
            # SALT: clients measure their sharpness and train with GSAM, in one exchange.
            local = yield self.train(clients, ("sharpness",), training)
            sharpness = self.measured(local, "sharpness")
        else:
            # A radius in the context of a training request would make it sharpness-aware. So
            # sharpness is measured before, in an exchange of its own.
            radius = {"sam_rho": self.rho}
            sent = yield [
                Measure(client, self.start_of(client), ("sharpness",), radius) for client in clients
            ]
            of_sent = dict(zip(sent.clients, self.measured(sent, "sharpness"), strict=True))
            local = yield self.train(sent.clients, (), training)
            sharpness = np.array([of_sent[client] for client in local.clients])

        # SAGA: a_k = s_k^q / sum_j s_j^q, from shares of sharpness as in the authors' code.
        shares = normalise(np.maximum(sharpness, LEAST_SHARPNESS)) + LEAST_SHARPNESS
        weights = normalise(shares**self.q)

        # The moving average beta a_k + (1 - beta) of the previous one; in the first round a_k.
        if self.smoothed:
            previous = normalise(self.smoothed.of_present(local.clients))
            weights = normalise(self.beta * weights + (1 - self.beta) * previous)

        self.smoothed.put(local.clients, weights)
        return self.finish(local, weights, weights, details={"sharpness": sharpness})
