# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How well contributions agree with a reference: published numbers, scipy, and intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from monai_fairfl import Estimate
from monai_fairfl.valuation import (
    fidelity,
)

# ---- the measures


def estimates(values: list[float], stderr: float | None = 0.0) -> dict[str, float | Estimate]:
    """Client -> value, with the same standard error for all."""
    return {f"site{i}": Estimate(value, stderr, 10) for i, value in enumerate(values)}


SHARES = [0.35, 0.25, 0.05, 0.15, 0.20]
OTHER = [0.30, 0.32, 0.08, 0.10, 0.20]


def test_measures_are_scipys_and_numpys() -> None:
    found = fidelity(estimates(SHARES), estimates(OTHER), draws=1)
    x, y = np.array(SHARES), np.array(OTHER)
    assert found.pearson.estimate == pytest.approx(100 * stats.pearsonr(x, y).statistic)
    assert found.spearman.estimate == pytest.approx(100 * stats.spearmanr(x, y).statistic)
    assert found.euclidean.estimate == pytest.approx(math.dist(SHARES, OTHER))
    assert found.cosine.estimate == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    # Equal shares are ties whatever the rounding.
    rounded = estimates([0.2 + 1e-12, 0.2, 0.6])
    found = fidelity(rounded, estimates([0.2, 0.2, 0.6]), draws=1)
    assert found.spearman.estimate == pytest.approx(100)


# ---- intervals


def test_the_interval_of_a_distance_is_that_of_the_normal_distribution() -> None:
    """One value's error is all there is, and small: the distance is linear in it."""
    contributions = {"a": Estimate(0.6, 0.01), "b": Estimate(0.4, 0.0)}
    reference = {"a": Estimate(0.3, 0.0), "b": Estimate(0.7, 0.0)}
    for level in (0.5, 0.95):
        found = fidelity(contributions, reference, level, draws=1000).euclidean
        half = stats.norm.ppf((1 + level) / 2) * math.sqrt(2) * 0.4 * 0.01
        assert found.estimate - found.low == pytest.approx(half, rel=0.15)
        assert found.high - found.estimate == pytest.approx(half, rel=0.15)


def test_unknown_errors_and_those_of_two_rounds_leave_the_interval_open() -> None:
    without_errors = {f"site{i}": value for i, value in enumerate(SHARES)}
    for given in (estimates(SHARES, None), without_errors):
        found = fidelity(given, estimates(OTHER))
        assert math.isfinite(found.pearson.estimate) and math.isnan(found.pearson.low)
    for rounds, known in ((2, False), (5, True)):
        own = {f"site{i}": Estimate(value, 0.01, rounds) for i, value in enumerate(SHARES)}
        found = fidelity(own, estimates(OTHER), draws=20)
        assert math.isnan(found.pearson.low) != known


# ---- where a correlation does not exist


def test_two_clients_and_uniform_shares_have_a_distance_but_no_correlation() -> None:
    uniform = [0.2] * 5
    for first, second in (([0.6, 0.4], [0.7, 0.3]), (SHARES, uniform), (uniform, SHARES)):
        found = fidelity(estimates(first, 0.01), estimates(second, 0.01), draws=50)
        for value in (*found.pearson, *found.spearman, found.p_value):
            assert math.isnan(value)
        assert found.euclidean.estimate == pytest.approx(math.dist(first, second))
        assert found.euclidean.low < found.euclidean.high
