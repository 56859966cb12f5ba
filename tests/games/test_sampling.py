# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from helpers.driving import GOLDEN

from monai_fairfl.errors import FairFLError
from monai_fairfl.games.sampling import Running, walk
from monai_fairfl.valuation import (
    Game,
    MaxEvaluations,
    MaxSamples,
    StandardError,
    Valuation,
    exact_shapley,
    permutation_shapley,
    stratified_shapley,
)

METHODS: dict[str, Callable[..., Valuation]] = {
    "permutation": permutation_shapley,
    "stratified": stratified_shapley,
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def numbers(found: Valuation) -> np.ndarray:
    return np.array([float(value) for value in found.values.values()])


def errors(found: Valuation) -> np.ndarray:
    return np.array([value.stderr for value in found.values.values()], dtype=float)


def test_given_permutations_meet_the_worked_example(worked: Callable[[], Game]) -> None:
    found = permutation_shapley(worked(), MaxSamples(9), permutations=["123", "321", "213"])
    assert numbers(found) == pytest.approx(GOLDEN["shapley"]["perm_sample_123_321_213"], abs=2e-6)
    assert found.total == pytest.approx(GOLDEN["shapley"]["sum"])
    gains = np.array([[0.4, 0.2, 0.05], [0.25, 0.3, 0.1], [0.3, 0.3, 0.05]])
    assert errors(found) == pytest.approx(gains.std(axis=0, ddof=1) / np.sqrt(3))


@pytest.mark.slow
@each_method
def test_estimates_lie_within_four_standard_errors_of_the_exact_values(
    method: Callable[..., Valuation], random_game: Callable[[int], Game]
) -> None:
    for seed in range(3):
        expected = numbers(exact_shapley(random_game(seed)))
        found = method(random_game(seed), MaxSamples(200), seed)
        assert (np.abs(numbers(found) - expected) < 4 * errors(found)).all()
        assert (errors(found) < 0.02).all() and found.values["site0"].n == 200


def test_airport_game_by_sampling(airport: tuple[Game, Mapping[str, float]]) -> None:
    game, expected = airport
    found = permutation_shapley(game, StandardError(0.1), seed=3)
    for player, value in found.values.items():
        assert value.stderr is not None
        assert abs(value.value - expected[player]) < 4 * value.stderr
    assert errors(found).max() <= 0.1 and found.evaluations <= 32


@pytest.mark.slow
@each_method
def test_a_standard_error_is_the_spread_over_seeds(
    method: Callable[..., Valuation], random_game: Callable[[int], Game]
) -> None:
    whole = random_game(0)
    whole.table()
    found = [
        method(Game(whole.players, whole.utility, whole.known), MaxSamples(10), seed)
        for seed in range(60)
    ]
    spread = np.std([numbers(valuation) for valuation in found], axis=0, ddof=1)
    claimed = np.sqrt(np.mean([errors(valuation) ** 2 for valuation in found], axis=0))
    assert np.mean(spread / claimed) == pytest.approx(1, abs=0.15)


def test_every_permutation_shares_out_everything(random_game: Callable[[int], Game]) -> None:
    found = permutation_shapley(random_game(0), MaxSamples(5))
    game = random_game(0)
    assert (
        numbers(found).sum()
        == pytest.approx(game(game.players) - game(""))
        == pytest.approx(found.total)
    )


def test_strata_remove_the_spread_between_sizes() -> None:
    game = Game([str(i) for i in range(6)], lambda s: 1 - 0.5 ** len(s))
    stratified, plain = (m(game, MaxSamples(4)) for m in (stratified_shapley, permutation_shapley))
    assert numbers(stratified) == pytest.approx([game(game.players) / 6] * 6)
    assert errors(stratified).max() < 1e-12 < errors(plain).min()


@each_method
def test_the_seed_decides_and_the_order_of_the_players_does_not(
    method: Callable[..., Valuation],
) -> None:
    names, worth = ["c", "a", "b"], {"a": 1.0, "b": 4.0, "c": 9.0}

    def game(order: list[str]) -> Game:
        return Game(order, lambda s: sum(worth[player] for player in s) ** 0.5)

    found = method(game(names), MaxSamples(7), seed=5)
    assert found == method(game(names[::-1]), MaxSamples(7), seed=5)
    assert found.values != method(game(names), MaxSamples(7), seed=6).values


@each_method
def test_no_coalition_is_evaluated_twice(method: Callable[..., Valuation]) -> None:
    asked: list[frozenset[str]] = []

    def utility(coalition: frozenset[str]) -> float:
        asked.append(coalition)
        return float(len(coalition)) ** 2

    found = method(Game("abcde", utility), MaxSamples(50))
    assert len(asked) == len(set(asked)) == found.evaluations <= 32


@each_method
def test_evaluations_are_those_of_this_valuation(method: Callable[..., Valuation]) -> None:
    game = Game("abc", lambda s: float(len(s)) ** 2)
    assert method(game, MaxSamples(50)).evaluations == 8
    assert method(game, MaxSamples(50)).evaluations == 0


def test_a_walk_without_tolerance_skips_nobody_even_where_the_utility_of_all_is_met_early() -> None:
    row, skipped = walk(Game("abc", lambda s: float(len(s) % 2)), "abc")
    assert row.tolist() == [1, -1, 1] and skipped == 0


def test_a_budget_of_evaluations_is_kept_but_for_the_last_permutation() -> None:
    game = Game([f"{i:02d}" for i in range(40)], lambda s: float(len(s)))
    found = permutation_shapley(game, MaxEvaluations(100))
    assert 100 <= found.evaluations < 140


def test_one_sample_has_an_unknown_error() -> None:
    found = permutation_shapley(Game("ab", len), MaxSamples(1))
    assert found.values["a"].stderr is None and found.rank_stability is None


@pytest.mark.parametrize("order", ["12", "112", "124", "1233"])
def test_what_is_no_permutation_is_refused(order: str, worked: Callable[[], Game]) -> None:
    with pytest.raises(FairFLError, match="each of"):
        permutation_shapley(worked(), MaxSamples(1), permutations=[order])


def test_no_permutation_at_all_is_refused(worked: Callable[[], Game]) -> None:
    with pytest.raises(FairFLError, match="at least one"):
        permutation_shapley(worked(), MaxSamples(1), permutations=[])


def test_running_mean_is_numpys_even_far_from_zero() -> None:
    rows = 1e6 + np.random.default_rng(0).normal(size=(50, 3))
    running = Running()
    for row in rows:
        running.add(row)
    found = running.estimates("abc")
    assert [e.value for e in found.values()] == pytest.approx(rows.mean(axis=0), rel=1e-12)
    assert [e.stderr for e in found.values()] == pytest.approx(
        rows.std(axis=0, ddof=1) / np.sqrt(50), rel=1e-6
    )
