# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV: contributions from cosines of gradients, rewards by sparsified updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from monai_fairfl.games import cosine_game, exact_shapley
from monai_fairfl.protocol.averages import (
    merge_with_absent,
    normalise,
    renormalised_previous,
    sample_shares,
)
from monai_fairfl.protocol.messages import Train
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice
from monai_fairfl.strategies.coalitions import MOST_CLIENTS, contribution_index
from monai_fairfl.strategies.parts import Details, Reward
from monai_fairfl.strategies.rewards import Sparsified

REWARDS = ("cosine", "round_robin", "data_size", "euclidean", "contribution_index", None)
VARIANTS = {  # mask scope, rounding, whether one entry of every tensor is always left out
    "recommended": ("layer", "ceil", False),
    "paper": ("global", "floor", False),
    "released": ("layer", "ceil", True),
}


class CGSV(Strategy):
    r"""Cosine gradient Shapley value (Xu et al., NeurIPS 2021, Eq. 1-5 and Algorithm 1).

    Every client trains its own model. Its update, scaled to length :math:`\Gamma`, is :math:`u_i`;
    the server's step is :math:`u_N = \sum_i r_i u_i`; a client's contribution is
    :math:`\psi_i = \cos(u_i, u_N)`, and its reputation
    :math:`r_i \leftarrow \alpha r_i + (1 - \alpha) \psi_i`, divided by the sum over clients. It is
    rewarded with the share :math:`\tanh(\beta r_i) / \max_j \tanh(\beta r_j)` of the step's
    entries, the largest.

    Args:
        gamma: :math:`\Gamma`, length of every update, so the length of the server's step; ``None``:
            the mean length of this round's updates, so that the clients' learning rate decides.
        alpha: of the moving average, in [0, 1).
        beta: altruism, see :class:`~monai_fairfl.strategies.rewards.Sparsified`.
        mask_scope: ``"layer"`` or ``"global"``; ``None``: as the variant says.
        reward: ``"cosine"`` as above; the paper's baselines ``"round_robin"`` (client t mod N
            downloads the whole step, the others keep what they trained), ``"data_size"`` (share of
            the images), ``"euclidean"`` (distance of the update from the average one),
            ``"contribution_index"`` (Shapley value of validation Dice); ``None``: everybody
            receives the global model, as where CGSV serves to aggregate.
        exact: the Shapley value of :math:`\nu(S) = \cos(u_S, u_N)` in place of :math:`\psi_i`, its
            approximation.
        variant: ``"recommended"``: a share of every tensor, rounded up; ``"paper"``: one share of
            the whole model, rounded down; ``"released"``: of every tensor, and never its smallest
            entry, not even for the best client.

    Reputations are held at 1e-3 or more before they are divided by their sum, in all variants: the
    paper's formula would allow negative weights. Its first step with all reputations 0 is
    undefined; the shares of images are used. The server's step replaces the clients' learning rate:
    tune ``gamma``, or leave it to ``None``.

    >>> CGSV(beta=2.0).name
    'CGSV-beta_2.0'
    """

    paper = "Xu et al., NeurIPS 2021"
    estimates = "share, by cosines with the step"
    client_does = "trains its own model"
    min_clients = 2
    state = ("reputation", "rounds")

    def __init__(
        self,
        gamma: float | None = 0.5,
        alpha: float = 0.95,
        beta: float = 1.0,
        mask_scope: str | None = None,
        reward: str | None = "cosine",
        exact: bool = False,
        variant: str = "recommended",
    ):
        check_choice(self, "reward", reward, REWARDS)
        check_choice(self, "variant", variant, VARIANTS)
        if not 0 <= alpha < 1 or (gamma is not None and not gamma > 0):
            raise ValueError(
                f"CGSV: alpha must be in [0, 1) and gamma above 0, got alpha={alpha!r}, gamma={gamma!r}"
            )
        scope, rounding, leave_one = VARIANTS[variant]
        self.gamma, self.alpha, self.beta, self.reward, self.exact = (
            gamma,
            alpha,
            beta,
            reward,
            exact,
        )
        self.mask_scope, self.variant = mask_scope, variant
        if reward == "contribution_index":
            self.max_clients = MOST_CLIENTS  # type: ignore[misc]
        self.mask = Sparsified(beta, "tanh", mask_scope or scope, rounding, leave_one)
        self.reputation: dict[str, float] = {}
        self.rounds = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        index = (
            (yield from contribution_index(self, local))
            if self.reward == "contribution_index"
            else None
        )
        length = dict(zip([r.client for r in local], local.geometry.norms, strict=True))
        gamma = self.gamma or float(np.mean(list(length.values())))
        unit = {client: gamma / norm if norm > 1e-12 else 0.0 for client, norm in length.items()}
        weights = self._weights(local)
        psi = self._contributions(local, weights, unit)
        before = (
            renormalised_previous(self.reputation, psi)
            if self.reputation
            else dict.fromkeys(psi, 0.0)
        )
        moved = {c: max(self.alpha * before[c] + (1 - self.alpha) * psi[c], 1e-3) for c in psi}
        reputation = merge_with_absent(self.reputation, normalise(moved))
        result = self.finish(
            local, weights, {c: reputation[c] for c in weights}, self._reward(local, index),
            start=self.weights, scale=unit, details={"cosine": psi, "reputation": reputation},
        )  # fmt: skip
        self.reputation, self.rounds = reputation, self.rounds + 1
        return result

    def _weights(self, local: Replies) -> dict[str, float]:
        """The reputations of before this round; at first, and for the baselines of the reward,
        shares of images.
        """
        if not self.reputation or self.reward not in ("cosine", None):
            return sample_shares(local)
        return normalise(renormalised_previous(self.reputation, local.clients))

    def _contributions(
        self, local: Replies, weights: Mapping[str, float], unit: Mapping[str, float]
    ) -> dict[str, float]:
        scale = np.array([weights[c] * unit[c] for c in local.clients])
        if self.exact:
            game = cosine_game(local.geometry.gram, scale, local.clients)
            return {client: float(value) for client, value in exact_shapley(game).values.items()}
        return {
            c: local.geometry.cosine(np.eye(len(local))[i], scale)
            for i, c in enumerate(local.clients)
        }

    def _reward(self, local: Replies, index: Mapping[str, float] | None) -> Reward | None:
        if self.reward == "round_robin":
            return _RoundRobin(local.clients[self.rounds % len(local.clients)])
        if self.reward == "data_size":
            return _Shares(self.mask, sample_shares(local))
        if self.reward == "euclidean":
            return _Shares(self.mask, _closeness(local))
        if index is not None:
            return _Shares(self.mask, index)
        return self.mask if self.reward == "cosine" else None


