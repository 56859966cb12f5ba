# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Results of studies: read, pooled over folds and seeds, compared, and put into tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import factorial
from study import RESULTS, Study

from monai_fairfl.statistics.fairness import Interval, performance

Result = Mapping[str, Any]
BySeed = Mapping[Any, Mapping[str, Mapping[str, float]]]
"""Seed of the run -> site -> case -> a score, or a gain in it."""
OverSites = Callable[..., Any]
"""A summary of sites' means along ``axis``, such as ``np.mean`` or ``np.min``."""
SHOWN_NAMES = {"qFedAvg": "loss-weighted"}
"""A strategy's name in the studies -> its name in tables and figures, where that is another one."""
MODELS = {"test": "received", "test_used": "used"}
"""Key of a result -> what the sites test: what they receive, or what they use after a last mile."""
LAST = 10
"""Rounds over whose mean a method's weights are judged: single rounds of some methods are noisy."""
DRAWS = 2000
"""Bootstrap samples of seeds and cases."""
NOTHING = "–"
"""A cell of a table without a value."""
NOT_FOUND = 0.5
"""A case with a lower Dice counts as one in which nothing was found."""


def shown_name(strategy: str) -> str:
    """Return the name of a strategy in tables and figures.

    The studies call ``QFedAvg(variant="released")`` ``qFedAvg``, as FedISM's authors do. It takes
    the plain average with weights by loss, and not q-FedAvg's step: the name that readers
    see shows it.

    >>> shown_name("qFedAvg"), shown_name("FedAvg")
    ('loss-weighted', 'FedAvg')
    """
    return SHOWN_NAMES.get(strategy, strategy)


# --- read


class NotFinished(Exception):
    """A result that a table needs does not exist yet; the text names it."""


class Results(dict[str, list[dict[str, Any]]]):
    """strategy -> results of all seeds and folds, of the strategies that have all of them."""

    def __missing__(self, strategy: str) -> list[dict[str, Any]]:
        raise NotFinished(f"runs of {strategy}")


used: dict[str, None] = {}
"""Studies and measurements that were read, in their order."""


def read(study: str, setting: str = "") -> Results:
    """Read a setting of a study: of each strategy seed by seed, and fold by fold.

    Raises:
        NotFinished: no strategy is complete; also when one is asked for that is not.
    """
    used[study] = None
    found: dict[str, list[dict[str, Any] | None]] = {}
    which = Study.read(study)
    results = which.results()
    for cell in which.cells():
        if cell.setting == setting:
            found.setdefault(cell.strategy, []).append(results.get(cell))
    complete = Results()
    for strategy, of_cells in found.items():
        existing = [result for result in of_cells if result is not None]
        if len(existing) == len(of_cells):
            complete[strategy] = existing
    if not complete:
        raise NotFinished(f"runs of {study} {setting}".rstrip())
    return complete


def joined(*names: str) -> Results:
    """Join studies that differ in their folds only, for the strategies that all of them have."""
    first, *others = (read(name) for name in names)
    results = Results()
    for strategy, folds in first.items():
        if all(strategy in other for other in others):
            results[strategy] = list(folds)
            for other in others:
                results[strategy] += other[strategy]
    return results


def measurement(name: str) -> dict[str, Any]:
    """Read what an experiment measured itself, beside or without studies."""
    used[name] = None
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise NotFinished("the measurement itself")
    return dict(json.loads(path.read_text()))


