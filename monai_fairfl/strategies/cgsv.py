# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV: contributions from cosines of gradients, rewards by sparsified updates."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from monai_fairfl.games import MOST_PLAYERS, Game, shapley_values
from monai_fairfl.messages import Request
from monai_fairfl.replies import ZERO_NORM, Replies, normalise, sample_shares
from monai_fairfl.strategies.base import Rounds, Shares, Strategy
from monai_fairfl.strategies.coalitions import MOST_CLIENTS, contribution_index
from monai_fairfl.strategies.parts import Reward, Sparsified
from monai_fairfl.utils.arguments import argument, remembered

REWARDS = ("cosine", "round_robin", "data_size", "euclidean", "contribution_index", None)
MIN_REPUTATION = 1e-3  # before normalising

VARIANTS: dict[str, Any] = {
    "recommended": {"mask_scope": "layer", "rounding": "ceil", "leave_one": False},
    "paper": {"mask_scope": "global", "rounding": "floor", "leave_one": False},
    "released": {"mask_scope": "layer", "rounding": "ceil", "leave_one": True},
}
"""Variant -> arguments of :class:`~monai_fairfl.strategies.Sparsified`."""


class CGSV(Strategy):
    r"""Cosine gradient Shapley value (Xu et al., NeurIPS 2021, Eq. 1-5 and Algorithm 1).

    Every client trains its own model. Its update, scaled to length :math:`\Gamma`, is :math:`u_i`;
    the server's step is :math:`u_N = \sum_i r_i u_i`; a client's contribution is
    :math:`\psi_i = \cos(u_i, u_N)`, and its reputation
    :math:`r_i \leftarrow \alpha r_i + (1 - \alpha) \psi_i`, divided by the sum over clients. It is
    rewarded with the share :math:`\tanh(\beta r_i) / \max_j \tanh(\beta r_j)` of the step's
    entries, the largest.

    Args:
        gamma: :math:`\Gamma`, length of every update, so the most that the server's step can have;
            ``None``: the mean length of this round's updates, so that the clients' learning rate
            decides.
        alpha: of the moving average, in [0, 1).
        beta: altruism, see :class:`~monai_fairfl.strategies.Sparsified`.
        reward: ``"cosine"`` as above; the paper's baselines ``"round_robin"`` (client t mod N
            downloads the whole step, the others keep what they trained), ``"data_size"`` (share of
            the images), ``"euclidean"`` (distance of the update from the average one),
            ``"contribution_index"`` (Shapley value of validation Dice); ``None``: everybody
            receives the global model, as where CGSV serves to aggregate. Or a part, such as
            :class:`Mixed`.
        exact: the Shapley value of :math:`\nu(S) = \cos(u_S, u_N)` in place of :math:`\psi_i`, its
            approximation.
        variant: ``"recommended"``: a share of every tensor, rounded up; ``"paper"``: one share of
            the whole model, rounded down; ``"released"``: of every tensor, and never its smallest
            entry, not even for the best client.

    Reputations below 1e-3 are raised to it before they are divided by their sum, in all variants:
    the paper's formula would allow negative weights. Its first step with all reputations 0 is
    undefined; the shares of images are used. The server's step replaces the clients' learning rate:
    tune ``gamma``, or leave it to ``None``. It trusts the direction of updates, and the image
    counts in the first round.

    >>> CGSV(beta=2.0).name
    'CGSV-beta_2.0'
    """

    gamma: float | None = argument(0.5, "(0, inf)")
    alpha: float = argument(0.95, "[0, 1)")
    beta: float = argument(1.0, "(0, inf]")
    reward: str | Reward | None = argument("cosine", REWARDS, kw_only=True)
    exact: bool = False
    variant: str = argument("recommended", tuple(VARIANTS))
    reputation: Shares = remembered(Shares)  # r, of all clients
    rounds: int = remembered(int)

    has_contributions = True
    min_clients = 2

    def __post_init__(self, *parts: object) -> None:
        super().__post_init__(*parts)
        if self.exact:
            self.max_clients = MOST_PLAYERS  # type: ignore[misc]
        if self.reward == "contribution_index":
            self.max_clients = MOST_CLIENTS  # type: ignore[misc]
            self.requires = frozenset({"score"})  # type: ignore[misc]
        if self.reward == "round_robin":
            self.sparsified = Sparsified(ratio="share", rest="own")
        else:
            ratio = "tanh" if self.reward == "cosine" else "share"
            self.sparsified = Sparsified(self.beta, ratio, **VARIANTS[self.variant])

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients)
        merit = yield from self._merit(local)
        names = local.clients

        # The steps are those of Algorithm 1. u_i is the update, scaled to the length Gamma.
        norms = local.geometry.norms
        gamma = float(norms.mean()) if self.gamma is None else self.gamma
        scale = np.where(norms > ZERO_NORM, gamma / np.maximum(norms, ZERO_NORM), 0.0)

        # The server's step is u_N = sum_i r_i u_i, with the previous reputations. In the first
        # round, and for the paper's baselines, r is the share of images.
        weights = sample_shares(local)
        previous = np.zeros(len(local))
        if self.reputation:
            previous = self.reputation.of_present(names)
            if self.reward in ("cosine", None):
                weights = normalise(previous)

        # Contribution: psi_i = cos(u_i, u_N), or the Shapley value that it stands for (Eq. 2).
        if self.exact:
            psi = _exact(local, weights * scale)
        else:
            psi = local.geometry.cosines_with_sum(weights * scale)

        # Reputation: r_i <- alpha r_i + (1 - alpha) psi_i, floored and normalised (Eq. 3).
        smoothed = self.alpha * previous + (1 - self.alpha) * psi
        self.reputation.put(names, normalise(np.maximum(smoothed, MIN_REPUTATION)))
        self.rounds += 1

        # Reward: the largest entries of the step, the more the higher the reputation (Eq. 4-5).
        return self.finish(
            local,
            weights,
            self.reputation.of(names, 0.0),
            None if self.reward is None else self.sparsified,
            start=self.weights,
            scale=scale,
            merit=merit,
            details={"cosine": psi, "reputation": dict(self.reputation)},
        )

    def _merit(self, local: Replies) -> Generator[list[Request], Replies, np.ndarray | None]:
        """What the paper's baselines reward in place of the reputation, shape (N,)."""
        if self.reward == "round_robin":
            return np.eye(len(local))[self.rounds % len(local)]
        if self.reward == "data_size":
            return sample_shares(local)
        if self.reward == "euclidean":
            # 1 - d_i / sum_j d_j, with d_i the distance of the update from the average by images.
            squared = local.geometry.squared_distances_from_mean(sample_shares(local))
            closeness: np.ndarray = 1 - normalise(np.sqrt(squared))
            return closeness
        if self.reward == "contribution_index":
            return (yield from contribution_index(self, local))
        return None


def _exact(local: Replies, step: np.ndarray) -> np.ndarray:
    r"""The Shapley values of the game :math:`\nu(S) = \cos(u_S, u_N)`, shape (N,).

    Args:
        local: the replies that trained.
        step: the coefficients of the updates in u_N.
    """

    def value(coalition: frozenset[str]) -> float:
        is_member = np.array([client in coalition for client in local.clients])
        return local.geometry.cosine(step * is_member, step)

    return shapley_values(Game(local.clients, value).table())
