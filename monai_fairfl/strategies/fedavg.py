# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedAvg: the weighted average of the clients' updates."""

from __future__ import annotations

from monai_fairfl.replies import sample_shares, uniform
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.parts import Weighting
from monai_fairfl.utils.arguments import argument


class FedAvg(Strategy):
    r"""Federated averaging (McMahan et al., AISTATS 2017, Algorithm 1).

    .. math:: w_{k+1} = w_k + \sum_i p_i \Delta_{k,i}, \qquad p_i = n_i / \sum_j n_j

    Args:
        weighting: ``"samples"`` (n_i: images of one local epoch; FedCE, CGSV, FedISM use this
            baseline), ``"uniform"`` (p_i = 1 / N; Fed-LWR Eq. 1, ShapFed Eq. 4), or a part such as
            :class:`Krum`.

    It trusts the image counts that clients report.

    >>> FedAvg(weighting="uniform").weighting
    'uniform'
    """

    weighting: str | Weighting = argument("samples", ("samples", "uniform"))

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients)

        # The weights p_i of the average: shares of the images, or 1 / N.
        shares = sample_shares(local) if self.weighting == "samples" else uniform(local)
        return self.finish(local, shares, contributions=shares)
