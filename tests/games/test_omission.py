# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.driving import GOLDEN

from monai_fairfl.games import leave_one_out
from monai_fairfl.valuation import Game


def test_drops_and_shares_meet_the_worked_example(worked: Callable[[], Game]) -> None:
    golden, found = GOLDEN["shapley"], leave_one_out(worked())
    assert [value.value for value in found.values.values()] == pytest.approx(
        golden["leave_one_out"]
    )
    assert list(found.shares().values()) == pytest.approx(golden["loo_share"])
    assert found.total == pytest.approx(sum(golden["leave_one_out"]))


def test_only_the_whole_and_what_is_left_without_each_are_evaluated() -> None:
    asked: list[int] = []

    def utility(coalition: frozenset[str]) -> float:
        asked.append(len(coalition))
        return float(len(coalition))

    assert leave_one_out(Game([str(i) for i in range(30)], utility)).evaluations == 31
    assert asked == [30] + [29] * 30


def test_what_is_known_costs_nothing(worked: Callable[[], Game]) -> None:
    game = worked()
    game("123")
    game("12")
    assert leave_one_out(game).evaluations == 2
    assert leave_one_out(game).evaluations == 0


def test_an_absence_that_helps_stays_negative_and_gets_no_share() -> None:
    worth = {"a": 0.3, "b": -0.2, "c": 0.1}
    found = leave_one_out(Game(worth, lambda s: sum(worth[player] for player in s)))
    assert {player: value.value for player, value in found.values.items()} == pytest.approx(worth)
    assert found.shares() == pytest.approx({"a": 0.75, "b": 0.0, "c": 0.25})
