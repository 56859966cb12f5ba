# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site gains over training alone, whether it is left behind, and how gains follow the sites'
own strength.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scipy.stats import t as student

from monai_fairfl.report.collect import Number
from monai_fairfl.statistics import fairness

DDOF = 1
MARGIN, FLOOR = 0.02, 0.05
LEFT_BEHIND = (
    f"A site is called left behind when its Dice is more than {MARGIN} lower than when trained alone, or, of at least "
    f"three sites, more than {FLOOR} and more than one standard deviation (n - {DDOF} in the denominator) below the "
    "mean of all; and when its cases can tell: the difference is outside their 95 % interval (Student's t). Where they "
    "cannot, it may be left behind."
)


def half_width(stderr: float | None, n: int | None) -> float | None:
    """Half of the 95 % interval of a mean over n cases, by Student's t; ``None`` where it is
    unknown.

    >>> half_width(0.1, 2) > 1, round(half_width(0.1, 1000), 2), half_width(0.1, 1)
    (True, 0.2, None)
    """
    if stderr is None or n is None or n < 2:
        return None
    return float(student.ppf(0.975, n - 1)) * stderr


def gains(numbers: Mapping[str, Number], alone: Mapping[str, Number]) -> dict[str, dict[str, Any]]:
    """site -> gain over training alone; its standard error takes the two scores as independent.

    Both are of the same cases, so the true error is mostly smaller: this errs on the side of
    calling it noise.
    """
    if not alone:
        return {}
    differences = fairness.gain(
        {s: numbers[s].value for s in alone}, {s: alone[s].value for s in alone}
    )
    found = {}
    for site, value in differences.items():
        errors, counts = (numbers[site].stderr, alone[site].stderr), (
            numbers[site].n,
            alone[site].n,
        )
        known = errors[0] is not None and errors[1] is not None
        stderr = math.hypot(errors[0] or 0.0, errors[1] or 0.0) if known else None
        n = min((count for count in counts if count is not None), default=None)
        width = half_width(stderr, n)
        within = None if width is None else abs(value) <= width
        found[site] = {
            "value": value,
            "alone": alone[site].value,
            "stderr": stderr,
            "n": n,
            "within_noise": within,
        }
    return found


def collaboration(
    values: Mapping[str, float], alone: Mapping[str, Number]
) -> dict[str, Any] | None:
    """Collaboration fairness over all sites, ``None`` where one has no score alone."""
    if len(alone) < 2 or set(alone) != set(values):
        return None
    reference = {site: number.value for site, number in alone.items()}
    r, p_value = fairness.performance_fairness_pearson(reference, values)
    return {
        "pearson": r,
        "p_value": p_value,
        "euclid": fairness.performance_distance(reference, values),
    }


def left_behind(
    site: str, scores: Mapping[str, Number], gain: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Whether ``site`` is left behind, and why: see :data:`LEFT_BEHIND`.

    Args:
        site: its name.
        scores: site -> Dice, fractions in [0, 1].
        gain: over training alone, of :func:`gains`; ``None`` where unknown.

    Returns:
        ``{"verdict", "doubtful", "below_mean", "deviations", "below_alone"}``; ``None`` where no
        rule can be applied.

    >>> scores = {"A": Number(0.9), "B": Number(0.9), "C": Number(0.6, 0.01, 20)}
    >>> left_behind("C", scores, gain=None)["verdict"], left_behind("A", {"A": Number(0.9)}, gain=None)
    (True, None)
    """
    if site not in scores or (len(scores) < 3 and gain is None):
        return None
    mine = scores[site]
    found = fairness.performance({name: number.value for name, number in scores.items()}, ddof=DDOF)
    below, width = found.mean - mine.value, half_width(mine.stderr, mine.n)
    behind = (
        len(scores) >= 3 and below > max(found.std, FLOOR) + 1e-12
    )  # equal scores differ by rounding
    worse = gain is not None and gain["value"] < -MARGIN - 1e-12
    told = (behind and width is not None and below > width) or (
        worse and gain is not None and gain["within_noise"] is False
    )
    return {
        "verdict": told,
        "doubtful": (behind or worse) and not told,
        "below_mean": below if behind else None,
        "deviations": below / found.std if behind and found.std > 0 else None,
        "below_alone": -gain["value"] if worse and gain is not None else None,
    }
