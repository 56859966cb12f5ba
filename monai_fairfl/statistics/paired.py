# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Compares strategies that were trained with the same seeds and tested on the same cases.

A score is of one strategy, seed, fold, site and case. Two strategies are compared case by case:
what makes a case easy or a seed lucky is the same for both, and cancels. Every site counts alike,
however many cases it has.

Two questions have two answers. *Would other seeds and other cases of these sites show the same?*
The bootstrap interval, which draws seeds and cases. *Could chance among these cases alone show it?*
Wilcoxon's test, whose p-value holds for these trainings: it does not cover another seed.

Pitfalls: with two or three seeds the interval is too narrow (its part from n seeds has (n - 1)/n of
their variance). Folds of one cross-validation share training cases, so cases are less independent
than either method takes them for.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.fairness import Interval

LEVEL = 0.95
RESAMPLES = 9999
"""Confidence level of the intervals of a comparison, and their number of bootstrap samples."""

DECIMALS = 12
"""To which differences are rounded before they are ranked, so that equal ones are ties."""


class CaseScore(NamedTuple):
    """The score of one case, as the strategy's model of one seed and fold reached it.

    ``fold`` is ``None`` without a cross-validation.

    >>> CaseScore("FedCE", seed=0, fold=None, site="elm", case="P7", value=0.81).value
    0.81
    """

    strategy: str
    seed: int
    fold: int | None
    site: str
    case: str
    value: float


@dataclass(frozen=True)
class Standing:
    """What one strategy reached, in the unit of the scores.

    Args:
        strategy: its name.
        by_seed: seed -> mean over the sites of each site's mean over its cases.
        by_site: site -> mean over the seeds of its mean over its cases.
        mean: over the seeds.
        std: over the seeds, n - 1 in the denominator; NaN for one seed.
        mean_rank: mean over seeds and sites of its rank among the strategies, 1 is the best; equal
            scores share the mean of their ranks.
    """

    strategy: str
    by_seed: dict[int, float]
    by_site: dict[str, float]
    mean: float
    std: float
    mean_rank: float


@dataclass(frozen=True)
class PairedDifference:
    """How far one strategy is from another on the same seeds and cases.

    Args:
        strategy: whose score counts positive.
        reference: whose score is subtracted.
        difference: mean of sites and seeds, with its interval; NaN ends for one seed.
        p_value: of Wilcoxon's signed-rank test over cases, two-sided, as ``scipy.stats.wilcoxon``
            chooses: exact for up to 50 cases without ties. 1 where no case differs.
        p_holm: the same after Holm's correction over all pairs.
    """

    strategy: str
    reference: str
    difference: Interval
    p_value: float
    p_holm: float


@dataclass(frozen=True)
class PairedComparison:
    """What :func:`compare_paired` found.

    Args:
        strategies: in the order asked for.
        pairs: every strategy against each that stands before it.
        seeds: of the repeats.
        cases: site -> number of its cases that count.
        left_out: what does not count and why, a sentence each.
    """

    strategies: list[Standing]
    pairs: list[PairedDifference]
    seeds: list[int]
    cases: dict[str, int]
    left_out: list[str]


SiteScores: TypeAlias = dict[str, NDArray[np.float64]]
"""Site -> scores, shape (seeds, cases of the site)."""


