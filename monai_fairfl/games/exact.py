# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Exact Shapley values, from the utility of every coalition."""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.game import Game
from monai_fairfl.games.valuation import Valuation
from monai_fairfl.messages import Estimate


def shapley_values(table: ArrayLike) -> NDArray[np.float64]:
    r"""Shapley value of every player of a game given as a table (Shapley, 1953).

    :math:`\phi_i = \frac{1}{N} \sum_{S \not\ni i} \binom{N-1}{|S|}^{-1} [V(S \cup i) - V(S)]`: the
    mean over coalition sizes of the mean marginal contribution to coalitions of that size. They sum
    to V(all) - V(nobody). N times these values are the contribution index of Song et al. (2019)
    with its constant C = 1.

    Args:
        table: utility of coalition S at index :math:`\sum_{i \in S} 2^i`, shape (2^N,), as
            :meth:`Game.table` gives.

    Returns:
        The values, shape (N,), in the order of the bits.

    Raises:
        ConfigError: when the length is not a power of two above one.

    >>> shapley_values([0.0, 1.0, 2.0, 5.0]).tolist()
    [2.0, 3.0]
    """
    v = np.asarray(table, dtype=np.float64)
    count = v.size.bit_length() - 1
    if v.ndim != 1 or count < 1 or v.size != 2**count:
        raise ConfigError(
            f"a table of N players has 2^N values (2, 4, 8, ...), got shape {v.shape}"
        )

    # Sizes of the coalitions without one player: the bits set in 0 .. 2^(N-1) - 1.
    sizes = np.zeros(1, dtype=int)
    for _ in range(count - 1):
        sizes = np.concatenate([sizes, sizes + 1])

    # The factor of a marginal contribution to a coalition, 1 / (N binom(N - 1, |S|)).
    factor_of_size = [1 / (count * comb(count - 1, size)) for size in range(count)]
    factors = np.array(factor_of_size)[sizes]

    values = np.empty(count)
    for player in range(count):
        # Along the second axis without and with the player; the other bits keep their order.
        pairs = v.reshape(-1, 2, 2**player)
        marginals = (pairs[:, 1] - pairs[:, 0]).ravel()
        values[player] = factors @ marginals
    return values


def exact_shapley(game: Game) -> Valuation:
    """Shapley values from all 2^N coalitions.

    Nothing is sampled, so standard errors are 0 and the ranking is stable.

    Args:
        game: of at most 20 players.

    Raises:
        ConfigError: with more players than that.

    >>> found = exact_shapley(Game("AB", lambda coalition: float(coalition == {"A", "B"})))
    >>> found.values["A"].value, found.evaluations, found.total
    (0.5, 4, 1.0)
    """
    evaluations_before = game.evaluations
    table = game.table()
    marginals = len(table) // 2  # of each player
    values = {}
    for player, value in zip(game.players, shapley_values(table)):
        values[player] = Estimate(float(value), 0.0, marginals)
    return Valuation(
        method="exact",
        values=values,
        evaluations=game.evaluations - evaluations_before,
        rank_stability=1.0,
        total=float(table[-1] - table[0]),
    )
