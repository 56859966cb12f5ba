# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.driving import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monai_fairfl.errors import FairFLError
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.valuation import Valuation, rank_stability, sum_over_rounds


def valued(*values: float, stderr: float | None = 0.0, players: str = "123") -> Valuation:
    estimates = {player: Estimate(value, stderr, 4) for player, value in zip(players, values)}
    return Valuation("exact", estimates, 8, rank_stability(estimates), sum(values))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6))
def test_shares_are_a_distribution_and_negative_values_get_none(values: list[float]) -> None:
    shares = valued(*values, players="abcdef").shares()
    if sum(max(value, 0) for value in values) <= 1e-12:
        assert shares == {}
        return
    assert sum(shares.values()) == pytest.approx(1) and min(shares.values()) >= 0
    assert all(share == 0 for share, value in zip(shares.values(), values) if value <= 0)


def test_nothing_is_shared_out_where_nobody_is_worth_anything() -> None:
    assert valued(-0.1, 0.0, -0.3).shares() == {}


def test_json_holds_everything_and_no_nan() -> None:
    found = json.loads(json.dumps(valued(0.3, -0.1, stderr=None).to_json(), allow_nan=False))
    assert found == {
        "method": "exact",
        "values": {
            "1": {"value": 0.3, "stderr": None, "n": 4},
            "2": {"value": -0.1, "stderr": None, "n": 4},
        },
        "shares": {"1": 1.0, "2": 0.0},
        "evaluations": 8,
        "rank_stability": None,
        "total": pytest.approx(0.2),
    }


def test_sum_over_rounds_meets_the_worked_example() -> None:
    golden = GOLDEN["ci_multi_round"]
    rounds = [valued(*golden["phi_round1"]), valued(*golden["phi_round2"])]
    plain = sum_over_rounds(rounds)
    assert [float(value) for value in plain.values.values()] == pytest.approx(
        golden["plain_sum"], abs=2e-6
    )
    assert list(plain.shares().values()) == pytest.approx(golden["share"], abs=2e-6)
    assert (plain.evaluations, plain.rank_stability) == (16, 1.0)
    assert plain.total == pytest.approx(sum(golden["plain_sum"]))
    decayed = sum_over_rounds(rounds, decay=0.5)
    assert list(decayed.shares().values()) == pytest.approx(
        golden["normalised_then_decay_0_5"], abs=2e-6
    )
    assert decayed.total == pytest.approx(1.5)


def test_errors_of_rounds_add_in_quadrature_and_an_unknown_one_stays_unknown() -> None:
    found = sum_over_rounds([valued(0.2, stderr=0.03), valued(0.3, stderr=0.04)])
    assert found.values["1"] == Estimate(0.5, pytest.approx(0.05), 8)
    unknown = sum_over_rounds([valued(0.2, stderr=0.03), valued(0.3, stderr=None)])
    assert unknown.values["1"].stderr is None


def test_rounds_without_gain_are_left_out_of_a_decayed_sum_and_absent_players_count_zero() -> None:
    rounds = [
        valued(0.1, 0.3, players="ab"),
        valued(0.2, -0.2, players="ab"),
        valued(0.1, players="b"),
    ]
    found = sum_over_rounds(rounds, decay=0.5)
    assert {p: float(v) for p, v in found.values.items()} == pytest.approx(
        {"a": 0.25, "b": 0.75 + 0.25}
    )


def test_errors_of_a_decayed_sum_are_divided_as_its_values_and_lost_rounds_left_out() -> None:
    rounds = [valued(-0.3, 0.1, players="ab"), valued(0.1, 0.3, stderr=0.02, players="ab")]
    found = sum_over_rounds(rounds, decay=0.5)
    assert found.values["a"] == Estimate(pytest.approx(0.125), pytest.approx(0.025), 8)
    assert found.total == pytest.approx(0.5)


def test_rounds_and_decay_are_checked() -> None:
    with pytest.raises(FairFLError, match="no round"):
        sum_over_rounds([])
    with pytest.raises(FairFLError, match="decay"):
        sum_over_rounds([valued(0.1)], decay=1.5)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=6))
def test_rank_stability_is_a_fraction_and_less_uncertainty_never_lowers_it(
    pairs: list[tuple[float, float]],
) -> None:
    values = {str(i): Estimate(value, error) for i, (value, error) in enumerate(pairs)}
    surer = {name: Estimate(e.value, e.stderr / 2) for name, e in values.items()}  # type: ignore[operator]
    low, high = rank_stability(values), rank_stability(surer)
    assert low is not None and high is not None and 0 <= low <= high + 1e-9 <= 1 + 2e-9


def test_rank_stability_is_the_kendall_correlation_with_redrawn_values_at_its_least() -> None:
    """Opposed errors make differences vary most: with two players the bound is met exactly."""
    values, errors = np.array([0.30, 0.22]), np.array([0.05, 0.07])
    draws = values + np.random.default_rng(0).normal(size=(20000, 1)) * errors * [1, -1]
    agree = np.mean(np.sign(draws[:, 0] - draws[:, 1]))
    estimates = {name: Estimate(v, e) for name, v, e in zip("ab", values.tolist(), errors.tolist())}
    assert rank_stability(estimates) == pytest.approx(agree, abs=0.02)


@pytest.mark.slow
def test_rank_stability_is_at_most_the_kendall_correlation_of_independent_errors() -> None:
    rng = np.random.default_rng(1)
    values, errors = rng.random(6), 0.2 * rng.random(6)
    taus = [stats.kendalltau(values, rng.normal(values, errors)).statistic for _ in range(500)]
    found = rank_stability(
        {str(i): Estimate(v, e) for i, (v, e) in enumerate(zip(values.tolist(), errors.tolist()))}
    )
    assert found is not None and np.mean(taus) - 0.2 < found < np.mean(taus)