def compare_paired(scores: Iterable[CaseScore], strategies: Sequence[str]) -> PairedComparison:
    """Compare strategies over seeds, folds and cases that all of them share.

    Only cases count that every strategy tested with every seed. What does not count is named in
    ``left_out``: a strategy that lacks a whole seed, and single cases, for all strategies.

    Args:
        scores: one for each case, seed and strategy, in any order and unit. The highest is the
            best, as of Dice.
        strategies: those to compare, in the order of the result.

    Returns:
        Means, standard deviations, ranks, and all pairs with intervals (at :data:`LEVEL`) and
        p-values.

    Raises:
        ConfigError: when a score is not finite or given twice, strategies were tested in
            different folds, or no case is common to two strategies.

    >>> import itertools
    >>> scores = []
    >>> for seed, case in itertools.product((0, 1, 2), ("a", "b", "c", "d")):
    ...     score = 0.6 + 0.01 * seed + 0.1 * "abcd".index(case)
    ...     scores.append(CaseScore("FedAvg", seed, 0, "elm", case, score))
    ...     scores.append(CaseScore("FedCE", seed, 0, "elm", case, score + 0.02 + 0.001 * seed))
    >>> found = compare_paired(scores, ["FedAvg", "FedCE"])
    >>> [(each.strategy, round(each.mean, 3), round(each.std, 3)) for each in found.strategies]
    [('FedAvg', 0.76, 0.01), ('FedCE', 0.781, 0.011)]
    >>> pair = found.pairs[0]
    >>> pair.strategy, pair.reference, [round(end, 3) for end in pair.difference], pair.p_value
    ('FedCE', 'FedAvg', [0.021, 0.02, 0.022], 0.125)
    """
    # (Strategy, seed) -> (site, case) -> (fold in which it was tested, score).
    runs: dict[tuple[str, int], dict[tuple[str, str], tuple[int | None, float]]] = {}
    for score in scores:
        of_run = runs.setdefault((score.strategy, score.seed), {})
        place = (score.site, score.case)
        if place in of_run or not np.isfinite(score.value):
            raise ConfigError(f"{score}: give one finite score for each strategy, seed and case")
        of_run[place] = (score.fold, float(score.value))

    # Strategies count that have scores of every seed.
    seeds = sorted({seed for name, seed in runs if name in strategies})
    names = [name for name in strategies if all((name, seed) in runs for seed in seeds)]
    left_out = [f"{name} lacks a seed of {seeds}" for name in strategies if name not in names]
    tested = {(name, seed): runs[name, seed] for name in names for seed in seeds}

    # Cases count that every strategy tested with every seed.
    everywhere: set[tuple[str, str]] = set().union(*tested.values())
    common = sorted(everywhere.intersection(*tested.values()))
    for (name, seed), of_run in tested.items():
        if missing := sorted(everywhere - of_run.keys()):
            places = ", ".join("/".join(place) for place in missing)
            left_out.append(f"{name} with seed {seed} has no score of {places}: left out for all")
    if len(names) < 2 or not common:
        raise ConfigError(f"give two strategies with equal seeds and cases: {'; '.join(left_out)}")

    # Models that tested a case in different folds were trained on different cases.
    for seed, place in itertools.product(seeds, common):
        folds = {name: tested[name, seed][place][0] for name in names}
        if len(set(folds.values())) > 1:
            raise ConfigError(f"{place}, seed {seed}: give all the same folds, not {folds}")

    by_site: dict[str, SiteScores] = {}
    for name in names:
        columns: dict[str, list[list[float]]] = {}
        for place in common:
            of_seeds = [tested[name, seed][place][1] for seed in seeds]
            columns.setdefault(place[0], []).append(of_seeds)
        by_site[name] = {site: np.array(found).T for site, found in columns.items()}

    cases = dict(Counter(site for site, _ in common))
    return PairedComparison(_standings(by_site, seeds), _pairs(by_site), seeds, cases, left_out)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values of several tests so that all of them together err rarely.

    Of m p-values in ascending order the k-th becomes the largest of ``(m - j + 1) p_j`` over
    ``j <= k``, at most 1 (Holm, A simple sequentially rejective multiple test procedure,
    Scandinavian Journal of Statistics 6, 1979).

    Args:
        p_values: of all tests of the family, in any order, fractions in [0, 1].

    Returns:
        The corrected ones in the same order.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    found = np.array(p_values, dtype=np.float64)
    ascending = np.argsort(found, kind="stable")
    tests_left = np.arange(len(found), 0, -1)
    corrected = np.empty_like(found)
    corrected[ascending] = np.maximum.accumulate(tests_left * found[ascending])
    return np.minimum(corrected, 1).tolist()


