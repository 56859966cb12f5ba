# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fidelity: how well cheap contribution estimates agree with a reference that took many trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.valuation import Valuation
from monai_fairfl.protocol.averages import normalise
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.statistics.fairness import agreement
from monai_fairfl.statistics.intervals import Interval

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

    The interval is a parametric bootstrap: values are drawn anew with their standard errors, made
    shares again, and compared. It answers how far the figure depends on the sampling of coalitions
    (or on the rounds a method averaged over), for *these* clients. Resampling clients instead would
    ask how it depends on which clients there are; with four to eight of them most resamples hold
    duplicates, many have no rank to correlate, and a correlation's interval is nearly -1 to 1
    whatever the method: honest, and of no use to compare methods on one federation. Drawing anew
    adds noise to values that have noise already: intervals reach further towards disagreement than
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
        The agreement. Ends of intervals are NaN when a standard error of either side is unknown, or
        the estimate is NaN. When both sides were found without sampling, the interval has no width.

    Raises:
        ConfigError: when the clients differ, are fewer than two, or plain shares are not shares.

    >>> weights = {"A": Estimate(0.5, 0.02, 10), "B": Estimate(0.3, 0.02, 10), "C": Estimate(0.2, 0.02, 10)}
    >>> found = fidelity(weights, {"A": Estimate(0.6, 0.0), "B": Estimate(0.3, 0.0), "C": Estimate(0.1, 0.0)})
    >>> round(found.pearson.estimate, 1), found.pearson.low < 99 < found.pearson.high, found.spearman.estimate
    (99.7, True, 100.0)
    """
    if not 0 < level < 1:
        raise ConfigError(f"level must be between 0 and 1, got {level}.")
    shares, known = _shares(contributions, "contributions"), _shares(reference, "reference")
    estimate, p_value = _measures(shares, known)
    ends = np.full((2, 4), np.nan)
    if _has_errors(contributions) and _has_errors(reference):
        rng = np.random.default_rng(seed)
        drawn = [
            _measures(_redrawn(contributions, rng), _redrawn(reference, rng))[0]
            for _ in range(draws)
        ]
        ends = _quantiles(np.array(drawn), level)
        ends[:, np.isnan(estimate)] = np.nan
    pearson, spearman, euclidean, cosine = (
        Interval(float(value), float(low), float(high)) for value, low, high in zip(estimate, *ends)
    )
    return Fidelity(pearson, spearman, euclidean, cosine, p_value)


def _shares(given: Contributions, what: str) -> dict[str, float]:
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
    found = agreement(shares, reference)
    spearman = math.nan
    if not math.isnan(found.pearson):
        names = sorted(shares)
        ranked = (
            np.round([of[n] for n in names], 9) for of in (shares, reference)
        )  # rounding is no order
        spearman = 100 * stats.spearmanr(*ranked).statistic
    return np.array([found.pearson, spearman, found.euclidean, found.cosine]), found.p_value


def _estimates(given: Contributions) -> Mapping[str, float | Estimate]:
    return given.values if isinstance(given, Valuation) else given


def _has_errors(given: Contributions) -> bool:
    return all(isinstance(v, Estimate) and v.stderr is not None for v in _estimates(given).values())


def _redrawn(given: Contributions, rng: np.random.Generator) -> dict[str, float]:
    """Shares of values drawn anew; of clients in the order of their names, so that the order given
    does not matter.
    """
    estimates = _estimates(given)
    names = sorted(estimates)
    drawn = {
        n: rng.normal(float(estimates[n]), getattr(estimates[n], "stderr", 0.0)) for n in names
    }
    # shares as published, rounded, need not sum to 1
    whole = (
        1.0
        if isinstance(given, Valuation)
        else math.fsum(float(estimate) for estimate in estimates.values())
    )
    return {client: whole * share for client, share in normalise(drawn).items()}


def _quantiles(drawn: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    ends = np.full((2, drawn.shape[1]), np.nan)
    for column, values in enumerate(drawn.T):
        finite = values[
            np.isfinite(values)
        ]  # a draw with nothing positive has uniform shares, and no correlation
        if len(finite):
            ends[:, column] = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return ends
