# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalition games: what each player is worth, exact or sampled, with the uncertainty.

A :class:`Game` asks for the utility of a coalition at most once. These functions value its players:

- :func:`exact_shapley`: the Shapley values from all 2^N coalitions;
- :func:`permutation_shapley`: from a number of samples, or until a standard error is reached;
- :func:`gtg_shapley`: of a federation's rounds, with truncation;
- :func:`leave_one_out`: what is lost without each player.

Each returns a :class:`Valuation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, to_json
from monai_fairfl.replies import normalise

Coalition: TypeAlias = frozenset[str]
"""The names of its members."""

Row = NDArray[np.float64]
"""A marginal contribution of every player, shape (N,)."""

MOST_PLAYERS = 20
"""2^20 coalitions are a table of 8 MB, and as many evaluations."""

LEAST_TOTAL = 1e-12
"""Values of a smaller sum are not divided by it."""

SAMPLES = 200
TOLERANCE = 0.001
"""When sampling ends: after so many samples, or at such a standard error of every value."""

LEAST = 30
"""Permutations before convergence is looked for: the standard error of a few is itself too
uncertain, and 0 when they happen to agree."""

LAST = 10
"""Running means that must agree (GTG)."""

CHANGE = 0.05
"""Largest mean relative change among these."""

CAP = 0.8
"""Share of 2^N: more permutations than that are never walked through (GTG)."""


class Game:
    r"""A coalition game: players, and the utility :math:`V(S)` of every subset of them.

    In a federation the players are clients, and the utility is a score of the model that a
    coalition trains. It is evaluated when first asked for, once per coalition.

    Args:
        players: their names; sorted, so that results do not depend on their order.
        utility: coalition -> finite number, in any unit (Dice: a fraction in [0, 1]).

    >>> game = Game(["B", "A"], lambda coalition: len(coalition) ** 2)
    >>> game(["A", "B"]), game({"B", "A"}), game.evaluations
    (4.0, 4.0, 1)
    """

    def __init__(self, players: Iterable[str], utility: Callable[[Coalition], float]):
        self.players = tuple(sorted(set(players)))
        self.utility = utility
        self.evaluations = 0  # calls of the utility
        self.known: dict[Coalition, float] = {}

    def __call__(self, coalition: Iterable[str]) -> float:
        """Utility of ``coalition``.

        Raises:
            ConfigError: naming the coalition whose utility is not finite.
        """
        members = frozenset(coalition)
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

        >>> Game("AB", len).table().tolist()
        [0.0, 1.0, 1.0, 2.0]
        """
        table = np.empty(2 ** len(self.players))
        for index in range(len(table)):
            bits = enumerate(self.players)
            table[index] = self([player for bit, player in bits if index >> bit & 1])
        return table


@dataclass(frozen=True)
class Valuation:
    """Values of the players of a game.

    Args:
        method: how they were found: ``"exact"``, ``"leave_one_out"``, ``"permutation"``, ``"gtg"``.
        values: player -> value in the unit of the utility, signed. The standard error is that of
            *sampling* coalitions: 0 where all were evaluated, ``None`` where it is unknown. What
            another seed of the training would change in the utility itself is not in it.
        evaluations: of the utility, without those known earlier.
        total: what is shared out, V(all) - V(nobody); exact Shapley values add up to it. For
            leave-one-out, which has no such property, the sum of the drops.

    >>> from monai_fairfl.messages import Estimate
    >>> found = Valuation("exact", {"A": Estimate(0.3, 0.0), "B": Estimate(-0.1, 0.0)}, 4, 0.2)
    >>> found.shares()
    {'A': 1.0, 'B': 0.0}
    """

    method: str
    values: Mapping[str, Estimate]
    evaluations: int
    total: float

    def shares(self) -> dict[str, float]:
        """player -> share of the positive values; empty when no value is positive.

        Negative values count as 0, and all shares sum to 1.
        """
        values = {player: float(value) for player, value in self.values.items()}
        if sum(max(value, 0.0) for value in values.values()) <= LEAST_TOTAL:
            return {}
        return dict(zip(values, normalise(list(values.values())).tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """All of it and the shares, as plain JSON."""
        return {**to_json(asdict(self)), "shares": self.shares()}


def sum_over_rounds(rounds: Sequence[Valuation]) -> Valuation:
    r"""One valuation of several rounds of a federation, each of which was a game of its own.

    It is the plain sum :math:`\sum_t \phi_t`.

    Args:
        rounds: in order; a player who sat a round out has no value in it, which counts as 0.

    Returns:
        Values with standard errors added in quadrature: rounds are sampled independently.

    >>> from monai_fairfl.messages import Estimate
    >>> values = {"A": Estimate(0.3, 0.0), "B": Estimate(0.1, 0.0)}
    >>> rounds = [Valuation("exact", values, 4, 0.4)] * 2
    >>> [round(float(value), 3) for value in sum_over_rounds(rounds).values.values()]
    [0.6, 0.2]
    """
    values = {}
    for player in sorted({player for found in rounds for player in found.values}):
        estimates = [found.values[player] for found in rounds if player in found.values]
        errors = [math.nan if one.stderr is None else one.stderr for one in estimates]
        error = math.hypot(*errors)
        values[player] = Estimate(
            math.fsum(one.value for one in estimates),
            None if math.isnan(error) else error,
            sum(one.n for one in estimates),
        )
    evaluations = sum(found.evaluations for found in rounds)
    total = math.fsum(found.total for found in rounds)
    return Valuation(rounds[0].method, values, evaluations, total)


def shapley_values(table: ArrayLike) -> Row:
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

    >>> shapley_values([0.0, 1.0, 2.0, 5.0]).tolist()
    [2.0, 3.0]
    """
    v = np.asarray(table, dtype=np.float64)
    count = v.size.bit_length() - 1

    # Sizes of the coalitions without one player: the bits set in 0 .. 2^(N-1) - 1.
    sizes = [index.bit_count() for index in range(2 ** (count - 1))]

    # The factor of a marginal contribution to a coalition, 1 / (N binom(N - 1, |S|)).
    factor_of_size = [1 / (count * math.comb(count - 1, size)) for size in range(count)]
    factors = np.array(factor_of_size)[sizes]

    values = np.empty(count)
    for player in range(count):
        # Along the second axis without and with the player; the other bits keep their order.
        pairs = v.reshape(-1, 2, 2**player)
        values[player] = factors @ (pairs[:, 1] - pairs[:, 0]).ravel()
    return values


def exact_shapley(game: Game) -> Valuation:
    """Shapley values from all 2^N coalitions.

    Nothing is sampled, so standard errors are 0 and the ranking is stable.

    Args:
        game: of at most 20 players.

    >>> found = exact_shapley(Game("AB", lambda coalition: float(coalition == {"A", "B"})))
    >>> found.values["A"].value, found.evaluations, found.total
    (0.5, 4, 1.0)
    """
    before = game.evaluations
    table = game.table()
    values = {}
    for player, value in zip(game.players, shapley_values(table).tolist()):
        values[player] = Estimate(value, 0.0, len(table) // 2)
    return Valuation("exact", values, game.evaluations - before, float(table[-1] - table[0]))


def leave_one_out(game: Game) -> Valuation:
    r"""The drop in utility without each player, :math:`V(N) - V(N \setminus i)`.

    It is FedCE's ground truth (CVPR 2023) and takes N + 1 evaluations. Two clients with the same
    data both get nothing, as either replaces the other: where that matters use Shapley values. A
    client whose absence helps has a negative drop in ``values``, and 0 in ``shares()``. For several
    structures let the utility be their sum (or mean: the shares are the same). FedCE evaluates
    every coalition's model on *all* clients' test images, also on those of the client left out.

    Args:
        game: of any number of players.

    >>> worth = {"A": 3, "B": 1, "C": -1}
    >>> game = Game(worth, lambda coalition: sum(worth[player] for player in coalition))
    >>> found = leave_one_out(game)
    >>> {player: value.value for player, value in found.values.items()}
    {'A': 3.0, 'B': 1.0, 'C': -1.0}
    >>> found.shares()
    {'A': 0.75, 'B': 0.25, 'C': 0.0}
    """
    before = game.evaluations
    whole = game(game.players)
    values = {}
    for player in game.players:
        others = set(game.players) - {player}
        values[player] = Estimate(whole - game(others), 0.0, 1)
    total = math.fsum(drop.value for drop in values.values())
    return Valuation("leave_one_out", values, game.evaluations - before, total)


def permutation_shapley(
    game: Game,
    samples: int = SAMPLES,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Valuation:
    """Shapley values as mean marginal contributions over random permutations (Castro et al., 2009).

    Players join one by one; each gets what the utility changes when it joins. Every permutation
    shares out all of V(all) - V(nobody), so the estimates sum to it whatever their number.

    Args:
        game: of any number of players.
        samples: the most permutations, at least 1. Each takes at most N + 1 evaluations.
        tolerance: from 30 permutations on, sampling ends when every standard error is below it; in
            the unit of the utility. 0: never.
        seed: of the permutations.

    Returns:
        Values with the standard error of the mean over samples; it is unknown after a single
        sample.

    >>> game = Game("AB", lambda coalition: float(len(coalition) == 2))
    >>> found = permutation_shapley(game, 400, tolerance=0.0)
    >>> found.values["A"].n, abs(found.values["A"].value - 0.5) < 0.1, found.evaluations
    (400, True, 4)
    """
    before = game.evaluations
    rng = np.random.default_rng(seed)
    rows = np.empty((samples, len(game.players)))
    for count in range(1, samples + 1):
        order = [game.players[i] for i in rng.permutation(len(game.players))]
        rows[count - 1] = _walk(game, order)
        if count >= LEAST and _errors(rows[:count]).max() < tolerance:
            break
    values = _estimates(game.players, rows[:count])
    total = game(game.players) - game(())
    return Valuation("permutation", values, game.evaluations - before, total)


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
    orders: Callable[..., Iterable[Sequence[str]]] = guided_orders,
) -> Valuation:
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
        Values with their standard errors over passes. The error of truncation is not in them, and
        ``n`` counts passes.

    >>> first = Game("AB", lambda coalition: 0.4 * len(coalition))
    >>> second = Game("AB", lambda coalition: 0.8)
    >>> found = gtg_shapley([first, second])
    >>> [value.value for value in found.values.values()]
    [0.4, 0.4]
    >>> found.evaluations, found.values["A"].n
    (6, 2)
    """
    rng = np.random.default_rng(seed)
    found = []
    for game in rounds:
        before = game.evaluations
        walks: list[Row] = []
        passes: list[Row] = []

        # Truncation between rounds: one that changes next to nothing is worth nothing to anybody.
        gain = game(game.players) - game(())
        done = abs(gain) <= between

        while not done:
            # Truncation within a permutation: near the score of all, the rest gets nothing.
            rows = [_walk(game, order, within) for order in orders(game.players, rng)]
            walks += rows
            # Within a pass, first places are dealt out and not drawn: only whole passes are alike.
            passes.append(np.mean(rows, axis=0))
            done = _has_converged(walks)

        values = dict.fromkeys(game.players, Estimate(0.0, 0.0, 0))
        if passes:
            values = _estimates(game.players, np.array(passes))
        found.append(Valuation("gtg", values, game.evaluations - before, gain))
    return sum_over_rounds(found)


def _has_converged(walks: Sequence[Row]) -> bool:
    """Whether the running means agree, or the permutations are as many as there may be (GTG)."""
    count, players = np.shape(walks)
    if count >= CAP * 2**players or count <= max(LEAST, players):
        return count >= CAP * 2**players
    means = (np.cumsum(walks, axis=0) / np.arange(1, count + 1)[:, None])[-LAST:]
    changes = np.abs(means - means[-1]) / (np.abs(means[-1]) + 1e-12)
    return bool(changes.mean(axis=1).max() < CHANGE)


def _walk(game: Game, order: Sequence[str], tolerance: float = 0.0) -> Row:
    """Marginal contributions when players join in ``order``.

    A player that joins when the utility is already less than ``tolerance`` from that of all players
    counts as contributing 0, without evaluation.
    """
    whole = game(game.players)
    value = game(())
    row = np.zeros(len(order))
    for position, player in enumerate(order, 1):
        if abs(whole - value) >= tolerance:
            with_player = game(order[:position])
            row[game.players.index(player)] = with_player - value
            value = with_player
    return row


def _estimates(players: Sequence[str], rows: Row) -> dict[str, Estimate]:
    """player -> mean of the rows, of shape (rows, N); its standard error from the second row on."""
    errors = _errors(rows).tolist() if len(rows) > 1 else [None] * len(players)
    found = {}
    for player, mean, error in zip(players, rows.mean(axis=0).tolist(), errors):
        found[player] = Estimate(mean, error, len(rows))
    return found


def _errors(rows: Row) -> Row:
    """The standard errors of the means of some rows, shape (N,)."""
    errors: Row = rows.std(axis=0, ddof=1) / math.sqrt(len(rows))
    return errors
