# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies compared on the same seeds and cases, beside scipy and a bootstrap in plain loops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.paired import (
    CaseScore,
    bootstrap_seeds_and_cases,
    compare_paired,
    holm,
    signed_rank_p,
)

STRATEGIES = ("FedAvg", "FedCE", "CGSV")
CASES = {"alder": 5, "birch": 3, "cedar": 9}
LIFT = {"FedAvg": 0.0, "FedCE": 0.03, "CGSV": -0.01}
FOLDS = 3


def made_scores(
    seeds: Sequence[int] = (0, 1, 2), strategies: Sequence[str] = STRATEGIES
) -> list[CaseScore]:
    """Scores with an effect of strategy, seed and case, tested in three folds."""
    rng = np.random.default_rng(7)
    scores = []
    for site, number in CASES.items():
        for case in range(number):
            hardness = rng.normal(0.7, 0.1)
            for seed in seeds:
                for strategy in strategies:
                    value = hardness + LIFT[strategy] + 0.02 * seed + rng.normal(0, 0.02)
                    scores.append(
                        CaseScore(strategy, seed, case % FOLDS, site, f"Case{case:02d}", value)
                    )
    return scores


def values_of(scores: Sequence[CaseScore], **chosen: object) -> list[float]:
    """The values of the scores with these fields, in the order of site, case and seed."""
    found = []
    for score in sorted(scores, key=lambda score: (score.site, score.case, score.seed)):
        if all(getattr(score, name) == value for name, value in chosen.items()):
            found.append(score.value)
    return found


# --- each strategy by itself


def test_mean_and_deviation_are_over_seeds_of_the_mean_of_sites() -> None:
    scores = made_scores()
    for standing in compare_paired(scores).strategies:
        by_seed = []
        for seed in (0, 1, 2):
            of_sites = []
            for site in CASES:
                chosen = values_of(scores, strategy=standing.strategy, seed=seed, site=site)
                of_sites.append(fmean(chosen))
            by_seed.append(fmean(of_sites))
        assert list(standing.by_seed.values()) == pytest.approx(by_seed, abs=1e-12)
        assert standing.mean == pytest.approx(fmean(by_seed), abs=1e-12)
        assert standing.std == pytest.approx(stdev(by_seed), abs=1e-12)
        alder = fmean(values_of(scores, strategy=standing.strategy, site="alder"))
        assert standing.by_site["alder"] == pytest.approx(alder, abs=1e-12)


def test_sites_count_alike_however_many_cases_they_have() -> None:
    scores = [CaseScore("A", 0, 0, "small", "x", 0.2), CaseScore("B", 0, 0, "small", "x", 0.2)]
    for case in range(9):
        scores.append(CaseScore("A", 0, 0, "large", str(case), 0.8))
        scores.append(CaseScore("B", 0, 0, "large", str(case), 0.9))
    found = compare_paired(scores)
    assert found.strategies[0].mean == pytest.approx(0.5)
    assert found.pairs[0].difference.estimate == pytest.approx(0.05)


def test_mean_ranks_are_those_of_scipy_over_seeds_and_sites() -> None:
    scores = made_scores()
    ranks = []
    for seed in (0, 1, 2):
        for site in CASES:
            means = [
                fmean(values_of(scores, strategy=name, seed=seed, site=site)) for name in STRATEGIES
            ]
            ranks.append(stats.rankdata([-mean for mean in means]))
    found = compare_paired(scores, STRATEGIES)
    assert [each.mean_rank for each in found.strategies] == pytest.approx(np.mean(ranks, axis=0))


def test_equal_scores_share_the_mean_of_their_ranks() -> None:
    scores = [CaseScore(name, 0, 0, "elm", "x", 0.1 + 0.2) for name in "AB"]
    scores.append(CaseScore("C", 0, 0, "elm", "x", 0.3))
    assert [each.mean_rank for each in compare_paired(scores).strategies] == [2.0, 2.0, 2.0]


# --- pairs


