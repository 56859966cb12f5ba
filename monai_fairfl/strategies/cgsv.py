# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV: contributions from cosines of gradients, rewards by sparsified updates."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monai_fairfl.games import MOST_PLAYERS, Game, cosine_game, exact_shapley
from monai_fairfl.games.game import Coalition
from monai_fairfl.messages import ModelSpec, Train, Weights
from monai_fairfl.replies import (
    ZERO_NORM,
    Replies,
    merge_with_absent,
    normalise,
    renormalised_previous,
    sample_shares,
)
from monai_fairfl.strategies.arguments import check_choice, check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.coalitions import MOST_CLIENTS, contribution_index
from monai_fairfl.strategies.parts import Details, Reward
from monai_fairfl.strategies.quantities import Quantity
from monai_fairfl.strategies.rewards import Sparsified

logger = logging.getLogger(__name__)

REWARDS = ("cosine", "round_robin", "data_size", "euclidean", "contribution_index", None)
MIN_REPUTATION = 1e-3  # before normalising

UNUSUAL_LENGTH = 2.0
"""A fixed length is unusual when it is so many times longer or shorter than the mean update."""


@dataclass(frozen=True)
class _Variant:
    """A variant's arguments of :class:`~monai_fairfl.strategies.rewards.Sparsified`."""

    mask_scope: str
    rounding: str
    leave_one: bool