def cases(
    results: Iterable[Result], column: str = "dice", model: str = "test"
) -> dict[str, dict[str, float]]:
    """Pool the scores of all folds of one seed: site -> case -> score.

    Structures that are not labelled are left out.

    Args:
        results: of a method, one for each fold.
        column: ``"dice"``, or a structure.
        model: ``"test"``: the model that a site would use without a last mile; ``"test_used"``: the
            one that it takes after it; ``"test_global"``: the global one. Where the method has
            no other model, it is the first.

    Raises:
        ValueError: a case was tested in two folds.
    """
    pooled: dict[str, dict[str, float]] = {}
    for result in results:
        tests = result.get(model) or result["test"]
        # The used models are tested with the cases of the received ones.
        of_sites = tests.get("cases") or result["test"]["cases"]
        for site, scores in tests[column].items():
            names = of_sites.get(site) or of_sites["all"]
            of_site = pooled.setdefault(site, {})
            for name, score in zip(names, scores, strict=True):
                if score is None:
                    continue
                if name in of_site:
                    raise ValueError(f"{result['strategy']}: {site} tested {name} twice")
                of_site[name] = score
    return {site: scores for site, scores in sorted(pooled.items()) if scores}


def by_seed(
    results: Iterable[Result], model: str = "test"
) -> dict[Any, dict[str, dict[str, float]]]:
    """Seed -> site -> test case -> Dice; the folds of a seed are pooled."""
    of_seeds: dict[Any, list[Result]] = {}
    for result in results:
        of_seeds.setdefault(result["seed"], []).append(result)
    return {seed: cases(of_seed, model=model) for seed, of_seed in of_seeds.items()}


def not_found(
    results: Iterable[Result], column: str = "dice", model: str = "test"
) -> tuple[int, int]:
    """Count the cases whose Dice is below ``NOT_FOUND``, and all."""
    dice: list[float] = []
    for of_cases in cases(results, column, model).values():
        dice += of_cases.values()
    return sum(value < NOT_FOUND for value in dice), len(dice)


def shares(result: Result, of: str = "contributions") -> dict[str, float]:
    """Compute every site's share of the contributions, which sum to one.

    A share is the mean over the last ten rounds, negative ones 0; a site without any value in these
    has none. A method without contributions has its weights for them; ``of="aggregation"`` takes
    these of any.
    """
    by_site: Mapping[str, Sequence[float | None]] = result[of] or result["aggregation"]
    positive = {}
    for site, values in by_site.items():
        last = [value for value in values[-LAST:] if value is not None]
        if last:
            positive[site] = max(float(np.mean(last)), 0.0)
    total = sum(positive.values())
    if not total:
        return dict.fromkeys(positive, 1 / len(positive))
    return {site: value / total for site, value in positive.items()}


def touched_by_guards(results: Iterable[Result]) -> tuple[int, int]:
    """Count the client-rounds in which a guard touched a client, and all.

    A result has the verdicts under ``guards``. Those of before 23 November 2026 have none; the
    guards of that time only quarantined, and a quarantined client has no weight in the round, and
    no contribution: such client-rounds are counted. The rounds of a result are left out where
    nothing can be counted: with neither weights nor contributions (``Standalone``), and with a
    last mile and no verdicts, as its guards could also clip and share.

    >>> touched_by_guards([{"aggregation": {"A": [0.5, None], "B": [0.5, 1.0]}}])
    (1, 4)
    """
    touched = 0
    client_rounds = 0
    for result in results:
        if "guards" in result:
            client_rounds += result["guards"]["client_rounds"]
            touched += sum(result["guards"]["touched"].values())
        elif "last_mile" not in result:
            series = result["aggregation"] or result["contributions"] or {}
            for values in series.values():
                client_rounds += len(values)
                touched += sum(value is None for value in values)
    return touched, client_rounds


# --- over folds and cases


