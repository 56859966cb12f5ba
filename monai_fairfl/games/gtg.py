# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""GTG-Shapley: values of a federation's rounds, where little gains end the sampling early."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monai_fairfl.games.game import Game
from monai_fairfl.games.sampling import Running, walk
from monai_fairfl.games.valuation import Valuation, rank_stability, sum_over_rounds
from monai_fairfl.messages import Estimate

LEAST = 30
"""Permutations before convergence is looked for."""

LAST = 10
"""Running means that must agree."""

CHANGE = 0.05
"""Largest mean relative change among these."""

CAP = 0.8
"""Share of 2^N: more permutations than that are never walked through."""

Orders = Callable[[Sequence[str], np.random.Generator], Iterable[Sequence[str]]]
"""(players, generator) -> the permutations of one pass."""


@dataclass(frozen=True)
class GTGRound:
    """What one round cost.

    Args:
        gain: V(all) - V(nobody).
        skipped: whether the round changed the score by too little to be shared out.
        permutations: walked through.
        truncated: marginal contributions taken for 0 without evaluation.
        evaluations: of the utility.

    >>> first = Game("AB", lambda coalition: 0.4 * len(coalition))
    >>> second = Game("AB", lambda coalition: 0.8)
    >>> found = gtg_shapley([first, second])
    >>> [(spent.gain, spent.skipped, spent.evaluations) for spent in found.rounds]
    [(0.8, False, 4), (0.0, True, 2)]
    """

    gain: float
    skipped: bool
    permutations: int
    truncated: int
    evaluations: int


@dataclass(frozen=True)
class GTGValuation(Valuation):
    """Values summed over the rounds, and what each round cost.

    >>> worth = {"A": 0.3, "B": 0.1}
    >>> game = Game(worth, lambda coalition: sum(worth[player] for player in coalition))
    >>> found = gtg_shapley([game, game])
    >>> {player: round(share, 2) for player, share in found.shares().items()}
    {'A': 0.75, 'B': 0.25}
    >>> sum(spent.permutations for spent in found.rounds)
    8
    """

    rounds: tuple[GTGRound, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As :meth:`Valuation.to_json`, with the rounds."""
        return {**super().to_json(), "rounds": [asdict(found) for found in self.rounds]}


def guided_orders(players: Sequence[str], rng: np.random.Generator) -> list[tuple[str, ...]]:
    """One permutation for each player, who comes first in it; the others follow in random order.

    >>> [order[0] for order in guided_orders("ABC", np.random.default_rng(0))]
    ['A', 'B', 'C']
    """
    orders = []
    for first in players:
        others = [player for player in players if player != first]
        shuffled = [others[position] for position in rng.permutation(len(others))]
        orders.append((first, *shuffled))
    return orders


def gtg_shapley(
    rounds: Sequence[Game],
    between: float = 0.001,
    within: float = 0.001,
    seed: int = 0,
    orders: Orders = guided_orders,
) -> GTGValuation:
    """Guided truncation gradient Shapley (Liu et al., ACM TIST 2022).

    It needs no training beyond the federation's own. A round's game has as utility of a coalition
    the score of the model made of its members' updates, and of nobody that of the model before the
    round.

    A round that changes the score by at most ``between``, up or down, is worth nothing to anybody;
    one that loses more is shared out like one that gains. Permutations are walked through, one pass
    of ``orders`` at a time; within ``within`` of the score of all, the rest gets nothing. It ends
    when, after more than max(30, N) permutations, the last ten running means differ from the very
    last by less than 5 % in the mean over players, or after 0.8 x 2^N permutations. Rounds are
    summed.

    Args:
        rounds: a game for each round; players may differ.
        between: truncation between rounds, in the unit of the utility; 0.001 to 0.01 for Dice or
            accuracy.
        within: truncation within a permutation, same unit.
        seed: of the permutations.
        orders: (players, generator) -> the permutations of one pass.

    Returns:
        Values, their standard errors over passes (the error of truncation is not in it; ``n``
        counts passes), and what each round cost.

    >>> first = Game("AB", lambda coalition: 0.4 * len(coalition))
    >>> second = Game("AB", lambda coalition: 0.8)
    >>> found = gtg_shapley([first, second])
    >>> [value.value for value in found.values.values()], [spent.skipped for spent in found.rounds]
    ([0.4, 0.4], [False, True])
    >>> gtg_shapley([Game("AB", lambda coalition: -0.4 * len(coalition))]).rounds[0].skipped
    False
    """
    rng = np.random.default_rng(seed)
    valuations = []
    costs = []
    for game in rounds:
        valuation, cost = _round(game, between, within, rng, orders)
        valuations.append(valuation)
        costs.append(cost)
    summed = sum_over_rounds(valuations)
    return GTGValuation(
        "gtg",
        summed.values,
        summed.evaluations,
        summed.rank_stability,
        summed.total,
        tuple(costs),
    )


def _round(
    game: Game, between: float, within: float, rng: np.random.Generator, orders: Orders
) -> tuple[Valuation, GTGRound]:
    """The values of one round, and its cost."""
    evaluations_before = game.evaluations
    values = {player: Estimate(0.0, 0.0, 0) for player in game.players}
    walks = Running()
    passes = Running()
    latest_means: deque[NDArray[np.float64]] = deque(maxlen=LAST)
    truncated = 0

    # Truncation between rounds: a round that changes next to nothing is worth nothing to anybody.
    gain = game(game.players) - game(())
    skipped = abs(gain) <= between

    while not skipped and not _is_sampled(walks.count, latest_means, len(game.players)):
        rows = []
        for order in orders(game.players, rng):
            # Truncation within a permutation: near the score of all, the rest gets nothing.
            row, count = walk(game, order, within)
            rows.append(row)
            truncated += count
        for row in rows:
            walks.add(row)
            latest_means.append(walks.mean)

        # Within a pass, first places are dealt out and not drawn: only whole passes are alike.
        passes.add(np.mean(rows, axis=0))
        values = passes.estimates(game.players)

    evaluations = game.evaluations - evaluations_before
    valuation = Valuation("gtg", values, evaluations, rank_stability(values), gain)
    return valuation, GTGRound(gain, skipped, walks.count, truncated, evaluations)


def _is_sampled(count: int, means: Sequence[NDArray[np.float64]], players: int) -> bool:
    """Whether the running means agree, or the permutations are as many as there may be."""
    if count >= CAP * 2**players:
        return True
    if count <= max(LEAST, players):
        return False
    changes = np.abs(np.array(means) - means[-1]) / (np.abs(means[-1]) + 1e-12)
    return bool(changes.mean(axis=1).max() < CHANGE)
