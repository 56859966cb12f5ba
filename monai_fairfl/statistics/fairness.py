# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures the fairness of a federation: of its scores, and of the credit for contributions.

How evenly are sites served, and do contributions get the credit that they deserve?

Units: scores (Dice, accuracy) are fractions in [0, 1]; contributions are shares that sum to one.
Results on a paper's own scale (x100, percentage points) say so. Clients come as a mapping client ->
value, or a sequence (client "0", ...).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from monai_fairfl.errors import ConfigError

Row: TypeAlias = NDArray[np.float64]
PerClient: TypeAlias = Mapping[str, float] | Sequence[float] | Row

ROUNDING = 0.02
"""Published shares, rounded to half a percent, sum to 0.99 ... 1.01."""

EQUAL = 1e-9
"""Relative spread below which values are equal, but for rounding."""


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval; NaN where unknown.

    >>> Interval(estimate=0.5, low=0.25, high=0.75).high
    0.75
    """

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Performance:
    """What :func:`performance` found, in the unit of the scores.

    ``std`` uses ``n - ddof``, ``gap`` is best minus worst.
    """

    mean: float
    std: float
    worst_client: str
    worst: float
    gap: float
    jain: float


class Correlation(NamedTuple):
    """Pearson correlation ``r`` with its two-sided ``p_value``; both NaN where undefined."""

    r: float
    p_value: float


class Agreement(NamedTuple):
    """What :func:`agreement` found.

    ``pearson`` is in -100 ... 100, ``euclidean`` and ``cosine`` are of fractions.
    """

    pearson: float
    p_value: float
    euclidean: float
    cosine: float


def performance(scores: PerClient, ddof: int = 1) -> Performance:
    """Summarises how well, and how evenly, a federation serves its sites.

    Jain's index is ``(sum x)^2 / (n sum x^2)``: 1 when all sites score the same, 1/n when one has
    everything (Jain et al., DEC-TR-301, 1984). FedCE reports the standard deviation with
    ``ddof=1``, Fed-LWR with ``ddof=0``.

    Args:
        scores: client -> score, in any unit.
        ddof: delta degrees of freedom of ``std``.

    Returns:
        The summary; ``std`` is NaN for ``ddof`` or fewer clients, ``jain`` is NaN when all scores
        are zero. Of equally bad sites, ``worst_client`` is the first by name.

    Raises:
        ConfigError: when a score is not finite.

    >>> summary = performance({"A": 0.9, "B": 0.8, "C": 0.7})
    >>> summary.worst_client, summary.worst
    ('C', 0.7)
    >>> round(summary.std, 3), round(summary.jain, 3)
    (0.1, 0.99)
    """
    names, x = _values(scores)
    squares = float(len(x) * np.sum(x**2))
    return Performance(
        mean=float(x.mean()),
        std=float(x.std(ddof=ddof)) if len(x) > ddof else math.nan,
        worst_client=names[int(x.argmin())],
        worst=float(x.min()),
        gap=float(np.ptp(x)),
        jain=float(x.sum() ** 2 / squares) if squares > 0 else math.nan,
    )


def pearson(first: PerClient, second: PerClient) -> Correlation:
    """Pearson correlation between two values per client, unscaled as ShapFed reports it.

    Args:
        first: client -> any finite value.
        second: the same clients -> any finite value.

    Returns:
        ``r`` in -1 ... 1 and its two-sided p-value. Both are NaN, not 0, when one side is constant
        (uniform weights agree with nothing and disagree with nothing) or when there are fewer than
        three clients (of two, ``r`` is always 1 or -1).

    Raises:
        ConfigError: when the clients differ, or a value is not finite.

    >>> pearson([0.1, 0.2, 0.4], [0.2, 0.4, 0.8]).r.__round__(6)
    1.0
    >>> pearson([0.1, 0.2, 0.4], [1 / 3, 1 / 3, 1 / 3])
    Correlation(r=nan, p_value=nan)
    """
    x, y = _paired(first, second)
    # Uniform weights are equal but for the noise of rounding.
    is_constant = any(np.ptp(values) <= EQUAL * np.abs(values).max() for values in (x, y))
    if len(x) <= 2 or is_constant:
        return Correlation(math.nan, math.nan)
    found = stats.pearsonr(x, y)
    return Correlation(float(found.statistic), float(found.pvalue))


def agreement(estimated: PerClient, reference: PerClient) -> Agreement:
    """How well estimated contributions agree with a reference such as leave-one-out shares.

    Source: FedCE's Table 3.

    Args:
        estimated: client -> share, for example a method's final aggregation weights; shares sum to
            one.
        reference: the same clients -> share, for example by leave-one-out; shares
            sum to one.

    Returns:
        100 x Pearson with two-sided p-value (NaN as in :func:`pearson`), Euclidean distance and
        cosine.

    Raises:
        ConfigError: when the clients differ, a share is not finite, or a sum is not 1 (within
            0.02, as published shares are rounded).

    >>> result = agreement({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 0.6, "B": 0.3, "C": 0.1})
    >>> round(result.pearson, 1), round(result.euclidean, 3), round(result.cosine, 3)
    (99.7, 0.141, 0.981)
    """
    x, y = _paired(estimated, reference)
    for shares in (x, y):
        if abs(shares.sum() - 1) > ROUNDING:
            raise ConfigError(f"shares must sum to 1, got {shares}; divide each by their sum.")
    r, p_value = pearson(x, y)
    cosine = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    return Agreement(100 * r, p_value, float(np.linalg.norm(x - y)), float(cosine))


def _values(given: PerClient) -> tuple[list[str], Row]:
    """Names, sorted so that sums do not depend on the order of arrival, and float64 values."""
    if not isinstance(given, Mapping):
        names, values = [str(number) for number in range(len(given))], list(given)
    else:
        names = sorted(given)
        values = [given[name] for name in names]
    for name, value in zip(names, values):
        if not math.isfinite(value):
            raise ConfigError(f"{name!r} has {value}, which is no finite number")
    return names, np.array(values, dtype=np.float64)


def _paired(first: PerClient, second: PerClient) -> tuple[Row, Row]:
    """Both values of clients that must be the same on both sides."""
    names, x = _values(first)
    others, y = _values(second)
    if names != others:
        raise ConfigError(f"both sides must have the same clients, got {names} and {others}.")
    return x, y
