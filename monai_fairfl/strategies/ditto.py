# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Ditto: a personal model at every client, pulled towards the global one."""

from __future__ import annotations

from monai_fairfl.replies import sample_shares, uniform
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.utils.arguments import argument


class Ditto(Strategy):
    r"""Fair and robust federated learning through personalisation (Li et al., ICML 2021, Alg. 1).

    Beside the global model, trained as in FedAvg, every client trains a model v of its own that it
    shows to nobody,

    .. math:: \min_v F_k(v) + \frac{\lambda}{2} ||v - w||^2

    with w the global model it received in this round. The score reported for a client is its
    personal model's. A round costs two trainings.

    Args:
        lam: :math:`\lambda`, at least 0; 0: each trains alone; large: v is w.
        variant: ``"paper"``: weighted by samples; ``"released"``: the plain mean, as in the
            authors' code.

    >>> Ditto(lam=0.1).name
    'Ditto-lam_0.1'
    """

    lam: float = argument(1.0, "[0, inf)")
    variant: str = argument("paper", ("paper", "released"))

    personal = True

    def round(self, clients: list[str]) -> Rounds:
        # The client trains the global model and, pulled by lambda, its own (Algorithm 1).
        context = {"ditto_lambda": self.lam}
        local = yield self.train(clients, ("personal_score",), context)

        # The global model is averaged as in FedAvg.
        shares = sample_shares(local) if self.variant == "paper" else uniform(local)
        return self.finish(local, shares, contributions=shares)
