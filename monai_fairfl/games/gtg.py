# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""GTG-Shapley: values of the rounds of one federation, with sampling cut short where little is left
to share out.
"""

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
from monai_fairfl.protocol.values import Estimate

LEAST = 30  # permutations before convergence is looked for
LAST = 10  # running means that must agree
CHANGE = 0.05  # largest mean relative change among these
CAP = 0.8  # of 2^N: more permutations than that are never walked

Orders = Callable[[Sequence[str], np.random.Generator], Iterable[Sequence[str]]]


@dataclass(frozen=True)
class GTGRound:
    """What one round cost: its ``gain`` V(all) - V(nobody), whether it was ``skipped`` for gaining
    too little, the ``permutations`` walked through, marginals ``truncated`` to 0 without
    evaluation, and ``evaluations``.
    """

    gain: float
    skipped: bool
    permutations: int
    truncated: int
    evaluations: int


@dataclass(frozen=True)
class GTGValuation(Valuation):
    """Values summed over the rounds, and what each round cost."""

    rounds: tuple[GTGRound, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As :meth:`Valuation.to_json`, with the rounds."""
        return {**super().to_json(), "rounds": [asdict(found) for found in self.rounds]}


def guided_orders(players: Sequence[str], rng: np.random.Generator) -> list[tuple[str, ...]]:
    """One permutation for each player, who comes first in it; the others follow in random order.

    >>> [order[0] for order in guided_orders("ABC", np.random.default_rng(0))]
    ['A', 'B', 'C']
    """
    others = [[other for other in players if other != first] for first in players]
    return [
        (first, *(rest[i] for i in rng.permutation(len(rest))))
        for first, rest in zip(players, others)
    ]


def gtg_shapley(
    rounds: Sequence[Game],
    between: float = 0.001,
    within: float = 0.001,
    seed: int = 0,
    orders: Orders = guided_orders,
) -> GTGValuation:
    """Guided truncation gradient Shapley (Liu et al., ACM TIST 2022), no training beyond the
    federation's own.

    A round's game has as utility of a coalition the score of the model made of its members'
    updates, and of nobody that of the model before the round. A round that gains at most
    ``between`` is worth nothing to anybody. Else permutations are walked through, one pass of
    ``orders`` at a time; within ``within`` of the score of all, the rest gets nothing. It ends
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

    >>> found = gtg_shapley([Game("AB", lambda coalition: 0.4 * len(coalition)), Game("AB", lambda coalition: 0.8)])
    >>> [value.value for value in found.values.values()], [spent.skipped for spent in found.rounds]
    ([0.4, 0.4], [False, True])
    """
    rng = np.random.default_rng(seed)
    played = [_round(game, between, within, rng, orders) for game in rounds]
    found = sum_over_rounds([valuation for valuation, _ in played])
    return GTGValuation(
        "gtg",
        found.values,
        found.evaluations,
        found.rank_stability,
        found.total,
        tuple(spent for _, spent in played),
    )


def _round(
    game: Game, between: float, within: float, rng: np.random.Generator, orders: Orders
) -> tuple[Valuation, GTGRound]:
    before = game.evaluations
    gain = game(game.players) - game(())
    values = {player: Estimate(0.0, 0.0, 0) for player in game.players}
    truncated, skipped = 0, abs(gain) <= between
    walks, passes = Running(), Running()
    means: deque[NDArray[np.float64]] = deque(maxlen=LAST)
    while not (skipped or _enough(walks.count, means, len(game.players))):
        walked = [walk(game, order, within) for order in orders(game.players, rng)]
        for row, count in walked:
            walks.add(row)
            means.append(walks.mean)
            truncated += count
        # within a pass first places are dealt out, not drawn: only whole passes are alike
        passes.add(np.mean([row for row, _ in walked], axis=0))
        values = passes.estimates(game.players)
    evaluations = game.evaluations - before
    valuation = Valuation("gtg", values, evaluations, rank_stability(values), gain)
    return valuation, GTGRound(gain, skipped, walks.count, truncated, evaluations)


def _enough(count: int, means: Sequence[NDArray[np.float64]], players: int) -> bool:
    if count >= CAP * 2**players:
        return True
    if count <= max(LEAST, players):
        return False
    changes = np.abs(np.array(means) - means[-1]) / (np.abs(means[-1]) + 1e-12)
    return bool(changes.mean(axis=1).max() < CHANGE)
