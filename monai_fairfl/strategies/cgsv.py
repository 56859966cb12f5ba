# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV: contributions from cosines of gradients, rewards by sparsified updates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monai_fairfl.games import MOST_PLAYERS, Game, exact_shapley
from monai_fairfl.messages import ModelSpec, Train, Weights
from monai_fairfl.replies import ZERO_NORM, Replies, normalise, sample_shares
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.coalitions import MOST_CLIENTS, contribution_index
from monai_fairfl.strategies.memory import Shares
from monai_fairfl.strategies.parts import Details, Reward
from monai_fairfl.strategies.rewards import Sparsified
from monai_fairfl.utils.arguments import argument, remembered

logger = logging.getLogger(__name__)

REWARDS = ("cosine", "round_robin", "data_size", "euclidean", "contribution_index", None)
MIN_REPUTATION = 1e-3  # before normalising

UNUSUAL_LENGTH = 2.0
"""A fixed length is unusual when it is so many times longer or shorter than the mean update."""

VARIANTS = {
    "recommended": {"mask_scope": "layer", "rounding": "ceil", "leave_one": False},
    "paper": {"mask_scope": "global", "rounding": "floor", "leave_one": False},
    "released": {"mask_scope": "layer", "rounding": "ceil", "leave_one": True},
}
"""Variant -> arguments of :class:`~monai_fairfl.strategies.Sparsified`."""


@dataclass(eq=False, repr=False)
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
        beta: altruism, see :class:`~monai_fairfl.strategies.rewards.Sparsified`.
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

    additive = True
    min_clients = 2

    def __post_init__(self, weighting: Any = None, *parts: Any) -> None:
        super().__post_init__(weighting, self.part_given_as("reward", Reward), *parts)
        if self.exact:
            self.max_clients = MOST_PLAYERS  # type: ignore[misc]
        if self.reward == "contribution_index":
            self.max_clients = MOST_CLIENTS  # type: ignore[misc]
            self.requires = frozenset({"score"})  # type: ignore[misc]
        self.sparsified = Sparsified(self.beta, **VARIANTS[self.variant])  # type: ignore[arg-type]

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        super().start(weights, clients, spec)
        self._has_warned = False

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        names = local.clients

        # Only the reward by the contribution index measures the Shapley values of Dice.
        dice_values = np.zeros(0)
        if self.reward == "contribution_index":
            dice_values = yield from contribution_index(self, local)

        # The steps are those of Algorithm 1. u_i is the update, scaled to the length Gamma.
        norms = local.geometry.norms
        gamma = self._length(norms)
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
        reputation = Shares(self.reputation)
        reputation.put(names, normalise(np.maximum(smoothed, MIN_REPUTATION)))

        # Reward: the largest entries of the step, the more the higher the reputation (Eq. 4-5).
        result = self.finish(
            local,
            weights,
            reputation.of(names, 0.0),
            self._reward_of_round(local, dice_values),
            start=self.weights,
            scale=scale,
            details={"cosine": psi, "reputation": dict(reputation)},
        )
        self.reputation = reputation
        self.rounds += 1
        return result

    def _length(self, norms: np.ndarray) -> float:
        """Gamma; a fixed one that is far from what the clients trained is logged, once in a run."""
        mean_norm = float(np.mean(norms))
        if self.gamma is None:
            return mean_norm
        if not self._has_warned and mean_norm > ZERO_NORM:
            if not 1 / UNUSUAL_LENGTH <= self.gamma / mean_norm <= UNUSUAL_LENGTH:
                self._has_warned = True
                logger.warning(
                    "CGSV: gamma=%g sets the length of every step, but this round's updates have "
                    "the mean length %.3g; gamma=None takes the length that the clients trained",
                    self.gamma,
                    mean_norm,
                )
        return self.gamma

    def _reward_of_round(self, local: Replies, dice_values: np.ndarray) -> Reward | None:
        """What the argument ``reward`` stands for in this round."""
        if self.reward == "cosine":
            return self.sparsified
        if self.reward == "round_robin":
            return _RoundRobin(local.clients[self.rounds % len(local)])
        if self.reward == "data_size":
            return _SparsifiedBy(self.sparsified, sample_shares(local))
        if self.reward == "euclidean":
            return _SparsifiedBy(self.sparsified, _closeness(local))
        if self.reward == "contribution_index":
            return _SparsifiedBy(self.sparsified, dice_values)
        return None


def _exact(local: Replies, step: np.ndarray) -> np.ndarray:
    r"""The Shapley values of the game :math:`\nu(S) = \cos(u_S, u_N)`, shape (N,).

    Args:
        local: the replies that trained.
        step: the coefficients of the updates in u_N.
    """
    names = local.clients

    def value(coalition: frozenset[str]) -> float:
        is_member = np.array([client in coalition for client in names])
        return local.geometry.cosine(step * is_member, step)

    found = exact_shapley(Game(names, value)).values
    return np.array([float(found[client]) for client in names])


def _closeness(local: Replies) -> np.ndarray:
    r"""The paper's reward EU: :math:`1 - d_i / \sum_j d_j`.

    :math:`d_i` is the Euclidean distance of update i from the average by images.
    """
    distances = np.sqrt(local.geometry.squared_distances_from_mean(sample_shares(local)))
    closeness: np.ndarray = 1 - distances / (distances.sum() or 1.0)
    return closeness


class _SparsifiedBy(Reward):
    """The sparsified step by another quantity than the reputation, for the paper's baselines.

    Args:
        sparsified: makes the models for given ratios.
        quantity: what a client's ratio is proportional to; the largest has the ratio 1.
    """

    def __init__(self, sparsified: Sparsified, quantity: np.ndarray):
        self.sparsified = sparsified
        self.ratios = Sparsified(ratio="share").ratios(quantity)

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        return self.sparsified.share_out(replies, old, new, self.ratios)


class _RoundRobin(Reward):
    """One client takes the whole step; the others go on with what they trained."""

    def __init__(self, turn: str):
        self.turn = turn

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        models: dict[str, Weights] = {}
        for reply in replies:
            model = replies.local(reply)
            if reply.client == self.turn:
                start = replies.start(reply)
                for name in replies.spec.parameters:
                    model[name] = start[name] + (new[name] - old[name])
            models[reply.client] = model
        received = np.array([float(reply.client == self.turn) for reply in replies])
        return models, {"kept": received}
