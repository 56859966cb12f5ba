# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from helpers.driving import GOLDEN

from monai_fairfl.errors import FairFLError
from monai_fairfl.games.gtg import guided_orders
from monai_fairfl.valuation import Game, exact_shapley, gtg_shapley


def numbers(found) -> list[float]:  # type: ignore[no-untyped-def]
    return [float(value) for value in found.values.values()]


def saturating(count: int = 8) -> Game:
    """Few players bring nearly all there is, as in training; those after them can be cut off."""
    return Game(
        [f"site{i}" for i in range(count)],
        lambda s: 1 - 0.2 ** sum(1 + int(name[4:]) % 3 for name in s),
    )


def test_truncated_walks_over_given_permutations_meet_the_worked_example(
    worked: Callable[[], Game],
) -> None:
    found = gtg_shapley([worked()], within=0.06, orders=lambda players, rng: ["123", "213", "321"])
    assert numbers(found) == pytest.approx(
        GOLDEN["shapley"]["gtg_eps0_06_perms_123_213_321"], abs=2e-6
    )
    assert found.total == pytest.approx(GOLDEN["shapley"]["sum"])
    (spent,) = found.rounds
    assert (
        spent.permutations == 9 and spent.truncated == 6 and not spent.skipped
    )  # 9: the first pass at 0.8 * 2^3


def test_without_truncation_it_is_the_shapley_value_up_to_its_error(
    random_game: Callable[[int], Game],
) -> None:
    found = gtg_shapley([random_game(0)], within=0.0)
    expected = exact_shapley(random_game(0)).values
    assert all(abs(v.value - expected[p].value) < 4 * v.stderr for p, v in found.values.items())  # type: ignore[operator]
    assert sum(numbers(found)) == pytest.approx(found.total)
    assert found.rounds[0].truncated == 0 and 30 < found.rounds[0].permutations <= 0.8 * 2**8 + 8


def test_truncation_saves_evaluations_and_moves_values_by_little() -> None:
    exact = numbers(exact_shapley(saturating()))
    cut, whole = gtg_shapley([saturating()], within=0.01), gtg_shapley([saturating()], within=0.0)
    assert cut.rounds[0].truncated > 0
    assert cut.evaluations == cut.rounds[0].evaluations < whole.evaluations / 2
    error = [4 * value.stderr + 0.01 for value in cut.values.values()]  # type: ignore[operator]
    assert all(abs(a - b) < e for a, b, e in zip(numbers(cut), exact, error))


def test_a_round_that_gains_nothing_costs_two_evaluations_and_is_worth_nothing(
    worked: Callable[[], Game],
) -> None:
    flat = Game("123", lambda s: 0.5 + 0.0005 * (len(s) == 3))
    found = gtg_shapley(
        [worked(), flat], within=0.06, orders=lambda players, rng: ["123", "213", "321"]
    )
    alone = gtg_shapley([worked()], within=0.06, orders=lambda players, rng: ["123", "213", "321"])
    assert numbers(found) == numbers(alone)
    assert (found.rounds[1].skipped, found.rounds[1].evaluations, found.rounds[1].permutations) == (
        True,
        2,
        0,
    )
    assert found.rounds[1].gain == pytest.approx(0.0005)
    assert gtg_shapley([flat], between=0.0001).rounds[0].skipped is False


def test_a_standard_error_is_the_spread_over_seeds(random_game: Callable[[int], Game]) -> None:
    """Within a pass each player comes first once, so its permutations vary less than drawn ones."""
    values = random_game(0)
    values.table()
    first = Game(
        values.players, lambda s: values(s) + len(s) ** 0.2
    )  # who comes first matters most
    found = [gtg_shapley([first], within=0.0, seed=seed) for seed in range(60)]
    spread = np.std([numbers(valuation) for valuation in found], axis=0, ddof=1)
    claimed = np.sqrt(np.mean([[v.stderr**2 for v in f.values.values()] for f in found], axis=0))  # type: ignore[operator]
    assert np.mean(spread / claimed) == pytest.approx(1, abs=0.2)
    assert found[0].values["site0"].n == found[0].rounds[0].permutations / 8


