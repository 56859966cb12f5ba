# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Exact Shapley values: ours, the naive way, and shapiq where it is.

All ways of a size alternate in one process::

    python benchmarks/valuation.py [--players 8 10] [--repeats 15]

The table is of a game whose utilities are known, so that only the values' arithmetic is
measured; all ways must find the same values. The naive way follows the formula, coalition by
coalition. shapiq's ``ExactComputer`` is a package that federations use for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from math import comb

import numpy as np
from stopwatch import Times, alternating

from monai_fairfl.games import Coalition, Game, exact_shapley
from monai_fairfl.strategies.coalitions import (
    all_coalitions,
)

Values = Mapping[str, float]


def ours(players: list[str], utility: Callable[[Coalition], float]) -> Values:
    """Return the values by one table of all coalitions."""
    found = exact_shapley(Game(players, utility)).values
    return {player: float(value) for player, value in found.items()}


def naive(players: list[str], utility: Callable[[Coalition], float]) -> Values:
    """Return the values by the formula: every marginal contribution of every player."""
    values = {}
    for player in players:
        others = [other for other in players if other != player]
        values[player] = 0.0
        for size in range(len(players)):
            weight = 1 / (len(players) * comb(len(players) - 1, size))
            for coalition in combinations(others, size):
                without = frozenset(coalition)
                marginal = utility(without | {player}) - utility(without)
                values[player] += weight * marginal
    return values


def by_shapiq(
    players: list[str], utility: Callable[[Coalition], float]
) -> Callable[[], Values] | None:
    """Return a function that computes the values by shapiq; ``None`` where it is not installed."""
    try:
        import shapiq
    except ImportError:
        return None

    def utilities(members: np.ndarray) -> np.ndarray:
        found = []
        for row in np.atleast_2d(members):
            found.append(utility(frozenset(np.array(players)[row.astype(bool)].tolist())))
        return np.array(found)

    def values() -> Values:
        found = shapiq.ExactComputer(n_players=len(players), game=utilities)("SV", order=1)
        return {player: float(found[(i,)]) for i, player in enumerate(players)}

    return values


def print_games(count: int, repeats: int) -> None:
    """Print the ways of a game of so many players."""
    players = [f"site-{number:02d}" for number in range(count)]
    generator = np.random.default_rng(0)
    table = {coalition: float(generator.random()) for coalition in all_coalitions(players)}
    ways: dict[str, Callable[[], Values] | None] = {
        "ours": partial(ours, players, table.__getitem__),
        "naive": partial(naive, players, table.__getitem__),
        "shapiq": by_shapiq(players, table.__getitem__),
    }
    installed = {name: way for name, way in ways.items() if way is not None}
    expected = ours(players, table.__getitem__)
    for way in installed.values():
        for player, value in way().items():
            assert abs(value - expected[player]) < 1e-9
    print_ways(f"values, {count} players", ways, alternating(installed, repeats))


def print_ways(title: str, ways: Mapping[str, object], found: Mapping[str, Times]) -> None:
    """Print a row for each way, and how many times as long as ours it takes."""
    for name in ways:
        if name not in found:
            print(f"| {title} | {name} | not installed: it was not measured | - |")
            continue
        ratio = found[name].cpu / found["ours"].cpu
        print(f"| {title} | {name} | {found[name]} | {ratio:.1f} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--players", type=int, nargs="+", default=[8, 10])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    print("| what | way | CPU ms (wall) | over ours, CPU |")
    print("| --- " * 4 + "|")
    for count in arguments.players:
        print_games(count, arguments.repeats)


if __name__ == "__main__":
    main()