def test_the_p_value_of_a_pair_is_scipys_over_cases_averaged_over_seeds() -> None:
    scores = made_scores()
    found = compare_paired(scores, STRATEGIES)
    expected = {}
    for strategy, reference in (("FedCE", "FedAvg"), ("CGSV", "FedAvg"), ("CGSV", "FedCE")):
        first = np.array(values_of(scores, strategy=strategy)).reshape(-1, 3).mean(axis=1)
        second = np.array(values_of(scores, strategy=reference)).reshape(-1, 3).mean(axis=1)
        assert len(first) == sum(CASES.values())
        expected[strategy, reference] = stats.wilcoxon(first, second).pvalue
    p_values = {(pair.strategy, pair.reference): pair.p_value for pair in found.pairs}
    assert p_values == pytest.approx(expected, rel=1e-9)
    assert [pair.p_holm for pair in found.pairs] == holm(list(p_values.values()))
    assert p_values["FedCE", "FedAvg"] < 0.001


def test_differences_that_float_arithmetic_alone_distinguishes_are_ties() -> None:
    differences = [0.2 - 0.3, 0.1, 0.1, 0.4, 0.5, 0.6]
    assert differences[0] != -0.1
    assert signed_rank_p(differences) == stats.wilcoxon([-0.1, 0.1, 0.1, 0.4, 0.5, 0.6]).pvalue


def test_equal_strategies_have_no_difference_and_p_value_1() -> None:
    scores = made_scores(strategies=("FedAvg",))
    scores += [score._replace(strategy="Other") for score in scores]
    pair = compare_paired(scores).pairs[0]
    assert pair.difference == (0.0, 0.0, 0.0)
    assert (pair.p_value, pair.p_holm) == (1.0, 1.0)


def test_holm_by_hand() -> None:
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, then 0.04 x 1 that may not be below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # The largest is cut at 1.
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("given", [[1.5], [-0.1, 0.5], [float("nan")]])
def test_holm_refuses_what_is_no_p_value(given: list[float]) -> None:
    with pytest.raises(ConfigError, match="p_values"):
        holm(given)


# --- the bootstrap


def naive_interval(
    values: dict[str, list[list[float]]], resamples: int, rng: random.Random
) -> tuple[float, float]:
    """Draw seeds, then cases of every site, in plain loops."""
    seeds = len(next(iter(values.values())))
    means = []
    for _ in range(resamples):
        drawn_seeds = rng.choices(range(seeds), k=seeds)
        of_sites = []
        for by_seed in values.values():
            drawn_cases = rng.choices(range(len(by_seed[0])), k=len(by_seed[0]))
            drawn = [by_seed[seed][case] for seed in drawn_seeds for case in drawn_cases]
            of_sites.append(fmean(drawn))
        means.append(fmean(of_sites))
    means.sort()
    return means[round(0.025 * resamples)], means[round(0.975 * resamples)]


@pytest.mark.slow
@pytest.mark.parametrize("varies", ["cases", "seeds", "both"])
def test_the_interval_is_that_of_a_bootstrap_in_plain_loops(varies: str) -> None:
    rng = np.random.default_rng(1)
    of_seed = rng.normal(0, 0.0 if varies == "cases" else 0.05, 4)
    values = {}
    for site, number in CASES.items():
        of_case = rng.normal(0.02, 0.0 if varies == "seeds" else 0.05, number)
        values[site] = of_seed[:, None] + of_case[None, :] + rng.normal(0, 0.001, (4, number))
    found = bootstrap_seeds_and_cases(values)
    plain = {site: array.tolist() for site, array in values.items()}
    low, high = naive_interval(plain, 6000, random.Random(3))
    # The ends of two bootstraps differ by chance, by some hundredths of the width.
    assert found.low == pytest.approx(low, abs=0.05 * (high - low))
    assert found.high == pytest.approx(high, abs=0.05 * (high - low))