def site_means(pooled: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Compute the mean over cases of every site.

    >>> site_means({"A": {"c1": 0.25, "c2": 0.75}})
    {'A': 0.5}
    """
    return {site: float(np.mean(list(scores.values()))) for site, scores in pooled.items()}


def interval_of(pooled: Mapping[str, Mapping[str, float]]) -> Interval:
    """Compute the mean over sites, with its percentile bootstrap interval over cases.

    Cases are drawn within each site: the interval speaks of these sites. A site with n cases has
    (n - 1)/n of its variance, and the interval is too narrow where n is small.

    >>> interval_of({"A": {"c1": 0.5, "c2": 0.5}, "B": {"c1": 0.25}})
    Interval(estimate=0.375, low=0.375, high=0.375)
    """
    scores = [np.array(list(pooled[site].values())) for site in sorted(pooled)]
    chosen = _chosen_cases(tuple(map(len, scores)))
    means = [of_site.mean() for of_site in scores]
    resampled = [of_site[cases].mean(axis=1) for of_site, cases in zip(scores, chosen)]
    if max(map(len, pooled.values())) == 1:
        return Interval(float(np.mean(means)), np.nan, np.nan)
    low, high = np.quantile(np.mean(resampled, axis=0), [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return Interval(float(np.mean(means)), float(low), float(high))


@lru_cache(maxsize=8)
def _chosen_cases(numbers: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Bootstrap samples of the cases of sites with so many, 9999 rows each."""
    rng = np.random.default_rng(0)
    return [rng.integers(number, size=(9999, number)) for number in numbers]


def difference(
    one: Iterable[Result], other: Iterable[Result], sites: Sequence[str] | None = None
) -> Interval:
    """Compute the mean over sites of the gain in Dice of ``one`` over ``other``, case by case.

    The interval is by bootstrap over cases.
    """
    return interval_of(_gains(one, other, sites))


def by_fold(
    one: Sequence[Result], other: Sequence[Result], sites: Sequence[str] | None = None
) -> str:
    """Write the same gain in each fold: how far one run differs from the next."""
    gains = []
    for first, second in zip(one, other, strict=True):
        means = site_means(_gains([first], [second], sites))
        gains.append(f"{np.mean(list(means.values())):+.3f}")
    return ", ".join(gains)


def _gains(
    one: Iterable[Result], other: Iterable[Result], sites: Sequence[str] | None
) -> dict[str, dict[str, float]]:
    """Subtract Dice case by case: site -> case -> gain of ``one`` over ``other``."""
    first = cases(one)
    second = cases(other)
    gains: dict[str, dict[str, float]] = {}
    for site in sites or first:
        gains[site] = {}
        for case, score in first[site].items():
            gains[site][case] = score - second[site][case]
    return gains


@cache
def _draws(number: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All draws of as many folds with replacement, a row each, and the number of their orders."""
    draws = np.array(list(combinations_with_replacement(range(number), number)))
    # How often a draw has each fold.
    counts = (draws[:, :, None] == np.arange(number)).sum(axis=1)
    return draws, factorial(number) / factorial(counts).prod(axis=1)


def over_folds(
    values: Sequence[Any], statistic: Callable[[Sequence[Any]], float] | None = None
) -> Interval:
    """Compute a statistic of all folds, or their mean, and its interval over folds.

    The interval is that of percentiles over all draws of as many folds with replacement in which
    the statistic is defined. Each draw counts as often as it has orders. Few folds give a rough
    interval: of three there are ten draws.

    >>> over_folds([1.0, 2.0, 3.0])
    Interval(estimate=2.0, low=1.0, high=3.0)
    """
    draws, orders = _draws(len(values))
    if statistic is None:
        estimate = float(np.mean(values))
        drawn = np.array(values)[draws].mean(axis=1)
    else:
        estimate = statistic(values)
        drawn = np.array([statistic([values[fold] for fold in draw]) for draw in draws])
    ascending = np.argsort(drawn)[: np.isfinite(drawn).sum()]
    if not ascending.size:
        return Interval(estimate, float("nan"), float("nan"))
    shares = np.cumsum(orders[ascending]) / orders[ascending].sum()
    low, high = drawn[ascending[np.searchsorted(shares, [0.025, 0.975])]]
    return Interval(estimate, float(low), float(high))


# --- over seeds and cases


def pooled(values: BySeed) -> dict[str, dict[str, float]]:
    """Put the cases of all seeds together: site -> seed and case -> Dice.

    >>> pooled({0: {"A": {"c1": 0.5}}, 1: {"A": {"c1": 0.75}}})
    {'A': {'0 c1': 0.5, '1 c1': 0.75}}
    """
    found: dict[str, dict[str, float]] = {}
    for seed, of_sites in values.items():
        for site, scores in of_sites.items():
            for case, score in scores.items():
                found.setdefault(site, {})[f"{seed} {case}"] = score
    return found


def only(values: BySeed, site: str) -> BySeed:
    """Leave one site of the values."""
    return {seed: {site: of_seed[site]} for seed, of_seed in values.items()}


def hierarchical_interval(values: BySeed, seed: int = 0) -> Interval:
    """Compute the mean over sites, and its 95 % interval over seeds and cases.

    A site's mean is that of all its values. Each of the 2000 draws takes seeds with replacement,
    and within every site cases with replacement. All seeds that are drawn have the same cases: the
    spread between cases does not shrink because several trainings were tested on each. Three seeds
    give ten different draws of seeds: where seeds differ more than cases, such an interval
    covers the truth in seven of ten trials only, that of eight seeds in nine. One seed
    gives an interval over cases alone.

    Args:
        values: seed of the training -> site -> case -> a score, or a gain in it. A fold may stand
            in the place of a case, where each site has one value of each fold. A case that a seed
            did not test is left out of that seed's draws.
        seed: of the draws.

    Returns:
        The mean and its interval. The ends are NaN where every site has one value only.

    Raises:
        NotFinished: there is no value.
        ValueError: a value is not finite.

    >>> gains = {0: {"A": {"c1": 0.1, "c2": 0.3}}, 1: {"A": {"c1": 0.1, "c2": 0.5}}}
    >>> [round(end, 2) for end in hierarchical_interval(gains)]
    [0.25, 0.1, 0.5]
    """
    drawn = _drawn_site_means(values, seed)
    estimate = float(np.mean(drawn.estimates))
    if drawn.most_values == 1:
        return Interval(estimate, float("nan"), float("nan"))
    # A draw that leaves a site without a value says nothing of the mean over sites.
    means = np.mean(drawn.draws, axis=0)
    low, high = np.nanquantile(means, [0.025, 0.975])
    return Interval(estimate, float(low), float(high))


def hierarchical_difference(
    one: BySeed, other: BySeed, over_sites: OverSites = np.mean, seed: int = 0
) -> Interval:
    """Compute how far a summary over sites of one method is above that of another.

    The interval is that of :func:`hierarchical_interval`: every draw takes the same seeds and the
    same cases of both. A site's mean is that of all its values, so the worst site is the one whose
    mean over all seeds is lowest, in the estimate as in every draw.

    Args:
        one: seed -> site -> case -> score of the first method.
        other: the same seeds, sites and cases with the scores of the other.
        over_sites: summary of the sites' means, such as ``np.mean``, ``np.min`` or ``np.std``.
        seed: of the draws.

    Raises:
        NotFinished: there is no value.
        ValueError: a value is not finite, or the cases are not the same.

    >>> one = {0: {"A": {"c1": 0.5, "c2": 0.7}, "B": {"c3": 0.9}}}
    >>> other = {0: {"A": {"c1": 0.4, "c2": 0.6}, "B": {"c3": 0.3}}}
    >>> [round(end, 2) for end in hierarchical_difference(one, other, np.min)]
    [0.3, 0.2, 0.4]
    """
    if _tested(one) != _tested(other):
        raise ValueError("both methods must have the same seeds, sites and cases")
    first = _drawn_site_means(one, seed)
    second = _drawn_site_means(other, seed)
    estimate = over_sites(first.estimates, axis=0) - over_sites(second.estimates, axis=0)
    if first.most_values == 1:
        return Interval(float(estimate), float("nan"), float("nan"))
    differences = over_sites(first.draws, axis=0) - over_sites(second.draws, axis=0)
    low, high = np.nanquantile(differences, [0.025, 0.975])
    return Interval(float(estimate), float(low), float(high))


class _Drawn(NamedTuple):
    """Means of sites over draws of seeds and cases.

    Args:
        estimates: of each site, of all its values.
        draws: site x draw; NaN where a draw leaves a site without a value.
        most_values: number of values of the site that has most.
    """

    estimates: NDArray[np.float64]
    draws: NDArray[np.float64]
    most_values: int


def _drawn_site_means(values: BySeed, seed: int) -> _Drawn:
    """Draw seeds, and cases within every site; equal seeds, sites and cases give equal draws."""
    rng = np.random.default_rng(seed)
    run_seeds = sorted(values)
    drawn_seeds = rng.integers(len(run_seeds) or 1, size=(DRAWS, len(run_seeds)))
    sites = sorted({site for of_seed in values.values() for site in of_seed})
    site_estimates = []
    site_draws = []
    most_values = 0
    for site in sites:
        table = _seeds_by_cases([values[run_seed].get(site, {}) for run_seed in run_seeds])
        if not table.size:
            continue
        number = table.shape[1]
        drawn_cases = rng.integers(number, size=(DRAWS, number))
        # Draw x seed x case: the value of each drawn case in each drawn seed.
        drawn = table[drawn_seeds[:, :, None], drawn_cases[:, None, :]]
        site_estimates.append(np.nanmean(table))
        site_draws.append(_means_of_known(drawn.reshape(DRAWS, -1)))
        most_values = max(most_values, int(np.isfinite(table).sum()))
    if not site_estimates:
        raise NotFinished("a value of any seed")
    return _Drawn(np.array(site_estimates), np.array(site_draws), most_values)


def _tested(values: BySeed) -> dict[Any, dict[str, set[str]]]:
    """Seed -> site -> names of the cases that have a value."""
    names = {}
    for run_seed, of_seed in values.items():
        names[run_seed] = {site: set(of_site) for site, of_site in of_seed.items()}
    return names


def _seeds_by_cases(of_seeds: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
    """Put a site's values into a table, seeds x cases; NaN where a seed did not test a case."""
    names = sorted({name for of_seed in of_seeds for name in of_seed})
    table = np.full((len(of_seeds), len(names)), np.nan)
    for row, of_seed in enumerate(of_seeds):
        for column, name in enumerate(names):
            if name not in of_seed:
                continue
            if not np.isfinite(of_seed[name]):
                raise ValueError(f"{name}: {of_seed[name]} is not finite")
            table[row, column] = of_seed[name]
    return table


def _means_of_known(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average every row's known values; NaN for a row without any."""
    known = np.isfinite(drawn)
    sums = np.where(known, drawn, 0.0).sum(axis=1)
    counts = known.sum(axis=1)
    means = np.full(len(drawn), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


# --- tables


def words(interval: Interval, digits: int = 3, signed: bool = False) -> str:
    """Write an interval for a cell of a table.

    >>> words(Interval(0.5, 0.25, 0.75)), words(Interval(0.5, 0.25, 0.75), 2, signed=True)
    ('0.500 (0.250 to 0.750)', '+0.50 (+0.25 to +0.75)')
    """
    if np.isnan(interval.estimate):
        return NOTHING
    form = f".{digits}f"
    if signed:
        form = f"+.{digits}f"
    text = format(interval.estimate, form)
    if np.isnan(interval.low):
        return text
    return f"{text} ({format(interval.low, form)} to {format(interval.high, form)})"


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table.

    >>> print(markdown(["site", "Dice"], [["A", "0.5"]]))
    | site | Dice |
    | --- | --- |
    | A | 0.5 |
    """
    lines = []
    for cells in [head, ["---"] * len(head), *rows]:
        texts = [str(cell) for cell in cells]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def summary_cells(pooled_cases: Mapping[str, Mapping[str, float]], interval: Interval) -> list[str]:
    """Write mean with its interval, deviation over sites, and worst site."""
    summary = performance(site_means(pooled_cases))
    worst = f"{summary.worst:.3f} ({summary.worst_client})"
    return [words(interval), f"{summary.std:.3f}", worst]


SUMMARY = ("mean", "std", "worst site")


def dice_table(results: Results, structures: Sequence[str] = (), baseline: str = "FedAvg") -> str:
    """Write every strategy's Dice at every site, its mean, spread and worst site, and its gain.

    Args:
        results: of the strategies, a row each.
        structures: columns of their own for each; by default those of their mean.
        baseline: over which the gain is, case by case.
    """
    columns = structures or ("dice",)
    head = ["strategy"]
    for column in columns:
        for site, scores in cases(next(iter(results.values())), column).items():
            name = f"{site} ({len(scores)})"
            if structures:
                name = f"{column}, {name}"
            head.append(name)
    head += [*SUMMARY, f"gain over {baseline}", "fold by fold"]
    rows = []
    for strategy, found in results.items():
        row = [shown_name(strategy)]
        for column in columns:
            row += [f"{mean:.3f}" for mean in site_means(cases(found, column)).values()]
        row += summary_cells(cases(found), interval_of(cases(found)))
        gain = [NOTHING, NOTHING]
        if strategy != baseline:
            gain = [
                words(difference(found, results[baseline]), signed=True),
                by_fold(found, results[baseline]),
            ]
        rows.append([*row, *gain])
    return markdown(head, rows)


def table_of_seeds(
    values: Mapping[str, BySeed], sites: Sequence[str] = (), baseline: str = "FedAvg"
) -> str:
    """Write a row for every method, with its gains over one of them.

    Args:
        values: method -> seed -> site -> case -> Dice.
        sites: whose gain has a column of its own.
        baseline: one of the methods.
    """
    names = list(pooled(values[baseline]))
    head = ["method", *names, *SUMMARY]
    head += [f"{of} above {baseline}" for of in ("mean", "worst site", *sites)]
    rows = []
    for method, of_method in values.items():
        means = site_means(pooled(of_method))
        row = [shown_name(method), *(f"{means[site]:.3f}" for site in names)]
        row += summary_cells(pooled(of_method), hierarchical_interval(of_method))
        gain = [NOTHING] * (3 + len(sites))
        if method != baseline:
            gain = gain_cells(of_method, values[baseline], sites)
        rows.append([*row, *gain])
    return markdown([*head, "seed by seed"], rows)


def gain_cells(one: BySeed, other: BySeed, sites: Sequence[str] = ()) -> list[str]:
    """Write what a method gains over another: the mean, the worst site, some sites, each seed."""
    cells = [
        words(hierarchical_difference(one, other), signed=True),
        words(hierarchical_difference(one, other, np.min), signed=True),
    ]
    for site in sites:
        gain = hierarchical_difference(only(one, site), only(other, site))
        cells.append(words(gain, signed=True))
    seeds = []
    for seed in one:
        gain = hierarchical_difference({seed: one[seed]}, {seed: other[seed]})
        seeds.append(f"{gain.estimate:+.3f}")
    return [*cells, ", ".join(seeds)]


def received_and_used(
    results: Mapping[str, Sequence[Result]], sites: Sequence[str] = (), baseline: str = "FedAvg"
) -> str:
    """Write the Dice of the models that the sites receive, and of those that they use."""
    parts = []
    for model, name in MODELS.items():
        values = {method: by_seed(found, model) for method, found in results.items()}
        parts.append(f"The models that the sites have {name}:")
        parts.append(table_of_seeds(values, sites, baseline))
    return "\n\n".join(parts)