VARIANTS = {
    "recommended": _Variant("layer", "ceil", leave_one=False),
    "paper": _Variant("global", "floor", leave_one=False),
    "released": _Variant("layer", "ceil", leave_one=True),
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
        gamma: :math:`\Gamma`, length of every update, so the most that the server's step can have;
            ``None``: the mean length of this round's updates, so that the clients' learning rate
            decides.
        alpha: of the moving average, in [0, 1).
        beta: altruism, see :class:`~monai_fairfl.strategies.rewards.Sparsified`.
        mask_scope: ``"layer"`` or ``"global"``; ``None``: the variant's.
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
    tune ``gamma``, or leave it to ``None``.

    The server trusts the direction of updates, and in the first round the numbers of images that
    clients report. The contribution is a share, by cosines with the step.

    >>> CGSV(beta=2.0).name
    'CGSV-beta_2.0'
    """

    additive = True
    min_clients = 2
    state = ("reputation", "rounds")
    quantities = {
        "cosine": Quantity(
            "Agreement with the step by reputations",
            "Cosine",
            "Cosine of a site's update and the sum of all updates by the reputations before the "
            "round, which is the server's step unless another weighting is given (or its "
            "Shapley value, with exact=True): 1 is the same direction, 0 a right angle, -1 the "
            "opposite.",
        ),
        "reputation": Quantity(
            "Reputation",
            "Reputation",
            "Moving average of that agreement; sums to 1 over the sites.",
        ),
    }

    def __init__(
        self,
        gamma: float | None = 0.5,
        alpha: float = 0.95,
        beta: float = 1.0,
        mask_scope: str | None = None,
        reward: str | Reward | None = "cosine",
        exact: bool = False,
        variant: str = "recommended",
        **parts: Any,
    ):
        if isinstance(reward, Reward):
            parts["reward"], reward = reward, "cosine"
        check_choice(self, "reward", reward, REWARDS)
        check_choice(self, "variant", variant, VARIANTS)
        check_choice(self, "exact", exact, (True, False))
        check_numbers(self, alpha=alpha, beta=beta)
        if gamma is not None:
            check_numbers(self, gamma=gamma)
        if not 0 <= alpha < 1:
            raise ValueError(f"CGSV: alpha must be in [0, 1), got {alpha!r}")
        if gamma is not None and not 0 < gamma < math.inf:
            raise ValueError(f"CGSV: gamma must be a finite number above 0, or None, got {gamma!r}")
        self.gamma = gamma
        self.alpha = alpha
        self.beta = beta
        self.mask_scope = mask_scope
        self.reward = reward
        self.exact = exact
        self.variant = variant
        if exact:
            self.max_clients = MOST_PLAYERS  # type: ignore[misc]
        if reward == "contribution_index":
            self.max_clients = MOST_CLIENTS  # type: ignore[misc]
            self.requires = frozenset({"score"})  # type: ignore[misc]
        chosen = VARIANTS[variant]
        self.sparsified = Sparsified(
            beta,
            ratio="tanh",
            mask_scope=mask_scope or chosen.mask_scope,
            rounding=chosen.rounding,
            leave_one=chosen.leave_one,
        )
        self.reputation: dict[str, float] = {}  # r, of all clients
        self.rounds = 0
        self._has_warned = False
        super().__init__(**parts)

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        super().start(weights, clients, spec)
        self._has_warned = False

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]

        # Only the reward by the contribution index measures the Shapley values of Dice.
        dice_values = None
        if self.reward == "contribution_index":
            dice_values = yield from contribution_index(self, local)

        # The steps are those of Algorithm 1. First the factor that makes u_i, of length Gamma, of
        # each update.
        scales = self._scales(local)

        # The server's step is u_N = sum_i r_i u_i, with the previous reputations.
        weights = self._weights_of_step(local)

        # Contribution: psi_i = cos(u_i, u_N), or the Shapley value that it stands for (Eq. 2).
        psi = self._psi(local, weights, scales)

        # Reputation: r_i <- alpha r_i + (1 - alpha) psi_i, floored and normalised.
        reputation = self._updated_reputation(psi)

        # Reward: the largest entries of the step, the more the higher the reputation (Eq. 4-5).
        result = self.finish(
            local,
            weights,
            contributions={client: reputation[client] for client in weights},
            rewards=self._reward_of_round(local, dice_values),
            start=self.weights,
            scale=scales,
            details={"cosine": psi, "reputation": reputation},
        )
        self.reputation = reputation
        self.rounds += 1
        return result

    def _scales(self, local: Replies) -> dict[str, float]:
        """client -> Gamma / ||update||; 0 for an update without length."""
        norms = local.geometry.norms
        mean_norm = float(np.mean(norms))
        gamma = self.gamma
        if gamma is None:
            gamma = mean_norm
        else:
            self._warn_of_unusual(gamma, mean_norm)
        scales = {}
        for client, norm in zip(local.clients, norms, strict=True):
            scales[client] = gamma / norm if norm > ZERO_NORM else 0.0
        return scales

    def _warn_of_unusual(self, gamma: float, mean_norm: float) -> None:
        """Warn, once in a run, of a fixed length that is far from what the clients trained."""
        if self._has_warned or not mean_norm > ZERO_NORM:
            return
        if 1 / UNUSUAL_LENGTH <= gamma / mean_norm <= UNUSUAL_LENGTH:
            return
        self._has_warned = True
        logger.warning(
            "CGSV: gamma=%g sets the length of every step, but this round's updates have the mean "
            "length %.3g; gamma=None takes the length that the clients trained",
            gamma,
            mean_norm,
        )

    def _weights_of_step(self, local: Replies) -> dict[str, float]:
        """The previous reputations; in the first round, and for the baselines, shares of images."""
        if not self.reputation or self.reward not in ("cosine", None):
            return sample_shares(local)
        return normalise(renormalised_previous(self.reputation, local.clients))

    def _psi(
        self, local: Replies, weights: Mapping[str, float], scales: Mapping[str, float]
    ) -> dict[str, float]:
        """client -> psi_i, or its exact Shapley value."""
        # The coefficients of the updates in u_N. The length of u_i does not matter to a cosine.
        step = np.array([weights[client] * scales[client] for client in local.clients])
        if self.exact:
            game = _game_of(local, step)
            return {client: float(value) for client, value in exact_shapley(game).values.items()}
        cosines = local.geometry.cosines_with_sum(step)
        return {client: float(c) for client, c in zip(local.clients, cosines, strict=True)}

    def _updated_reputation(self, psi: Mapping[str, float]) -> dict[str, float]:
        """The reputations of all clients after this round; at first, the previous ones are 0."""
        if self.reputation:
            previous = renormalised_previous(self.reputation, psi)
        else:
            previous = dict.fromkeys(psi, 0.0)
        smoothed = {}
        for client, value in psi.items():
            average = self.alpha * previous[client] + (1 - self.alpha) * value
            smoothed[client] = max(average, MIN_REPUTATION)
        return merge_with_absent(self.reputation, normalise(smoothed))

    def _reward_of_round(
        self, local: Replies, dice_values: Mapping[str, float] | None
    ) -> Reward | None:
        """What the argument ``reward`` stands for in this round."""
        if self.reward == "cosine":
            return self.sparsified
        if self.reward == "round_robin":
            return _RoundRobin(local.clients[self.rounds % len(local.clients)])
        if self.reward == "data_size":
            return _SparsifiedBy(self.sparsified, sample_shares(local))
        if self.reward == "euclidean":
            return _SparsifiedBy(self.sparsified, _closeness(local))
        if dice_values is not None:
            return _SparsifiedBy(self.sparsified, dice_values)
        return None


def _game_of(local: Replies, step: np.ndarray) -> Game:
    r"""The game :math:`\nu(S) = \cos(u_S, u_N)`; a class counts where both sums label it.

    Args:
        local: the replies that trained.
        step: the coefficients of the updates in u_N.
    """
    if local.labelled is None:
        return cosine_game(local.geometry.gram, step, local.clients)

    def value(coalition: Coalition) -> float:
        is_member = np.array([client in coalition for client in local.clients])
        return local.geometry.cosine(step * is_member, step)

    return Game(local.clients, value)


class _SparsifiedBy(Reward):
    """The sparsified step by another quantity than the reputation, for the paper's baselines.

    Args:
        sparsified: makes the models for given ratios.
        quantity: client -> what its ratio is proportional to; the largest has the ratio 1.
    """

    def __init__(self, sparsified: Sparsified, quantity: Mapping[str, float]):
        self.sparsified = sparsified
        self.ratios = Sparsified(ratio="share").ratios(quantity)

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: object
    ) -> tuple[dict[str, Weights], Details]:
        return self.sparsified.share_out(replies, old, new, self.ratios)


class _RoundRobin(Reward):
    """One client takes the whole step; the others go on with what they trained."""

    def __init__(self, turn: str):
        self.turn = turn

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: object
    ) -> tuple[dict[str, Weights], Details]:
        models: dict[str, Weights] = {}
        for reply in replies:
            model = replies.local(reply)
            if reply.client == self.turn:
                start = replies.start(reply)
                for name in replies.spec.parameters:
                    model[name] = start[name] + (new[name] - old[name])
            models[reply.client] = model
        received = {client: float(client == self.turn) for client in replies.clients}
        return models, {"kept": received}


def _closeness(local: Replies) -> dict[str, float]:
    r"""The paper's reward EU: :math:`1 - d_i / \sum_j d_j`.

    :math:`d_i` is the Euclidean distance of update i from the average by images.
    """
    shares = sample_shares(local)
    average = np.array([shares[client] for client in local.clients])
    distances = np.sqrt(local.geometry.squared_distances_from_mean(average))
    total = float(distances.sum()) or 1.0
    closeness = {}
    for client, distance in zip(local.clients, distances, strict=True):
        closeness[client] = 1 - float(distance) / total
    return closeness
