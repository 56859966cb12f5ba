# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Shapley values estimated from sampled coalitions, with standard errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.game import Game
from monai_fairfl.games.stopping import SamplingProgress, StoppingRule, require_rule
from monai_fairfl.games.valuation import Valuation, rank_stability
from monai_fairfl.messages import Estimate

Row = NDArray[np.float64]
"""One sample: a marginal contribution of every player, shape (N,)."""


def permutation_shapley(
    game: Game,
    stop: StoppingRule,
    seed: int = 0,
    permutations: Iterable[Sequence[str]] | None = None,
) -> Valuation:
    """Shapley values as mean marginal contributions over random permutations (Castro et al., 2009).

    Players join one by one; each gets what the utility changes when it joins. Every permutation
    shares out all of V(all) - V(nobody), so the estimates sum to it whatever their number.

    Args:
        game: of any number of players.
        stop: asked after each sample.
        seed: of the permutations.
        permutations: to use instead of random ones; the valuation ends with them at the latest.

    Returns:
        Values with the standard error of the mean over samples; it is unknown after a single
        sample.

    Raises:
        ConfigError: when a permutation does not name each player once, or there is none, or
            ``stop`` is no rule.

    >>> from monai_fairfl.games.stopping import MaxSamples
    >>> game = Game("AB", lambda coalition: float(len(coalition) == 2))
    >>> found = permutation_shapley(game, MaxSamples(400))
    >>> found.values["A"].n, abs(found.values["A"].value - 0.5) < 0.1, found.evaluations
    (400, True, 4)
    """
    if permutations is None:
        orders = _random_permutations(game, seed)
    else:
        orders = (tuple(order) for order in permutations)
    return _mean_of(_rows(game, orders), game, stop, "permutation")


def stratified_shapley(game: Game, stop: StoppingRule, seed: int = 0) -> Valuation:
    """Shapley values by strata, the sizes of coalitions (Maleki et al., 2013).

    A value is the mean over sizes of the mean marginal contribution at that size. A sample has, for
    every player and every size, one random coalition of the others of this size. So it takes up to
    2N times as many evaluations as a permutation, and removes the variance between sizes: worth it
    where the first players bring the most, as in training. The estimates sum to V(all) - V(nobody)
    in the mean only.

    Args:
        game: of any number of players.
        stop: asked after each sample.
        seed: of the coalitions.

    Returns:
        Values with the standard error of the mean over samples; it is unknown after a single
        sample.

    Raises:
        ConfigError: when ``stop`` is no rule.

    >>> from monai_fairfl.games.stopping import MaxSamples
    >>> game = Game("ABC", lambda coalition: len(coalition) ** 0.5)
    >>> found = stratified_shapley(game, MaxSamples(2))
    >>> [round(value.value, 4) for value in found.values.values()]
    [0.5774, 0.5774, 0.5774]
    """
    rows = _strata(game, np.random.default_rng(seed))
    return _mean_of(rows, game, stop, "stratified")


def walk(game: Game, order: Sequence[str], tolerance: float = 0.0) -> tuple[Row, int]:
    """Marginal contributions when players join in ``order``, and how many were truncated.

    A player that joins when the utility is already less than ``tolerance`` from that of all players
    counts as contributing 0, without evaluation.

    >>> game = Game("ABC", lambda coalition: float("B" in coalition))
    >>> row, truncated = walk(game, "BAC", tolerance=0.01)
    >>> row.tolist(), truncated
    ([0.0, 1.0, 0.0], 2)
    """
    if tuple(sorted(order)) != game.players:
        raise ConfigError(
            f"a permutation must name each of {list(game.players)} once, got {list(order)}"
        )
    whole = game(game.players)
    value = game(())
    row = np.zeros(len(order))
    truncated = 0
    for position, player in enumerate(order, 1):
        if abs(whole - value) < tolerance:
            truncated += 1
            continue
        with_player = game(order[:position])
        row[game.players.index(player)] = with_player - value
        value = with_player
    return row, truncated


class Running:
    """Mean and standard error of rows that come one by one (Welford, 1962).

    >>> running = Running()
    >>> for row in ([1.0, 2.0], [3.0, 2.0]):
    ...     running.add(np.array(row))
    >>> running.estimates("AB")["A"]
    Estimate(value=2.0, stderr=1.0, n=2)
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Row = np.zeros(())
        self.squares: Row = np.zeros(())

    def add(self, row: Row) -> None:
        """Take one more row into account."""
        self.count += 1
        change = row - self.mean
        self.mean = self.mean + change / self.count
        self.squares = self.squares + change * (row - self.mean)

    def estimates(self, players: Sequence[str]) -> dict[str, Estimate]:
        """player -> mean, with its standard error from the second row on."""
        n = self.count
        errors: list[float | None] = [None] * len(players)
        if n > 1:
            errors = np.sqrt(self.squares / (n - 1) / n).tolist()
        found = {}
        for player, mean, error in zip(players, self.mean.tolist(), errors):
            found[player] = Estimate(mean, error, n)
        return found


def _mean_of(rows: Iterable[Row], game: Game, stop: StoppingRule, method: str) -> Valuation:
    """The valuation of the mean of ``rows``, as many as ``stop`` asks for."""
    require_rule(stop)
    evaluations_before = game.evaluations
    running = Running()
    for row in rows:
        running.add(row)
        values = running.estimates(game.players)
        progress = SamplingProgress(
            values,
            samples=running.count,
            evaluations=game.evaluations - evaluations_before,
            unseen=2 ** len(game.players) - len(game.known),
        )
        if stop(progress):
            break
    if not running.count:
        raise ConfigError("there is no permutation to walk through; give at least one")
    total = game(game.players) - game(())
    evaluations = game.evaluations - evaluations_before
    return Valuation(method, values, evaluations, rank_stability(values), total)


def _rows(game: Game, orders: Iterable[Sequence[str]]) -> Iterator[Row]:
    for order in orders:
        row, _ = walk(game, order)
        yield row


def _random_permutations(game: Game, seed: int) -> Iterator[tuple[str, ...]]:
    rng = np.random.default_rng(seed)
    while True:
        yield tuple(game.players[i] for i in rng.permutation(len(game.players)))


def _strata(game: Game, rng: np.random.Generator) -> Iterator[Row]:
    """Rows of which each has, for every player and size, one random coalition of the others."""
    while True:
        row = np.zeros(len(game.players))
        for number, player in enumerate(game.players):
            others = [other for other in game.players if other != player]
            for size in range(len(game.players)):
                chosen = rng.permutation(len(others))[:size]
                coalition = {others[position] for position in chosen}
                marginal = game(coalition | {player}) - game(coalition)
                row[number] += marginal / len(game.players)
        yield row