def test_the_interval_repeats_by_seed_whatever_the_order_of_sites() -> None:
    rng = np.random.default_rng(0)
    values = {site: rng.normal(size=(3, number)) for site, number in CASES.items()}
    turned = {site: values[site] for site in reversed(values)}
    found = bootstrap_seeds_and_cases(values, seed=4)
    assert found == bootstrap_seeds_and_cases(turned, seed=4)
    assert found != bootstrap_seeds_and_cases(values, seed=5)
    wider = bootstrap_seeds_and_cases(values, level=0.99, seed=4)
    assert wider.low < found.low < found.estimate < found.high < wider.high


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bootstrap_seeds_and_cases({}), "0 sites"),
        (
            lambda: bootstrap_seeds_and_cases({"a": np.ones((2, 1)), "b": np.ones((3, 1))}),
            r"same seeds.*\[2, 3\]",
        ),
        (lambda: bootstrap_seeds_and_cases({"a": np.ones((2, 1))}, level=95), "level"),
    ],
)
def test_what_has_no_interval_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


# --- what is not paired


def test_the_order_of_rows_does_not_matter() -> None:
    scores = made_scores()
    shuffled = list(scores)
    random.Random(2).shuffle(shuffled)
    assert shuffled != scores
    assert repr(compare_paired(shuffled)) == repr(compare_paired(scores))


def test_a_case_that_one_run_lacks_is_left_out_for_all_by_name() -> None:
    scores = made_scores()
    missing = [
        score
        for score in scores
        if (score.strategy, score.seed, score.site, score.case) != ("CGSV", 1, "alder", "Case02")
    ]
    found = compare_paired(missing)
    assert found.cases == {**CASES, "alder": 4}
    assert len(found.left_out) == 1
    assert "CGSV with seed 1 has no score of them: alder/Case02" in found.left_out[0]
    without = [score for score in scores if (score.site, score.case) != ("alder", "Case02")]
    assert repr(found.strategies) == repr(compare_paired(without).strategies)
    assert repr(found.pairs) == repr(compare_paired(without).pairs)


def test_a_site_without_common_cases_is_left_out_by_name() -> None:
    scores = [
        score
        for score in made_scores()
        if (score.strategy, score.seed, score.site) != ("FedCE", 0, "birch")
    ]
    found = compare_paired(scores)
    assert sorted(found.cases) == ["alder", "cedar"]
    assert "site birch is left out: none of its cases is common to all strategies" in found.left_out


def test_a_strategy_without_a_seed_is_left_out_by_name() -> None:
    scores = [score for score in made_scores() if (score.strategy, score.seed) != ("CGSV", 2)]
    found = compare_paired(scores)
    assert [each.strategy for each in found.strategies] == ["FedAvg", "FedCE"]
    assert found.left_out == ["CGSV is left out: it has no score of seed 2"]
    assert found.cases == CASES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda scores: [*scores, scores[0]], "FedAvg, seed 0, site 'alder'.*two scores"),
        (
            lambda scores: [*scores, scores[0]._replace(fold=1)],
            "two scores, of fold 0 and of fold 1",
        ),
        (
            lambda scores: [scores[0]._replace(fold=2), *scores[1:]],
            "CGSV tested it in fold 0, FedAvg in fold 2",
        ),
        (
            lambda scores: [scores[0]._replace(value=math.nan), *scores[1:]],
            "FedAvg, seed 0, site 'alder', case 'Case00': nan",
        ),
        (lambda scores: scores[:1], "two strategies"),
        (lambda scores: [], "at least two"),
        (
            lambda scores: [
                score._replace(case=f"{score.strategy}-{score.case}") for score in scores
            ],
            "nothing can be paired.*CGSV with seed 0 has no score of them: alder/",
        ),
    ],
)
def test_what_cannot_be_paired_is_refused_by_name(
    change: Callable[[list[CaseScore]], list[CaseScore]], words: str
) -> None:
    scores = made_scores()
    with pytest.raises(ConfigError, match=words):
        compare_paired(change(scores))


def test_one_seed_has_no_deviation_and_no_interval_and_says_so() -> None:
    found = compare_paired(made_scores(seeds=[5]))
    assert all(math.isnan(each.std) for each in found.strategies)
    for pair in found.pairs:
        assert math.isnan(pair.difference.low) and math.isnan(pair.difference.high)
        assert 0 < pair.p_value <= pair.p_holm <= 1
    assert len(found.notes) == 1 and found.notes[0].startswith("one seed: there is no standard")
    assert compare_paired(made_scores()).notes == []
