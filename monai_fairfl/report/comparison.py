# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site gains over training alone or against FedAvg, and whether it is left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import stdev
from typing import Any

from scipy.stats import t as student

from monai_fairfl.report.numbers import Number
from monai_fairfl.statistics import fairness

DDOF = 1
"""The standard deviation over n sites has n - DDOF in the denominator."""

MARGIN = 0.02
"""A site that loses more Dice than this against another model may be left behind."""

FLOOR = 0.05
"""A site that is less Dice than this below the sites' mean is not left behind."""

ROUNDING = 1e-12
"""By which two Dice that should be equal may differ."""

EQUAL = 1e-9
"""A difference below this is none: ledgers round scores to twelve decimals."""

LEFT_BEHIND = (
    f"Behind: a Dice that is more than {MARGIN} below training alone or, with three sites or more, "
    f"more than {FLOOR} and one standard deviation (n - {DDOF} in the denominator) below the mean. "
    f"If a model here is more than {MARGIN} better for the site, it is left behind (perhaps, where "
    "the 95 % interval of its cases by Student's t contains 0). If none is, it is hard for every "
    "model."
)


@dataclass(frozen=True)
class Difference:
    """How far two scores of one site are apart.

    Args:
        value: Dice, the one less the other.
        stderr: standard error of ``value``; ``None`` where it is not known.
        n: the cases behind it, of two numbers the smaller; ``None`` where both are unknown.
        low: lower end of the 95 % interval over cases, by Student's t; ``None`` where unknown.
        high: upper end.
        within_noise: whether 0 is inside this interval; ``None`` where that is not known.
        paired: whether ``stderr`` is of the differences case by case. Otherwise it takes the two
            scores as independent, which mostly overstates it.
    """

    value: float
    stderr: float | None = None
    n: int | None = None
    low: float | None = None
    high: float | None = None
    within_noise: bool | None = None
    paired: bool = False


@dataclass(frozen=True)
class Gain(Difference):
    """Dice that a site gains over training alone: with the strategy, less alone.

    Args:
        alone: Dice that it reaches alone.
    """

    alone: float = field(kw_only=True)


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
    """Whether a site is below the others or below alone: see :data:`LEFT_BEHIND`.

    Whether a model of the report serves it better is asked by
    :func:`~monai_fairfl.report.verdicts.verdict_of`.

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


def difference_of(
    score: Number, reference: Number, pairs: Sequence[float] | None = None
) -> Difference:
    """How far ``score`` is above ``reference``, with the 95 % interval over their cases.

    Args:
        score: of a site.
        reference: of the same site, in another run.
        pairs: the differences case by case, where they are known. Without them the two scores are
            taken as independent. Both are of the same cases, so the true error is mostly smaller:
            this errs on the side of calling a difference noise.

    >>> found = difference_of(Number(0.8, 0.05, 3), Number(0.7, 0.05, 3), [0.09, 0.10, 0.11])
    >>> round(found.low, 3), round(found.high, 3), found.within_noise, found.paired
    (0.075, 0.125, False, True)
    >>> difference_of(Number(0.8, 0.05, 3), Number(0.7, 0.05, 3)).within_noise
    True
    """
    stderr = None
    counts = [number.n for number in (score, reference) if number.n is not None]
    n = min(counts, default=None)
    paired = pairs is not None and len(pairs) > 1
    if pairs is not None and paired:
        n = len(pairs)
        stderr = stdev(pairs) / math.sqrt(n)
    elif score.stderr is not None and reference.stderr is not None:
        stderr = math.hypot(score.stderr, reference.stderr)

    value = score.value - reference.value
    width = half_width(stderr, n)
    if width is None:
        return Difference(value, stderr, n, paired=paired)
    within_noise = abs(value) <= width + EQUAL
    return Difference(value, stderr, n, value - width, value + width, within_noise, paired)


def difference_words(difference: Mapping[str, Any]) -> str:
    """A difference with the ends of its interval, where they are known.

    >>> difference_words({"value": 0.02, "low": -0.011, "high": 0.05})
    '+0.020 (-0.011 to +0.050)'
    >>> difference_words({"value": -0.0001, "low": None, "high": None})
    '+0.000'
    """
    words = signed(difference["value"])
    if difference["low"] is None or difference["high"] is None:
        return words
    return f"{words} ({signed(difference['low'])} to {signed(difference['high'])})"


def signed(value: float) -> str:
    """A difference in Dice with its sign; one that rounds to nothing is positive.

    >>> signed(-0.0213), signed(-0.0001)
    ('-0.021', '+0.000')
    """
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(value, 3) + 0.0:+.3f}"


def gains(
    scores: Mapping[str, Number],
    alone: Mapping[str, Number],
    pairs: Mapping[str, Sequence[float]] = {},
) -> dict[str, Gain]:
    """site -> gain over training alone, of the sites that have both scores.

    Args:
        scores: site -> Dice with the strategy.
        alone: site -> Dice when it trains alone.
        pairs: site -> differences case by case, where they are known.
    """
    found = {}
    for site in alone:
        if site not in scores:
            continue
        difference = difference_of(scores[site], alone[site], pairs.get(site))
        found[site] = Gain(**asdict(difference), alone=alone[site].value)
    return found


def collaboration(values: Mapping[str, float], alone: Mapping[str, Number]) -> Collaboration | None:
    """Collaboration fairness over all sites; ``None`` where one has no score alone."""
    if len(alone) < 2 or set(alone) != set(values):
        return None
    reference = {site: number.value for site, number in alone.items()}
    pearson, p_value = fairness.performance_fairness_pearson(reference, values)
    return Collaboration(pearson, p_value, fairness.performance_distance(reference, values))


def left_behind(site: str, scores: Mapping[str, Number], gain: Gain | None) -> LeftBehind | None:
    """Whether ``site`` is below the others or alone; ``None`` where no rule can be applied.

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
