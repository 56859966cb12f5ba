# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How well, and how evenly, a federation serves its sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


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


def performance(scores: Mapping[str, float], ddof: int = 1) -> Performance:
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

    >>> summary = performance({"A": 0.9, "B": 0.8, "C": 0.7})
    >>> summary.worst_client, summary.worst
    ('C', 0.7)
    >>> round(summary.std, 3), round(summary.jain, 3)
    (0.1, 0.99)
    """
    names = sorted(scores)  # so that sums do not depend on the order of arrival
    x = np.array([scores[name] for name in names], dtype=np.float64)
    squares = float(len(x) * np.sum(x**2))
    return Performance(
        mean=float(x.mean()),
        std=float(x.std(ddof=ddof)) if len(x) > ddof else math.nan,
        worst_client=names[int(x.argmin())],
        worst=float(x.min()),
        gap=float(np.ptp(x)),
        jain=float(x.sum() ** 2 / squares) if squares > 0 else math.nan,
    )
