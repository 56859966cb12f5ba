# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np
import pytest
from helpers.driving import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monai_fairfl.errors import FairFLError
from monai_fairfl.valuation import Game, exact_shapley, shapley_values

TABLES = st.integers(1, 5).flatmap(
    lambda n: arrays(float, 2**n, elements=st.floats(-1, 1).map(lambda x: round(x, 6)))
)


def players_of(table: np.ndarray) -> int:
    return int(np.log2(len(table)))


def by_permutations(table: np.ndarray) -> np.ndarray:
    """The definition: the mean marginal contribution over all orders of joining."""
    n = players_of(table)
    gains = [np.zeros(n)]
    for order in permutations(range(n)):
        joined, row = 0, np.zeros(n)
        for player in order:
            row[player] = table[joined | 1 << player] - table[joined]
            joined |= 1 << player
        gains.append(row)
    return np.mean(gains[1:], axis=0)


def values_of(game: Game) -> dict[str, float]:
    return {player: float(value) for player, value in exact_shapley(game).values.items()}


def test_exact_values_meet_the_worked_example(worked: Callable[[], Game]) -> None:
    golden, found = GOLDEN["shapley"], exact_shapley(worked())
    values = [value.value for value in found.values.values()]
    assert values == pytest.approx(golden["exact"], abs=2e-6)
    assert found.total == pytest.approx(golden["sum"])
    assert [3 * value for value in values] == pytest.approx(
        golden["contribution_index_C1"], abs=2e-6
    )
    assert list(found.shares().values()) == pytest.approx(golden["ci_weights"], abs=2e-6)


def test_nothing_is_sampled_so_nothing_is_uncertain(worked: Callable[[], Game]) -> None:
    game = worked()
    game("12")
    found = exact_shapley(game)
    assert found.rank_stability == 1 and {value.stderr for value in found.values.values()} == {0.0}
    assert found.evaluations == 7


def test_airport_game(airport: tuple[Game, Mapping[str, float]]) -> None:
    game, expected = airport
    assert values_of(game) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("right", [1, 2, 6])
def test_glove_game_of_one_left_glove_and_several_right_ones(right: int) -> None:
    game = Game(
        ["left", *(f"right{i}" for i in range(right))], lambda s: float("left" in s and len(s) > 1)
    )
    found, n = values_of(game), right + 1
    assert found.pop("left") == pytest.approx((n - 1) / n)
    assert list(found.values()) == pytest.approx([1 / (n * (n - 1))] * right)


@pytest.mark.slow
def test_the_security_councils_votes() -> None:
    """Five vetoes and ten other members, nine votes needed: the published Shapley-Shubik index."""
    veto, others = [f"veto{i}" for i in range(5)], [f"other{i}" for i in range(10)]
    votes = dict.fromkeys(veto, 7) | dict.fromkeys(others, 1)
    found = values_of(Game(votes, lambda s: float(sum(votes[member] for member in s) >= 39)))
    assert [found[member] for member in veto] == pytest.approx([421 / 2145] * 5)
    assert [found[member] for member in others] == pytest.approx([4 / 2145] * 10)


def test_an_additive_game_gives_everybody_its_own() -> None:
    worth = {f"site{i}": (-1) ** i * 0.1 * i for i in range(10)}
    found = values_of(Game(worth, lambda s: 5 + sum(worth[player] for player in s)))
    assert found == pytest.approx(worth, abs=1e-12)


def test_a_single_player_gets_everything() -> None:
    assert shapley_values([0.25, 0.75]).tolist() == [0.5]


@given(TABLES)
def test_the_formula_over_coalitions_is_the_mean_over_permutations(table: np.ndarray) -> None:
    np.testing.assert_allclose(shapley_values(table), by_permutations(table), atol=1e-12)


def test_six_players_as_by_permutations() -> None:
    table = np.random.default_rng(1).random(64)
    np.testing.assert_allclose(shapley_values(table), by_permutations(table), atol=1e-12)


@given(TABLES)
def test_efficiency(table: np.ndarray) -> None:
    assert shapley_values(table).sum() == pytest.approx(table[-1] - table[0], abs=1e-9)


@pytest.mark.slow
@given(TABLES, st.data())
def test_linearity(table: np.ndarray, data: st.DataObject) -> None:
    other = data.draw(arrays(float, len(table), elements=st.floats(-1, 1)))
    a, b = data.draw(st.tuples(st.floats(-3, 3), st.floats(-3, 3)))
    expected = a * shapley_values(table) + b * shapley_values(other)
    np.testing.assert_allclose(shapley_values(a * table + b * other), expected, atol=1e-9)


@given(TABLES, st.data())
def test_a_player_who_changes_nothing_gets_nothing(table: np.ndarray, data: st.DataObject) -> None:
    null = data.draw(st.integers(0, players_of(table) - 1))
    without = np.arange(len(table)) & ~(1 << null)
    assert shapley_values(table[without])[null] == 0


@given(TABLES, st.data())
def test_players_who_can_replace_each_other_get_the_same(
    table: np.ndarray, data: st.DataObject
) -> None:
    i, j = data.draw(st.tuples(*[st.integers(0, players_of(table) - 1)] * 2))
    masks = np.arange(len(table))
    bits = (masks >> i & 1) ^ (masks >> j & 1)
    swapped = masks ^ (bits << i) ^ (bits << j) if i != j else masks
    values = shapley_values(table + table[swapped])
    assert values[i] == pytest.approx(values[j], abs=1e-9)


@given(TABLES, st.randoms(use_true_random=False))
def test_values_follow_the_players_when_they_are_renamed(table: np.ndarray, random) -> None:  # type: ignore[no-untyped-def]
    n = players_of(table)
    names = [f"p{i}" for i in range(n)]
    random.shuffle(names)
    index = {name: i for i, name in enumerate(names)}
    game = Game(names, lambda s: table[sum(1 << index[name] for name in s)])
    expected = shapley_values(table)
    assert values_of(game) == pytest.approx(
        {name: expected[i] for name, i in index.items()}, abs=1e-12
    )


@pytest.mark.parametrize("table", [[], [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0]]])
def test_a_table_that_is_none_is_refused(table: list[float]) -> None:
    with pytest.raises(FairFLError, match="2\\^N"):
        shapley_values(table)
