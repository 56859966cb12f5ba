# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalition games: what every subset of the players is worth, each evaluated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monai_fairfl.errors import ConfigError
from monai_fairfl.replies import ZERO_NORM, cosine

Coalition: TypeAlias = frozenset[str]
"""The names of its members."""

MOST_PLAYERS = 20
"""2^20 coalitions are a table of 8 MB, and as many evaluations."""


class Game:
    r"""A coalition game: players, and the utility :math:`V(S)` of every subset of them.

    In a federation the players are clients, and the utility is a score of the model that a
    coalition trains. It is evaluated when first asked for, once per coalition.

    Args:
        players: their names; sorted, so that results do not depend on their order.
        utility: coalition -> finite number, in any unit (Dice: a fraction in [0, 1]).

    Raises:
        ConfigError: when there is no player, or one is named twice.

    >>> game = Game(["B", "A"], lambda coalition: len(coalition) ** 2)
    >>> game(["A", "B"]), game({"B", "A"}), game.evaluations
    (4.0, 4.0, 1)
    """

    def __init__(self, players: Iterable[str], utility: Callable[[Coalition], float]):
        self.players = tuple(sorted(players))
        self.utility = utility
        self.evaluations = 0  # calls of the utility
        self.known: dict[Coalition, float] = {}
        if not self.players or len(set(self.players)) < len(self.players):
            raise ConfigError(
                f"a game needs at least one player, each named once; got {list(self.players)}"
            )

    def __call__(self, coalition: Iterable[str]) -> float:
        """Utility of ``coalition``.

        Raises:
            ConfigError: naming a player that is not of this game, or the coalition whose utility is
                not finite.
        """
        members = frozenset(coalition)
        for unknown in sorted(members.difference(self.players)):
            raise ConfigError(
                f"{unknown!r} is not a player of this game; its players are {list(self.players)}"
            )
        if members not in self.known:
            value = self.utility(members)
            self.evaluations += 1
            if not math.isfinite(value):
                raise ConfigError(
                    f"the utility of coalition {sorted(members)} is {value!r}, not a finite "
                    "number: leave out undefined scores (Dice of empty masks), or train a diverged "
                    "model again"
                )
            self.known[members] = float(value)
        return self.known[members]

    def table(self) -> NDArray[np.float64]:
        """Utility of all coalitions, shape (2^N,).

        Bit i of an index is set where ``players[i]`` is a member.

        Raises:
            ConfigError: with more than 20 players, whose coalitions are too many to evaluate.

        >>> Game("AB", len).table().tolist()
        [0.0, 1.0, 1.0, 2.0]
        """
        table = np.empty(self._number_of_coalitions())
        for index in range(len(table)):
            bits = enumerate(self.players)
            table[index] = self([player for bit, player in bits if index >> bit & 1])
        return table

    def _number_of_coalitions(self) -> int:
        count = len(self.players)
        if count > MOST_PLAYERS:
            raise ConfigError(
                f"{count} players have 2^{count} coalitions, too many to evaluate (at most "
                f"{MOST_PLAYERS} players): sample instead, with permutation_shapley"
            )
        return 2**count


class _CosineGame(Game):
    """The game of :func:`cosine_game`, whose table one matrix product computes.

    Args:
        gram: inner products of the players' updates, shape (N, N), in the order of the names.
        weights: of the updates, shape (N,).
        names: of the players, sorted.
    """

    def __init__(self, gram: NDArray[np.float64], weights: NDArray[np.float64], names: list[str]):
        super().__init__(names, self._cosine)
        self.gram = gram
        self.weights = weights

    def _cosine(self, coalition: Coalition) -> float:
        """cos(u_S, u_N): the weights of players outside of S are 0."""
        is_member = [player in coalition for player in self.players]
        return cosine(self.gram, self.weights * is_member, self.weights)

    def table(self) -> NDArray[np.float64]:
        """As :meth:`Game.table`, from one matrix product; counts as 2^N evaluations."""
        self.evaluations = self._number_of_coalitions()

        # Row S holds the factors of the updates in u_S, the last row those of u_N.
        is_member = np.arange(self.evaluations)[:, None] >> np.arange(len(self.players)) & 1
        factors = is_member * self.weights
        products = factors @ self.gram
        lengths = np.sqrt(np.einsum("ij,ij->i", products, factors).clip(min=0))

        # cos(u_S, u_N), and 0 where either has no length.
        has_direction = (lengths >= ZERO_NORM) & (lengths[-1] >= ZERO_NORM)
        divisors = np.where(has_direction, lengths * lengths[-1], 1.0)
        cosines = (products @ self.weights / divisors).clip(-1, 1)
        return np.where(has_direction, cosines, 0.0)


def cosine_game(gram: ArrayLike, weights: ArrayLike, names: Sequence[str]) -> Game:
    r"""CGSV's game: how well a coalition's update points where everybody's does.

    :math:`\nu(S) = \cos(u_S, u_N)` with :math:`u_S = \sum_{i \in S} r_i u_i` and
    :math:`\nu(\emptyset) = 0` (Xu et al., NeurIPS 2021, Eq. 2). Its Shapley values sum to 1. All of
    it follows from the Gram matrix: no model is trained.

    Args:
        gram: inner products of the updates, shape (N, N). Updates of unit length: divide
            ``weights`` by the lengths.
        weights: the reputations :math:`r_i`, shape (N,).
        names: of the clients, in the order of the rows.

    Raises:
        ConfigError: when the shapes do not fit or a number is not finite.

    >>> cosine_game([[1, 0], [0, 1]], [0.5, 0.5], ["A", "B"]).table().round(4).tolist()
    [0.0, 0.7071, 0.7071, 1.0]
    """
    g = np.asarray(gram, dtype=np.float64)
    r = np.asarray(weights, dtype=np.float64)
    count = len(names)
    is_finite = np.isfinite(g).all() and np.isfinite(r).all()
    if g.shape != (count, count) or r.shape != (count,) or not is_finite:
        raise ConfigError(
            f"{list(names)} need a Gram matrix and weights of finite numbers, {count} x {count} "
            f"and {count}; their shapes are {g.shape}, {r.shape}"
        )
    order = sorted(range(count), key=lambda row: names[row])
    return _CosineGame(g[np.ix_(order, order)], r[order], [names[row] for row in order])
