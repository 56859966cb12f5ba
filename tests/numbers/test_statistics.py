# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How evenly sites are served, intervals, and strategies compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from monai_fairfl.statistics import (
    CaseScore,
    bootstrap_seeds_and_cases,
    compare_paired,
    holm,
    performance,
)

# ---- how well and how evenly sites are served


def test_performance_names_the_worst_site() -> None:
    found = performance({"x": 0.9, "a": 0.6, "m": 0.7, "b": 0.6})
    # Of equally bad ones the first by name.
    assert (found.worst_client, found.worst) == ("a", 0.6)
    assert found.gap == pytest.approx(0.3)
    assert found.std == pytest.approx(stats.tstd([0.9, 0.6, 0.7, 0.6]))
    alone = performance({"only": 0.8})
    assert alone.mean == 0.8 and math.isnan(alone.std) and alone.jain == pytest.approx(1)
    assert performance({"a": 0.0, "b": 0.0, "c": 0.7, "d": 0.0}).jain == pytest.approx(0.25)


# ---- strategies compared on the same seeds and cases


CASES = {"alder": 5, "birch": 3, "cedar": 9}
LIFT = {"FedAvg": 0.0, "FedCE": 0.03, "CGSV": -0.01}


def made_scores(seeds: Sequence[int] = (0, 1, 2)) -> list[CaseScore]:
    """Scores with an effect of strategy, seed and case, tested in three folds."""
    rng = np.random.default_rng(7)
    scores = []
    for site, number in CASES.items():
        for case in range(number):
            hardness = rng.normal(0.7, 0.1)
            for seed in seeds:
                for strategy, lift in LIFT.items():
                    value = hardness + lift + 0.02 * seed + rng.normal(0, 0.02)
                    place = (case % 3, site, f"Case{case:02d}")
                    scores.append(CaseScore(strategy, seed, *place, value))
    return scores


def values_of(scores: Sequence[CaseScore], **chosen: object) -> list[float]:
    """The values of the scores with these fields, in the order of site, case and seed."""
    found = []
    for score in sorted(scores, key=lambda score: (score.site, score.case, score.seed)):
        if all(getattr(score, name) == value for name, value in chosen.items()):
            found.append(score.value)
    return found


def test_mean_and_deviation_are_over_seeds_of_the_mean_of_sites() -> None:
    scores = made_scores()
    found = compare_paired(scores, list(LIFT))
    for standing in found.strategies:
        by_seed = []
        for seed in (0, 1, 2):
            of_seed = {"strategy": standing.strategy, "seed": seed}
            by_seed.append(fmean(fmean(values_of(scores, **of_seed, site=site)) for site in CASES))
        assert list(standing.by_seed.values()) == pytest.approx(by_seed, abs=1e-12)
        assert standing.mean == pytest.approx(fmean(by_seed), abs=1e-12)
        assert standing.std == pytest.approx(stdev(by_seed), abs=1e-12)
        alder = fmean(values_of(scores, strategy=standing.strategy, site="alder"))
        assert standing.by_site["alder"] == pytest.approx(alder, abs=1e-12)
    means = {standing.strategy: standing.mean for standing in found.strategies}
    for pair in found.pairs:
        difference = means[pair.strategy] - means[pair.reference]
        assert pair.difference.estimate == pytest.approx(difference, abs=1e-12)


def test_the_p_value_of_a_pair_is_scipys_over_cases_averaged_over_seeds() -> None:
    scores = made_scores()
    found = compare_paired(scores, list(LIFT))
    of_cases = {}
    for strategy in LIFT:
        chosen = values_of(scores, strategy=strategy)
        of_cases[strategy] = np.array(chosen).reshape(-1, 3).mean(axis=1)
    for pair in found.pairs:
        expected = stats.wilcoxon(of_cases[pair.strategy], of_cases[pair.reference]).pvalue
        assert pair.p_value == pytest.approx(expected, rel=1e-9)
    assert [pair.p_holm for pair in found.pairs] == holm([pair.p_value for pair in found.pairs])
    assert len(found.pairs) == 3 and found.pairs[0].p_value < 0.001


def test_holm_by_hand() -> None:
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, then 0.04 x 1 that may not be below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # The largest is cut at 1.
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_the_interval_is_that_of_a_bootstrap_in_plain_loops() -> None:
    rng = np.random.default_rng(1)
    of_seed = rng.normal(0, 0.05, (4, 1))
    values = {}
    for site, number in CASES.items():
        of_case = rng.normal(0.02, 0.05, number)
        values[site] = of_seed + of_case + rng.normal(0, 0.001, (4, number))
    found = bootstrap_seeds_and_cases(values)
    means = []
    for _ in range(4000):
        seeds = rng.integers(4, size=4)
        drawn = (rng.choice(scores[seeds], scores.shape[1], axis=1) for scores in values.values())
        means.append(fmean(one.mean() for one in drawn))
    low, high = np.quantile(means, [0.025, 0.975])
    # The ends of two bootstraps differ by chance, by some hundredths of the width.
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))


# ---- what is not paired


def test_what_one_run_lacks_is_left_out_for_all_by_name() -> None:
    scores = made_scores()
    lacking = ("CGSV", 1, "alder", "Case02")
    missing = [s for s in scores if (s.strategy, s.seed, s.site, s.case) != lacking]
    found = compare_paired(missing, list(LIFT))
    assert found.cases == {**CASES, "alder": 4}
    [words] = found.left_out
    assert "CGSV" in words and "alder/Case02" in words
    without = [score for score in scores if (score.site, score.case) != ("alder", "Case02")]
    assert repr(found.pairs) == repr(compare_paired(without, list(LIFT)).pairs)

    # A strategy without a seed.
    no_seed = [score for score in scores if (score.strategy, score.seed) != ("CGSV", 2)]
    found = compare_paired(no_seed, list(LIFT))
    assert [each.strategy for each in found.strategies] == ["FedAvg", "FedCE"]


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    found = compare_paired(made_scores(seeds=[5]), list(LIFT))
    assert all(math.isnan(each.std) for each in found.strategies)
    for pair in found.pairs:
        assert math.isnan(pair.difference.low) and math.isnan(pair.difference.high)
        assert 0 < pair.p_value <= pair.p_holm <= 1
