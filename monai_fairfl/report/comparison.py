# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site gains over training alone, and whether it is left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.stats import t as student

from monai_fairfl.report.numbers import Number
from monai_fairfl.statistics import fairness

DDOF = 1
"""The standard deviation over n sites has n - DDOF in the denominator."""

MARGIN = 0.02
"""A site that loses more Dice than this against training alone is left behind."""

FLOOR = 0.05
"""A site that is less Dice than this below the sites' mean is not left behind."""

ROUNDING = 1e-12
"""By which two Dice that should be equal may differ."""

LEFT_BEHIND = (
    f"A site is called left behind when its Dice is more than {MARGIN} lower than when trained "
    f"alone, or, of at least three sites, more than {FLOOR} and more than one standard deviation "
    f"(n - {DDOF} in the denominator) below the mean of all. Its cases must show it: the "
    "difference is outside their 95 % interval (Student's t). Where they do not, it may be left "
    "behind."
)


@dataclass(frozen=True)
class Gain:
    """Dice that a site gains over training alone.

    Args:
        value: with the strategy, less alone.
        alone: Dice that it reaches alone.
        stderr: standard error of the difference; ``None`` where one of the two is unknown.
        n: the smaller number of cases of the two; ``None`` where both are unknown.
        within_noise: whether 0 is inside the 95 % interval of its cases; ``None`` where that is
            not known.
    """

    value: float
    alone: float
    stderr: float | None = None
    n: int | None = None
    within_noise: bool | None = None


@dataclass(frozen=True)
class Collaboration:
    """How the sites' scores follow what they reach alone, in the papers' scales.

    Args:
        pearson: 100 times the correlation; NaN where it is not defined.
        p_value: two-sided, of ``pearson``.
        euclid: distance of the two in percentage points.
    """

    pearson: float
    p_value: float
    euclid: float


@dataclass(frozen=True)
class LeftBehind:
    """Whether a site is left behind, and why: see :data:`LEFT_BEHIND`.

    Args:
        verdict: it is, and its cases show it.
        doubtful: it is, but its cases cannot distinguish it from chance.
        below_mean: how far its Dice is below the sites' mean; ``None`` where that is no reason.
        deviations: the same in standard deviations over the sites.
        below_alone: how far its Dice is below what it reaches alone; ``None`` where that is no
            reason.
    """

    verdict: bool
    doubtful: bool
    below_mean: float | None = None
    deviations: float | None = None
    below_alone: float | None = None


def half_width(stderr: float | None, n: int | None) -> float | None:
    """Half of the 95 % interval of a mean over n cases, by Student's t; ``None`` where unknown.

    >>> half_width(0.1, 2) > 1, round(half_width(0.1, 1000), 2), half_width(0.1, 1)
    (True, 0.2, None)
    """
    if stderr is None or n is None or n < 2:
        return None
    return float(student.ppf(0.975, n - 1)) * stderr


def gains(scores: Mapping[str, Number], alone: Mapping[str, Number]) -> dict[str, Gain]:
    """site -> gain over training alone, of the sites that have both scores.

    The standard error takes the two scores as independent. Both are of the same cases, so the true
    error is mostly smaller: this errs on the side of calling a gain noise.

    Args:
        scores: site -> Dice with the strategy.
        alone: site -> Dice when it trains alone.
    """
    values = {}
    values_alone = {}
    for site in alone:
        if site in scores:
            values[site] = scores[site].value
            values_alone[site] = alone[site].value
    if not values:
        return {}
    differences = fairness.gain(values, values_alone)
    return {site: _gain(value, scores[site], alone[site]) for site, value in differences.items()}


def _gain(difference: float, with_strategy: Number, alone: Number) -> Gain:
    stderr = None
    if with_strategy.stderr is not None and alone.stderr is not None:
        stderr = math.hypot(with_strategy.stderr, alone.stderr)

    counts = [number.n for number in (with_strategy, alone) if number.n is not None]
    n = min(counts, default=None)

    width = half_width(stderr, n)
    within_noise = None if width is None else abs(difference) <= width
    return Gain(difference, alone.value, stderr, n, within_noise)


def collaboration(values: Mapping[str, float], alone: Mapping[str, Number]) -> Collaboration | None:
    """Collaboration fairness over all sites; ``None`` where one has no score alone."""
    if len(alone) < 2 or set(alone) != set(values):
        return None
    reference = {site: number.value for site, number in alone.items()}
    pearson, p_value = fairness.performance_fairness_pearson(reference, values)
    return Collaboration(pearson, p_value, fairness.performance_distance(reference, values))


def left_behind(site: str, scores: Mapping[str, Number], gain: Gain | None) -> LeftBehind | None:
    """Whether ``site`` is left behind, and why; ``None`` where no rule can be applied.

    Args:
        site: its name.
        scores: site -> Dice, fractions in [0, 1].
        gain: of the site, of :func:`gains`; ``None`` where unknown.

    >>> scores = {"A": Number(0.9), "B": Number(0.9), "C": Number(0.6, 0.01, 20)}
    >>> left_behind("C", scores, gain=None).verdict, left_behind("A", {"A": Number(0.9)}, gain=None)
    (True, None)
    """
    enough_sites = len(scores) >= 3
    if site not in scores or (not enough_sites and gain is None):
        return None

    # First rule: far below the mean of all sites.
    values = {name: number.value for name, number in scores.items()}
    sites = fairness.performance(values, ddof=DDOF)
    below_mean = sites.mean - scores[site].value
    is_below_mean = enough_sites and below_mean > max(sites.std, FLOOR) + ROUNDING
    width = half_width(scores[site].stderr, scores[site].n)
    mean_is_certain = is_below_mean and width is not None and below_mean > width

    # Second rule: lower than when trained alone.
    is_below_alone = gain is not None and gain.value < -MARGIN - ROUNDING
    alone_is_certain = gain is not None and is_below_alone and gain.within_noise is False

    # A distance is reported only where its rule holds.
    deviations = None
    if is_below_mean and sites.std > 0:
        deviations = below_mean / sites.std
    below_alone = None
    if gain is not None and is_below_alone:
        below_alone = -gain.value

    verdict = mean_is_certain or alone_is_certain
    return LeftBehind(
        verdict=verdict,
        doubtful=(is_below_mean or is_below_alone) and not verdict,
        below_mean=below_mean if is_below_mean else None,
        deviations=deviations,
        below_alone=below_alone,
    )
