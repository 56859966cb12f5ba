# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Shapley values: exact, sampled, truncated, by leaving one out; sums over rounds; when to stop."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from helpers.driving import GOLDEN, agree

from monai_fairfl import Estimate
from monai_fairfl.valuation import (
    Game,
    Valuation,
    exact_shapley,
    gtg_shapley,
    leave_one_out,
    permutation_shapley,
    shapley_values,
    sum_over_rounds,
)

WORKED = GOLDEN["shapley"]


def worked() -> Game:
    """The three-player game of the worked example, none of it evaluated yet."""
    return Game("123", lambda coalition: WORKED["v"]["".join(sorted(coalition)) or "empty"])


def random_game(seed: int = 0) -> Game:
    """A game of eight players with utilities in [0, 1]; larger coalitions tend to be better."""
    names = [f"site{i}" for i in range(8)]
    noise = np.random.default_rng(seed).random(2**8)

    def utility(coalition: frozenset[str]) -> float:
        number = sum(1 << names.index(name) for name in coalition)
        return len(coalition) / 16 + float(noise[number]) / 2

    return Game(names, utility)


def numbers(found: Valuation) -> np.ndarray:
    return np.array([float(value) for value in found.values.values()])


def errors(found: Valuation) -> np.ndarray:
    return np.array([value.stderr for value in found.values.values()], dtype=float)


# ---- exact values


def by_permutations(table: np.ndarray) -> np.ndarray:
    """The definition: the mean marginal contribution over all orders of joining."""
    n = int(np.log2(len(table)))
    gains = []
    for order in permutations(range(n)):
        joined, row = 0, np.zeros(n)
        for player in order:
            row[player] = table[joined | 1 << player] - table[joined]
            joined |= 1 << player
        gains.append(row)
    return np.mean(gains, axis=0)


def test_values_are_those_of_the_definition_and_follow_the_players_names() -> None:
    generator = np.random.default_rng(0)
    for count in (1, 2, 5):
        table = generator.uniform(-1, 1, 2**count)
        values = shapley_values(table)
        agree(values, by_permutations(table), 1e-12)
        names = [f"p{number}" for number in generator.permutation(count)]
        game = Game(names, lambda s: table[sum(1 << names.index(name) for name in s)])  # noqa: B023
        found = exact_shapley(game)
        assert [float(found.values[name]) for name in names] == pytest.approx(values, abs=1e-12)
        assert found.total == pytest.approx(values.sum())
        # Nothing is sampled, so nothing is uncertain.
        assert set(errors(found)) == {0.0} and found.evaluations == 2**count


# ---- leaving one out


def test_drops_and_shares_meet_the_worked_example() -> None:
    found = leave_one_out(worked())
    assert numbers(found) == pytest.approx(WORKED["leave_one_out"])
    assert list(found.shares().values()) == pytest.approx(WORKED["loo_share"])
    assert found.total == pytest.approx(sum(WORKED["leave_one_out"]))


# ---- sampling


def test_samples_are_walks_in_the_order_of_the_seed() -> None:
    found = permutation_shapley(worked(), 9, seed=1)
    generator = np.random.default_rng(1)
    gains = np.zeros((9, 3))
    for row in gains:
        joined: list[str] = []
        for player in generator.permutation(3):
            game = worked()
            row[player] = -game(joined)
            joined.append("123"[player])
            row[player] += game(joined)
    assert numbers(found) == pytest.approx(gains.mean(axis=0))
    assert errors(found) == pytest.approx(gains.std(axis=0, ddof=1) / np.sqrt(9))
    assert found.total == pytest.approx(WORKED["sum"])

    # One sample has an unknown error.
    one = permutation_shapley(worked(), 1)
    assert one.values["1"].n == 1 and one.values["1"].stderr is None

    # A walk skips nobody, even where the utility of all is met early.
    odd = permutation_shapley(Game("abc", lambda s: float(len(s) % 2)), 1)
    assert sorted(numbers(odd)) == [-1, 1, 1]


# ---- when to stop


def test_sampling_stops_by_number_or_error() -> None:
    # An error needs every player and at least thirty samples.
    noisy = permutation_shapley(random_game(0), 5000, 0.02, seed=3)
    count = noisy.values["site0"].n
    assert errors(noisy).max() < 0.02 and count > 30
    assert errors(permutation_shapley(random_game(0), count - 1, 0.02, seed=3)).max() >= 0.02
    large = Game([f"{i:02d}" for i in range(40)], lambda s: float(len(s)))
    assert permutation_shapley(large).values["00"].n == 30


# ---- GTG-Shapley


def test_truncated_walks_over_given_permutations_meet_the_worked_example() -> None:
    orders = lambda players, rng: ["123", "213", "321"]  # noqa: E731
    found = gtg_shapley([worked()], within=0.06, orders=orders)
    assert numbers(found) == pytest.approx(WORKED["gtg_eps0_06_perms_123_213_321"], abs=2e-6)
    assert found.total == pytest.approx(WORKED["sum"])
    # A coalition is left out only where every walk is truncated before it.
    assert found.evaluations < 8

    # A round that gains nothing costs two evaluations and is worth nothing.
    flat = Game("123", lambda s: 0.5 + 0.0005 * (len(s) == 3))
    both = gtg_shapley([worked(), flat], within=0.06, orders=orders)
    assert numbers(both).tolist() == numbers(found).tolist()
    assert both.evaluations == found.evaluations + 2
    assert both.total == pytest.approx(found.total + 0.0005)


def test_rounds_are_summed_also_where_players_differ_and_losses_are_charged() -> None:
    first, second = Game("ab", lambda s: 0.1 * len(s)), Game("bc", lambda s: -0.2 * len(s))
    found = gtg_shapley([first, second])
    assert numbers(found) == pytest.approx([0.1, -0.1, -0.2])
    assert found.total == pytest.approx(-0.2) and found.evaluations == 8


# ---- valuations


def valued(*values: float, stderr: float | None) -> Valuation:
    estimates = {player: Estimate(value, stderr, 4) for player, value in zip("123", values)}
    return Valuation("exact", estimates, 8, sum(values))


def test_errors_of_rounds_add_in_quadrature_and_an_absent_player_counts_zero() -> None:
    found = sum_over_rounds([valued(0.2, stderr=0.03), valued(0.3, 0.1, stderr=0.04)])
    assert found.values["1"] == Estimate(0.5, pytest.approx(0.05), 8)
    assert found.values["2"] == Estimate(0.1, 0.04, 4)
    assert found.total == pytest.approx(0.6)
    unknown = sum_over_rounds([valued(0.2, stderr=0.03), valued(0.3, stderr=None)])
    assert unknown.values["1"].stderr is None