def _standings(by_site: Mapping[str, SiteScores], seeds: Sequence[int]) -> list[Standing]:
    """What each strategy reached by itself."""
    # Mean over the cases of each site: shape (strategies, sites, seeds).
    site_means = []
    for scores in by_site.values():
        site_means.append([array.mean(axis=1) for array in scores.values()])
    means = np.array(site_means)
    # Ranks of the strategies within every site and seed; 1 is the highest.
    ranks = stats.rankdata(-np.round(means, DECIMALS), axis=0)

    standings = []
    for index, (name, scores) in enumerate(by_site.items()):
        repeats = means[index].mean(axis=0)
        by_seed = dict(zip(seeds, repeats.tolist()))
        of_sites = dict(zip(scores, means[index].mean(axis=1).tolist()))
        std = float(repeats.std(ddof=1)) if len(seeds) > 1 else float("nan")
        rank = float(ranks[index].mean())
        standings.append(Standing(name, by_seed, of_sites, float(repeats.mean()), std, rank))
    return standings


def _pairs(by_site: Mapping[str, SiteScores]) -> list[PairedDifference]:
    """Every strategy against each that stands before it, with the test of all of them together."""
    pairs = []
    for reference, strategy in itertools.combinations(by_site, 2):
        ours, theirs = by_site[strategy], by_site[reference]
        differences = {site: ours[site] - theirs[site] for site in ours}
        # Each case once: its difference is averaged over the seeds. Those which only float
        # arithmetic distinguishes share a rank; zeros are dropped.
        of_cases = np.concatenate([array.mean(axis=0) for array in differences.values()])
        rounded = np.round(of_cases, DECIMALS)
        changed = rounded[rounded != 0]
        p_value = float(stats.wilcoxon(changed).pvalue) if len(changed) else 1.0
        interval = bootstrap_seeds_and_cases(differences)
        pairs.append(PairedDifference(strategy, reference, interval, p_value, p_holm=p_value))
    corrected = holm([pair.p_value for pair in pairs])
    return [replace(pair, p_holm=p_holm) for pair, p_holm in zip(pairs, corrected)]


def bootstrap_seeds_and_cases(values: SiteScores) -> Interval:
    """Percentile bootstrap interval of a mean over sites, over new seeds and new cases.

    Seeds are drawn with replacement, then cases within each site. All drawn seeds share the drawn
    cases: every seed tests the same cases, so a hard case is hard with each of them, and drawing
    cases for each seed apart would make the interval too narrow (Owen, The pigeonhole bootstrap,
    Annals of Applied Statistics 1, 2007).

    Args:
        values: site -> finite numbers, such as differences, of shape (seeds, cases of the site).
            The order of the sites does not matter.

    Returns:
        The mean over sites of each site's mean, and its interval in the same unit. The ends are NaN
        for one seed, as one seed does not show what another would change.

    >>> import numpy as np
    >>> differences = {"elm": np.array([[0.01, 0.03], [0.02, 0.04]])}
    >>> [round(end, 3) for end in bootstrap_seeds_and_cases(differences)]
    [0.025, 0.01, 0.04]
    """
    sites = sorted(values)
    estimate = float(np.mean([values[site].mean() for site in sites]))
    number_of_seeds = len(values[sites[0]])
    if number_of_seeds == 1:
        return Interval(estimate, float("nan"), float("nan"))

    rng = np.random.default_rng(0)
    # How often each seed was drawn, as a share: shape (resamples, seeds).
    seed_shares = _drawn_shares(rng, number_of_seeds)
    resampled = np.zeros(RESAMPLES)
    for site in sites:
        # The same of the site's cases: shape (resamples, cases).
        case_shares = _drawn_shares(rng, values[site].shape[1])
        means_of_cases = seed_shares @ values[site]
        resampled += np.sum(means_of_cases * case_shares, axis=1)
    resampled /= len(sites)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(estimate, float(low), float(high))


def _drawn_shares(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Share of each of n items in samples of n that are drawn with replacement."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
