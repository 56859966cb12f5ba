# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 2: who gains what, by sites' Dice alone and with a strategy.

Measures are Pearson's correlation, times 100, and the Euclidean distance in points of Dice;
intervals are over cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from reading import DRAWS, cases, markdown, read, shown_name, site_means, words

from monai_fairfl.statistics.fairness import performance_distance, performance_fairness_pearson
from monai_fairfl.statistics.intervals import Interval

STUDIES = ("prostate", "fundus")
Means = Mapping[str, float]
Cases = Mapping[str, Mapping[str, float]]


def table() -> str:
    """A row per strategy; the measures are scaled as in the paper."""
    found = {study: _of_study(study) for study in STUDIES}
    head = ["strategy"]
    rows: dict[str, list[str]] = {}
    for study in STUDIES:
        head += [f"{study}, Pearson", f"{study}, p", f"{study}, Euclid"]
        for strategy in found[study]:
            rows[strategy] = [strategy]
    for strategy, row in rows.items():
        for study in STUDIES:
            row += found[study].get(strategy, ["–", "–", "–"])
    return markdown(head, rows.values())


def _of_study(study: str) -> dict[str, list[str]]:
    """Strategy -> correlation, p value and distance."""
    results = read(study)
    alone = cases(results["Standalone"])
    rows = {}
    for strategy, of_folds in results.items():
        if strategy == "Standalone":
            continue
        found = cases(of_folds)
        correlation = performance_fairness_pearson(site_means(alone), site_means(found))
        estimates = _measures(site_means(alone), site_means(found))
        drawn = np.array([_measures(*pair) for pair in _redrawn(alone, found)])
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        pearson = Interval(estimates[0], low[0], high[0])
        distance = Interval(estimates[1], low[1], high[1])
        rows[shown_name(strategy)] = [
            words(pearson, 1),
            f"{correlation.p_value:.2f}",
            words(distance, 1),
        ]
    return rows


def _measures(alone: Means, means: Means) -> tuple[float, float]:
    return performance_fairness_pearson(alone, means).r, performance_distance(alone, means)


def _redrawn(alone: Cases, found: Cases) -> Iterator[tuple[Means, Means]]:
    """Yield both means of the same cases, drawn with replacement within sites."""
    rng = np.random.default_rng(0)
    pairs = {}
    for site, scores in found.items():
        pairs[site] = np.array([[alone[site][case], dice] for case, dice in scores.items()])
    for _ in range(DRAWS):
        means_alone = {}
        means_found = {}
        for site, of_site in pairs.items():
            drawn = of_site[rng.integers(len(of_site), size=len(of_site))]
            mean_alone, mean_found = drawn.mean(0)
            means_alone[site] = float(mean_alone)
            means_found[site] = float(mean_found)
        yield means_alone, means_found
