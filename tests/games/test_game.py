# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from helpers.driving import GOLDEN

from monai_fairfl.errors import FairFLError
from monai_fairfl.valuation import Game, cosine_game, exact_shapley


def test_a_coalition_is_evaluated_once_however_it_is_asked_for() -> None:
    calls: Counter[frozenset[str]] = Counter()

    def utility(coalition: frozenset[str]) -> float:
        calls[coalition] += 1
        return float(len(coalition))

    game = Game(["b", "a", "c"], utility)
    assert game(("a", "b")) == game({"b", "a"}) == game(["b", "a", "b"]) == 2
    assert game.evaluations == 1
    game.table()
    game.table()
    assert game.evaluations == len(calls) == 8 and set(calls.values()) == {1}


def test_bit_i_of_the_tables_index_is_player_i_by_name() -> None:
    worth = {"a": 1.0, "b": 10.0, "c": 100.0}
    game = Game(["c", "a", "b"], lambda coalition: sum(worth[player] for player in coalition))
    assert game.players == ("a", "b", "c")
    assert game.table().tolist() == [0, 1, 10, 11, 100, 101, 110, 111]


def test_a_game_goes_on_from_what_is_known_without_evaluating_it_again(
    worked: Callable[[], Game],
) -> None:
    game = worked()
    game("12")
    game("")
    resumed = Game(game.players, game.utility, game.known)
    assert resumed.known == game.known
    assert exact_shapley(resumed).values == exact_shapley(worked()).values
    # Further evaluations are the new game's own.
    assert resumed.evaluations == 8 - 2 and len(game.known) == 2


def test_an_unknown_player_is_refused_and_named() -> None:
    with pytest.raises(FairFLError, match=r"'elm' is not a player.*\['ash', 'oak'\]"):
        Game(["oak", "ash"], len)(["oak", "elm"])
    with pytest.raises(FairFLError, match="'elm'"):
        Game(["oak"], len, known={frozenset(["elm"]): 0.5})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_utility_that_is_not_finite_is_refused_with_coalition_and_value(value: float) -> None:
    game = Game(["oak", "ash"], lambda coalition: value)
    with pytest.raises(FairFLError, match=rf"coalition \['ash', 'oak'\] is {value}"):
        game(["oak", "ash"])
    with pytest.raises(FairFLError, match=rf"coalition \['oak'\] is {value}"):
        Game(["oak"], len, known={frozenset(["oak"]): value})


@pytest.mark.parametrize("players", [[], ["a", "a"]])
def test_players_must_be_there_and_distinct(players: list[str]) -> None:
    with pytest.raises(FairFLError, match="each named once"):
        Game(players, len)


def test_a_table_of_more_than_twenty_players_is_refused_before_any_evaluation() -> None:
    game = Game([str(i) for i in range(21)], lambda coalition: 1 / 0)
    with pytest.raises(FairFLError, match=r"2\^21.*permutation_shapley"):
        game.table()


def test_cosine_game_meets_the_worked_round() -> None:
    u, p = np.array(GOLDEN["cgsv"]["u"]), GOLDEN["common"]["p"]
    found = exact_shapley(cosine_game(u @ u.T, p, ["1", "2", "3"]))
    expected = GOLDEN["cgsv"]["exact_cosine_shapley"]
    assert [float(value) for value in found.values.values()] == pytest.approx(expected, abs=2e-6)
    assert found.total == pytest.approx(1)
    assert found.evaluations == 8


def test_cosines_of_a_game_are_those_of_the_vectors_and_names_stay_with_their_rows() -> None:
    u = np.random.default_rng(3).normal(size=(4, 6))
    names, r = ["d", "a", "c", "b"], np.array([0.1, 0.4, 0.3, 0.2])
    game = cosine_game(u @ u.T, r, names)
    whole = r @ u
    for coalition in ("a", "bd", "abc", "abcd"):
        part = sum(r[names.index(name)] * u[names.index(name)] for name in coalition)
        expected = part @ whole / np.linalg.norm(part) / np.linalg.norm(whole)
        assert game(coalition) == pytest.approx(expected, abs=1e-12)
    one_by_one = Game(game.players, game.utility)
    np.testing.assert_allclose(game.table(), one_by_one.table(), atol=1e-12)
    assert game("") == 0


def test_updates_without_a_direction_have_cosine_zero() -> None:
    assert cosine_game(np.zeros((2, 2)), [0.5, 0.5], ["a", "b"]).table().tolist() == [0, 0, 0, 0]
    assert cosine_game([[1, -1], [-1, 1]], [0.5, 0.5], ["a", "b"]).table().tolist() == [0, 0, 0, 0]


def test_rounding_errors_give_neither_cosines_above_one_nor_roots_of_negative_numbers() -> None:
    with np.errstate(invalid="raise"):
        opposed = cosine_game([[1, -1 - 1e-12], [-1 - 1e-12, 1]], [0.5, 0.5], ["a", "b"])
        assert opposed.table().tolist() == [0, 0, 0, 0]
    rng = np.random.default_rng(0)
    for _ in range(20):
        parallel = np.outer(rng.random(3), rng.random(4))
        assert cosine_game(parallel @ parallel.T, rng.random(3), "abc").table().max() <= 1


@pytest.mark.parametrize(
    ("gram", "weights", "words"),
    [
        (np.eye(3), [1.0, 1.0], r"\(3, 3\)"),
        (np.eye(2), [1.0], r"\(1,\)"),
        (np.eye(2), [1.0, np.nan], "not finite"),
    ],
)
def test_a_cosine_game_needs_a_row_and_a_weight_per_name(
    gram: np.ndarray, weights: list[float], words: str
) -> None:
    with pytest.raises(FairFLError, match=words):
        cosine_game(gram, weights, ["a", "b"])
