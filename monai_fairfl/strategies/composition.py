# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy with parts of other methods."""

from __future__ import annotations

from collections.abc import Mapping

from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting


def compose(
    strategy: Strategy,
    weighting: Weighting | None = None,
    reward: Reward | None = None,
    training: Mapping[str, float] | None = None,
    average: Average | None = None,
) -> Strategy:
    """Put other parts into a strategy: its contributions, weighed or rewarded as elsewhere.

    Args:
        strategy: measures, and estimates contributions.
        weighting: contributions -> weights of the average; ``None``: the strategy's own.
        reward: contributions -> the model each client continues from; ``None``: the strategy's own.
        training: context of every training request, which chooses the clients' training handlers:
            ``prox_mu`` (FedProx), ``sam_rho`` and ``gsam_alpha`` (FedISM), ``local_epochs``.
        average: updates and weights -> the next global model; ``None``: the weighted mean.

    Returns:
        The same strategy, with the parts in it.

    ShapFed with FedISM's training, as config::

        {"_target_": "monai_fairfl.strategies.compose",
         "strategy": {"_target_": "monai_fairfl.strategies.ShapFed"},
         "training": {"sam_rho": 0.05, "gsam_alpha": 0.1}}

    >>> from monai_fairfl.strategies import FedAvg
    >>> compose(FedAvg(), training={"prox_mu": 0.01}).name
    'FedAvg-prox_mu_0.01'
    """
    strategy.parts = Parts(weighting, reward, dict(training or {}), average)
    return strategy
