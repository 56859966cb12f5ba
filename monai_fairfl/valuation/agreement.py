# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Compares cheap contribution estimates with a reference that took many trainings: fidelity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from monai_fairfl.errors import ConfigError
from monai_fairfl.games import Valuation
from monai_fairfl.messages import Estimate
from monai_fairfl.replies import normalise
from monai_fairfl.statistics.fairness import Interval, agreement

LEAST_REPEATS = 5
"""A standard error of fewer rounds or samples gives no interval: it is hardly known itself."""

Contributions: TypeAlias = Valuation | Mapping[str, float | Estimate]


@dataclass(frozen=True)
class Fidelity:
    """Agreement with a reference, each with an interval, on the scale of FedCE's Table 3.

    Args:
        pearson: 100 times the correlation of the shares, -100 to 100; NaN where one side is
            constant, and of two clients, where it is 100 or -100 whatever they are worth.
        spearman: 100 times that of their ranks; NaN as above.
        euclidean: distance of the two vectors of shares (fractions), 0 to 1.42.
        cosine: of the two vectors, 0 to 1.
        p_value: two-sided, of ``pearson``.

    >>> found = fidelity({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 0.6, "B": 0.1, "C": 0.3})
    >>> round(found.spearman.estimate, 1), round(found.euclidean.estimate, 3)
    (50.0, 0.245)
    """

    pearson: Interval
    spearman: Interval
    euclidean: Interval
    cosine: Interval
    p_value: float


def fidelity(
    contributions: Contributions,
    reference: Contributions,
    level: float = 0.95,
    draws: int = 500,
    seed: int = 0,
) -> Fidelity:
    """Compares contributions with a reference such as leave-one-out or exact Shapley values.

    The interval is a parametric bootstrap: values are drawn with their standard errors, made shares
    again, and compared. It answers how far the figure depends on the sampling of coalitions
    (or on the rounds a method averaged over), for *these* clients. Resampling clients instead would
    ask how it depends on which clients there are; with four to eight of them most resamples hold
    duplicates, many have no rank to correlate, and a correlation's interval is nearly -1 to 1
    whatever the method: honest, and of no use to compare methods on one federation. Drawing adds
    noise to values that have noise already: intervals reach further towards disagreement than
    towards agreement.

    Args:
        contributions: a valuation, whose :meth:`Valuation.shares` are compared; or client -> share,
            non-negative, summing to 1 (within 0.02, as published shares are rounded), such as a
            method's aggregation weights.
        reference: the same clients, either way.
        level: confidence level, between 0 and 1.
        draws: number of bootstrap draws.
        seed: of the draws.

    Returns:
        The agreement. Ends of intervals are NaN when a standard error of either side is unknown or
        of fewer than :data:`LEAST_REPEATS` repeats, or the estimate is NaN. When both sides were
        found without sampling, the interval has no width.

    Raises:
        ConfigError: when the clients differ, or plain shares are not shares.

    >>> from monai_fairfl.messages import Estimate
    >>> shares = {"A": 0.5, "B": 0.3, "C": 0.2}
    >>> weights = {client: Estimate(share, 0.02, 10) for client, share in shares.items()}
    >>> exact = {"A": Estimate(0.6, 0.0), "B": Estimate(0.3, 0.0), "C": Estimate(0.1, 0.0)}
    >>> found = fidelity(weights, exact, draws=50)
    >>> found.spearman.estimate, round(found.pearson.estimate, 1)
    (100.0, 99.7)
    >>> found.pearson.low < 99 < found.pearson.high
    True
    """
    sides = (contributions, reference)
    shares = [_shares(given, what) for given, what in zip(sides, ("contributions", "reference"))]
    measures, p_value = _measures(*shares)

    ends = np.full((2, len(measures)), np.nan)
    if all(map(_has_errors, sides)):
        rng = np.random.default_rng(seed)
        rows = []
        for _ in range(draws):
            row, _ = _measures(*[_drawn_shares(given, rng) for given in sides])
            rows.append(row)
        for column, values in enumerate(np.array(rows).T):
            # A draw with nothing positive has uniform shares, and no correlation. What is undefined
            # has no interval.
            values = values[np.isfinite(values)]
            if len(values) and not np.isnan(measures[column]):
                ends[:, column] = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])

    intervals = [Interval(*map(float, row)) for row in zip(measures, *ends, strict=True)]
    pearson, spearman, euclidean, cosine = intervals
    return Fidelity(pearson, spearman, euclidean, cosine, p_value)


def _shares(given: Contributions, what: str) -> dict[str, float]:
    """client -> share, none of which is negative."""
    if isinstance(given, Valuation):
        return given.shares()
    shares = {client: float(value) for client, value in given.items()}
    for client, share in shares.items():
        if share < 0:
            raise ConfigError(
                f"{what}: {client!r} has {share}, not a share; clip at 0 and divide by the sum"
            )
    return shares


def _measures(
    shares: Mapping[str, float], reference: Mapping[str, float]
) -> tuple[NDArray[np.float64], float]:
    """Pearson, Spearman, Euclidean distance and cosine; and Pearson's p-value."""
    found = agreement(shares, reference)
    spearman = math.nan
    if not math.isnan(found.pearson):
        names = sorted(shares)
        # Differences by rounding are no order.
        rounded_shares = np.round([shares[name] for name in names], 9)
        rounded_reference = np.round([reference[name] for name in names], 9)
        spearman = 100 * stats.spearmanr(rounded_shares, rounded_reference).statistic
    return np.array([found.pearson, spearman, found.euclidean, found.cosine]), found.p_value


def _estimates(given: Contributions) -> Mapping[str, float | Estimate]:
    return given.values if isinstance(given, Valuation) else given


def _has_errors(given: Contributions) -> bool:
    """Whether every value has a standard error, and of enough repeats to be known."""
    for value in _estimates(given).values():
        if not isinstance(value, Estimate) or value.stderr is None:
            return False
        # One repeat has no error: how many this one is of is not recorded.
        if value.stderr > 0 and 2 <= value.n < LEAST_REPEATS:
            return False
    return True


def _drawn_shares(given: Contributions, rng: np.random.Generator) -> dict[str, float]:
    """Shares of values that are drawn with their standard errors.

    Clients are drawn in the order of their names, so that the order given does not matter.
    """
    estimates = _estimates(given)
    names = sorted(estimates)
    values = [float(estimates[name]) for name in names]
    stderrs = [getattr(estimates[name], "stderr", 0.0) for name in names]
    shares = normalise(rng.normal(values, stderrs))
    # Published shares, which are rounded, need not sum to 1.
    whole = 1.0 if isinstance(given, Valuation) else math.fsum(values)
    return dict(zip(names, (whole * shares).tolist(), strict=True))
