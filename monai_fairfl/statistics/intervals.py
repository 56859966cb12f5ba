# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of scores, and the bootstrap of the cases of several sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.fairness import finite_values


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval; NaN where unknown."""

    estimate: float
    low: float
    high: float

    @classmethod
    def read(cls, data: Mapping[str, float | None]) -> Interval:
        """From JSON, which has ``null`` for what is unknown."""

        def number(name: str) -> float:
            value = data.get(name)
            return math.nan if value is None else float(value)

        return cls(number("estimate"), number("low"), number("high"))

    def words(self, digits: int) -> str:
        """The estimate, with its interval where that is known.

        >>> Interval(0.5, 0.25, 0.75).words(2)
        '0.50 (0.25 to 0.75)'
        >>> Interval.read({"estimate": 0.5}).words(2), Interval.read({}).words(2)
        ('0.50', 'undefined')
        """
        if math.isnan(self.estimate):
            return "undefined"
        text = f"{self.estimate:.{digits}f}"
        if math.isnan(self.low) or math.isnan(self.high):
            return text
        return f"{text} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def bootstrap_site_mean(
    cases_by_site: Mapping[str, Sequence[float]],
    level: float = 0.95,
    seed: int = 0,
    resamples: int = 9999,
) -> Interval:
    """Percentile bootstrap interval of the mean over sites of each site's mean score.

    Cases are resampled within each site (stratified), so the interval speaks of these sites and of
    new cases from them, not of new sites. A site with one case adds no spread, and one with n cases
    (n - 1)/n of its variance, which makes the interval too narrow: of six sites with two cases each
    an interval of 95 % covers the true mean in 78 of 100 samples, with five cases each in 90.

    Args:
        cases_by_site: site -> score of each of its cases, finite numbers.
        level: confidence level, between 0 and 1.
        seed: seed of the resampling; the order of the sites does not matter.
        resamples: number of bootstrap samples.

    Returns:
        The mean of the site means and its interval; the ends are NaN when no site has two cases.

    Raises:
        ConfigError: when there is no site, a site has no case, a score is not finite, or the level
            is not between 0 and 1.

    >>> interval = bootstrap_site_mean({"A": [0.9, 0.8, 0.7], "B": [0.6, 0.5]})
    >>> round(interval.estimate, 3), 0.6 < interval.low < interval.high < 0.75
    (0.675, True)
    """
    if not cases_by_site:
        raise ConfigError("cases_by_site is empty; give at least one site.")
    check_level(level)
    rng = np.random.default_rng(seed)
    site_means = []
    resampled_means = []
    most_cases = 0
    for site in sorted(cases_by_site):
        _, scores = finite_values(cases_by_site[site], f"cases of site {site!r}")
        n = len(scores)
        most_cases = max(most_cases, n)
        site_means.append(scores.mean())
        # Each row is one bootstrap sample of this site's cases.
        chosen = rng.integers(n, size=(resamples, n))
        resampled_means.append(scores[chosen].mean(axis=1))
    estimate = float(np.mean(site_means))
    if most_cases == 1:
        return Interval(estimate, float("nan"), float("nan"))
    means_over_sites = np.mean(resampled_means, axis=0)
    low, high = np.quantile(means_over_sites, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high))


def check_level(level: float) -> None:
    """Refuse a confidence level that is not between 0 and 1, such as 95."""
    if not 0 < level < 1:
        raise ConfigError(f"level must be between 0 and 1, got {level}.")
