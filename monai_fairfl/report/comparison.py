# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a site gains over training alone, whether it is left behind, and how gains follow the sites' own strength."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from monai_fairfl import fairness
from monai_fairfl.report.collect import Number

__all__ = ["DDOF", "LEFT_BEHIND", "MARGIN", "collaboration", "gains", "left_behind"]

DDOF = 1
MARGIN = 0.02
LEFT_BEHIND = (
    f"A site is called left behind when its Dice is more than one standard deviation (n - {DDOF} in the denominator) "
    f"below the mean of all sites, or more than {MARGIN} lower than when trained alone. The first rule needs at least "
    "three sites: of two, neither can be that far below their mean."
)


def gains(numbers: Mapping[str, Number], alone: Mapping[str, Number]) -> dict[str, dict[str, Any]]:
    """site -> gain over training alone; its standard error takes the two scores as independent.

    Both are of the same cases, so the true error is mostly smaller: this errs on the side of calling it noise.
    """
    if not alone:
        return {}
    differences = fairness.gain({s: numbers[s].value for s in alone}, {s: alone[s].value for s in alone})
    found = {}
    for site, value in differences.items():
        errors, counts = (numbers[site].stderr, alone[site].stderr), (numbers[site].n, alone[site].n)
        known = errors[0] is not None and errors[1] is not None
        stderr = math.hypot(errors[0] or 0.0, errors[1] or 0.0) if known else None
        n = min((count for count in counts if count is not None), default=None)
        within = None if stderr is None else abs(value) < stderr
        found[site] = {"value": value, "alone": alone[site].value, "stderr": stderr, "n": n, "within_noise": within}
    return found


def collaboration(values: Mapping[str, float], alone: Mapping[str, Number]) -> dict[str, Any] | None:
    """Collaboration fairness over all sites, ``None`` where one has no score alone."""
    if len(alone) < 2 or set(alone) != set(values):
        return None
    reference = {site: number.value for site, number in alone.items()}
    r, p_value = fairness.performance_fairness_pearson(reference, values)
    return {"pearson": r, "p_value": p_value, "euclid": fairness.performance_distance(reference, values)}


def left_behind(site: str, scores: Mapping[str, float], gain: float | None) -> dict[str, Any] | None:
    """Whether ``site`` is left behind, and why: see :data:`LEFT_BEHIND`.

    Args:
        site: its name.
        scores: site -> Dice, fractions in [0, 1].
        gain: Dice of ``site`` minus what it reaches alone; ``None`` where unknown.

    Returns:
        ``{"verdict", "below_mean", "deviations", "below_alone"}``; ``None`` where no rule can be applied.

    >>> left_behind("C", {"A": 0.9, "B": 0.9, "C": 0.6}, gain=0.01)["verdict"]
    True
    >>> left_behind("A", {"A": 0.9}, gain=None) is None
    True
    """
    if site not in scores or (len(scores) < 3 and gain is None):
        return None
    found = fairness.performance(scores, ddof=DDOF)
    below = found.mean - scores[site]
    behind = len(scores) >= 3 and below > found.std + 1e-12  # equal scores differ by rounding
    worse = gain is not None and gain < -MARGIN - 1e-12
    return {
        "verdict": behind or worse,
        "below_mean": below if behind else None,
        "deviations": below / found.std if behind and found.std > 0 else None,
        "below_alone": -gain if worse and gain is not None else None,
    }