class _Shares(Reward):
    """A part of the step by other quantities than the contributions."""

    def __init__(self, mask: Sparsified, worth: Mapping[str, float]):
        self.mask, self.ratios = mask, Sparsified(ratio="share").ratios(worth)

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: object
    ) -> tuple[dict[str, Weights], Details]:
        return self.mask.share_out(replies, old, new, self.ratios)


class _RoundRobin(Reward):
    """One client takes the whole step; the others go on with what they trained."""

    def __init__(self, turn: str):
        self.turn = turn

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: object
    ) -> tuple[dict[str, Weights], Details]:
        models: dict[str, Weights] = {reply.client: replies.local(reply) for reply in replies}
        for reply in replies:
            if reply.client == self.turn:
                start = replies.start(reply)
                steps = {
                    name: start[name] + (new[name] - old[name]) for name in replies.spec.parameters
                }
                models[reply.client] = {**models[reply.client], **steps}
        return models, {"kept": {client: float(client == self.turn) for client in replies.clients}}


def _closeness(local: Replies) -> dict[str, float]:
    """1 - d_i / sum_j d_j, d_i the Euclidean distance of update i from the average by images (EU)."""
    shares = sample_shares(local)
    mean = np.array([shares[client] for client in local.clients])
    apart = np.eye(len(local)) - mean
    distance = np.sqrt(np.maximum(np.einsum("in,nm,im->i", apart, local.geometry.gram, apart), 0.0))
    total = float(distance.sum()) or 1.0
    return {client: 1 - float(d) / total for client, d in zip(local.clients, distance, strict=True)}
