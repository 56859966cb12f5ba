# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How well two values of each client agree, as the papers' tables say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = NDArray[np.float64]
PerClient: TypeAlias = Mapping[str, float] | Sequence[float] | Row

ROUNDING = 0.02
"""Published shares, rounded to half a percent, sum to 0.99 ... 1.01."""

EQUAL = 1e-9
"""Relative spread below which values are equal, but for rounding."""


class Agreement(NamedTuple):
    """What :func:`agreement` found.

    ``pearson`` is in -100 ... 100, ``euclidean`` and ``cosine`` are of fractions.
    """

    pearson: float
    euclidean: float
    cosine: float


def pearson(first: PerClient, second: PerClient) -> float:
    """Pearson correlation between two values per client, unscaled as ShapFed reports it.

    Args:
        first: client -> any finite value.
        second: the same clients -> any finite value.

    Returns:
        -1 ... 1; NaN, not 0, when one side is constant (uniform weights agree with nothing and
        disagree with nothing) or when there are fewer than three clients (of two, it is always 1
        or -1).

    Raises:
        ValueError: when the clients differ, or a value is not finite.

    >>> round(pearson([0.1, 0.2, 0.4], [0.2, 0.4, 0.8]), 6)
    1.0
    >>> pearson([0.1, 0.2, 0.4], [1 / 3, 1 / 3, 1 / 3])
    nan
    """
    x, y = _paired(first, second)
    # Uniform weights are equal but for the noise of rounding.
    is_constant = any(np.ptp(values) <= EQUAL * np.abs(values).max() for values in (x, y))
    if len(x) <= 2 or is_constant:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def agreement(estimated: PerClient, reference: PerClient) -> Agreement:
    """How well estimated contributions agree with a reference such as leave-one-out shares.

    Source: FedCE's Table 3.

    Args:
        estimated: client -> share, for example a method's final aggregation weights; shares sum to
            one.
        reference: the same clients -> share, for example by leave-one-out; shares
            sum to one.

    Returns:
        100 x Pearson (NaN as in :func:`pearson`), Euclidean distance and cosine.

    Raises:
        ValueError: when the clients differ, a share is not finite, or a sum is not 1 (within
            0.02, as published shares are rounded).

    >>> result = agreement({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 0.6, "B": 0.3, "C": 0.1})
    >>> round(result.pearson, 1), round(result.euclidean, 3), round(result.cosine, 3)
    (99.7, 0.141, 0.981)
    """
    x, y = _paired(estimated, reference)
    for shares in (x, y):
        if abs(shares.sum() - 1) > ROUNDING:
            raise ValueError(f"shares must sum to 1, got {shares}; divide each by their sum.")
    cosine = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    return Agreement(100 * pearson(x, y), float(np.linalg.norm(x - y)), float(cosine))


def _paired(first: PerClient, second: PerClient) -> tuple[Row, Row]:
    """Both values of clients that must be the same on both sides, in the order of their names."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            raise ValueError(f"other clients on each side: {[*first]} and {[*second]}")
        first, second = ([side[name] for name in sorted(side)] for side in (first, second))
    x, y = np.asarray_chkfinite(first, float), np.asarray_chkfinite(second, float)
    return x, y