def test_rounds_are_summed_also_where_players_differ() -> None:
    first, second = Game("ab", lambda s: 0.1 * len(s)), Game("bc", lambda s: 0.2 * len(s))
    found = gtg_shapley([first, second])
    assert {p: float(v) for p, v in found.values.items()} == pytest.approx(
        {"a": 0.1, "b": 0.3, "c": 0.2}
    )
    assert found.total == pytest.approx(0.6) and found.evaluations == 8
    assert found.rank_stability == 1


def test_a_round_that_lost_score_is_charged_to_its_players() -> None:
    found = gtg_shapley([Game("ab", lambda s: 0.9 - 0.1 * len(s))])
    assert numbers(found) == pytest.approx([-0.1, -0.1])


def test_it_ends_soon_where_running_means_agree_and_at_the_cap_where_they_do_not() -> None:
    rng = np.random.default_rng(0)
    steady = gtg_shapley([Game([str(i) for i in range(8)], lambda s: float(len(s)))])
    wild = gtg_shapley([Game([str(i) for i in range(8)], lambda s: rng.normal())])
    assert steady.rounds[0].permutations == 32  # the first pass of eight after thirty
    assert wild.rounds[0].permutations > 64


@pytest.mark.parametrize("seed", [2, 3, 5, 6, 10, 12])  # those that converge
def test_it_ends_after_the_pass_in_which_the_last_ten_running_means_agree(
    seed: int, random_game: Callable[[int], Game]
) -> None:
    walked: list[tuple[str, ...]] = []

    def orders(players: Sequence[str], rng: np.random.Generator) -> list[tuple[str, ...]]:
        walked.extend(found := guided_orders(players, rng))
        return found

    game = random_game(seed)
    gtg_shapley([game], within=0.0, seed=seed, orders=orders)
    rows = [
        [game(order[: order.index(p) + 1]) - game(order[: order.index(p)]) for p in game.players]
        for order in walked
    ]

    def changes(count: int) -> list[float]:
        last = [np.mean(rows[:n], axis=0) for n in range(count - 9, count + 1)]
        return [float(np.mean(np.abs((mean - last[-1]) / last[-1]))) for mean in last]

    passes = range(32, len(walked) + 1, 8)  # the first after more than thirty permutations
    assert [max(changes(count)) < 0.05 for count in passes] == [False] * (len(passes) - 1) + [True]
    assert len(walked) < 0.8 * 2**8


def test_more_than_thirty_players_walk_through_more_permutations_than_there_are_players() -> None:
    found = gtg_shapley([Game([str(i) for i in range(31)], lambda s: float(len(s)))])
    assert found.rounds[0].permutations == 62


@pytest.mark.parametrize(("players", "permutations"), [(1, 2), (2, 4), (3, 9), (4, 16), (5, 30)])
def test_few_players_have_a_cap_of_four_fifths_of_their_coalitions(
    players: int, permutations: int
) -> None:
    found = gtg_shapley([Game([str(i) for i in range(players)], lambda s: float(len(s)))])
    assert found.rounds[0].permutations == permutations


def test_in_each_pass_everybody_comes_first_once_and_the_rest_in_any_order() -> None:
    rng = np.random.default_rng(0)
    orders = [order for _ in range(30) for order in guided_orders("abcd", rng)]
    assert [order[0] for order in orders] == list("abcd") * 30
    assert all(sorted(order) == list("abcd") for order in orders) and len(set(orders)) == 24


def test_the_seed_decides(random_game: Callable[[int], Game]) -> None:
    found = gtg_shapley([random_game(0)], seed=2)
    assert found == gtg_shapley([random_game(0)], seed=2)
    assert found.values != gtg_shapley([random_game(0)], seed=3).values


def test_json_has_the_rounds(worked: Callable[[], Game]) -> None:
    found = gtg_shapley([worked()]).to_json()
    assert json.loads(json.dumps(found)) == found
    assert found["method"] == "gtg" and found["rounds"][0]["gain"] == pytest.approx(0.65)


def test_no_round_is_refused() -> None:
    with pytest.raises(FairFLError, match="no round"):
        gtg_shapley([])
