# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from monai_fairfl.errors import ConfigError, FairFLError
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.valuation import (
    Game,
    MaxEvaluations,
    MaxSamples,
    SamplingProgress,
    StandardError,
    StoppingRule,
    permutation_shapley,
    stratified_shapley,
)


class Fixed(StoppingRule):
    def __init__(self, answer: bool):
        self.answer = answer

    def __call__(self, progress: SamplingProgress) -> bool:
        return self.answer


def progress(
    *values: tuple[float, float | None], samples: int = 100, evaluations: int = 0, unseen: int = 1
) -> SamplingProgress:
    estimates = {
        str(i): Estimate(value, error, samples)
        for i, (value, error) in enumerate(values or [(0.1, 0.1)])
    }
    return SamplingProgress(estimates, samples, evaluations, unseen)


@pytest.mark.parametrize(("a", "b"), list(product([False, True], repeat=2)))
def test_either_of_two_rules_stops(a: bool, b: bool) -> None:
    assert (Fixed(a) | Fixed(b))(progress()) == (a or b)


@pytest.mark.parametrize("given", [200, "200", MaxSamples])
def test_what_is_no_rule_is_refused_before_a_coalition_is_evaluated(given: Any) -> None:
    game = Game("ab", lambda coalition: float(len(coalition)))
    refused = pytest.raises(
        ConfigError, match="a stopping rule must be one such as MaxSamples.*got"
    )
    for method in (permutation_shapley, stratified_shapley):
        with refused:
            method(game, given)
    with refused:
        StandardError(0.001) | given
    assert game.evaluations == 0


def test_max_samples() -> None:
    assert [MaxSamples(3)(progress(samples=n)) for n in (2, 3, 4)] == [False, True, True]


def test_max_evaluations_counts_samples_once_there_is_nothing_left_to_evaluate() -> None:
    rule = MaxEvaluations(10)
    assert rule(progress(evaluations=10))
    assert not rule(progress(evaluations=9, samples=50))
    assert not rule(progress(evaluations=8, samples=9, unseen=0))
    assert rule(progress(evaluations=8, samples=10, unseen=0))


def test_standard_error_waits_for_every_player_and_for_enough_samples() -> None:
    rule = StandardError(0.02)
    assert rule(progress((0.1, 0.02), (0.3, 0.01)))
    assert not rule(progress((0.1, 0.021), (0.3, 0.01)))
    assert not rule(progress((0.1, None)))
    assert not rule(progress((0.1, 0.0), samples=29))


def test_a_budget_of_evaluations_ends_a_valuation_of_few_players_too() -> None:
    found = permutation_shapley(Game("ab", lambda s: float(len(s) > 1)), MaxEvaluations(50))
    assert found.evaluations == 4 and found.values["a"].n == 50


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxSamples(0),
        lambda: MaxEvaluations(0),
        lambda: StandardError(0.0),
    ],
)
def test_a_rule_that_could_never_make_sense_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FairFLError, match="must be"):
        make()
