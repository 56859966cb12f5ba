# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 2: who gains what: Pearson and Euclidean distance between sites' Dice alone and with
a strategy.

Pearson times 100, the distance in points of Dice; intervals over cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from reading import cases, markdown, read, shown_name, site_means, words

from monai_fairfl.statistics.fairness import performance_distance, performance_fairness_pearson
from monai_fairfl.statistics.intervals import Interval

STUDIES = ("prostate", "fundus")
Means = Mapping[str, float]
Cases = Mapping[str, Mapping[str, float]]


def table() -> str:
    """A row per strategy; the correlation times 100, the distance in points of Dice, as in the
    paper.
    """
    found = {study: _of(study) for study in STUDIES}
    strategies = dict.fromkeys(strategy for rows in found.values() for strategy in rows)
    head = [
        "strategy",
        *(f"{study}, {what}" for study in STUDIES for what in ("Pearson", "p", "Euclid")),
    ]
    nothing = ["–"] * 3
    rows = [
        [name, *(cell for study in STUDIES for cell in found[study].get(name, nothing))]
        for name in strategies
    ]
    return markdown(head, rows)


def _of(study: str) -> dict[str, list[str]]:
    results = read(study)
    alone, rows = cases(results["Standalone"]), {}
    for strategy, found in results.items():
        if strategy != "Standalone":
            both = (site_means(alone), site_means(pooled := cases(found)))
            correlation = performance_fairness_pearson(*both)
            drawn = np.array([_measures(*pair) for pair in _redrawn(alone, pooled)])
            ends = np.quantile(drawn, [0.025, 0.975], axis=0)
            cells = [
                words(Interval(*triple), 1) for triple in zip(_measures(*both), *ends, strict=True)
            ]
            rows[shown_name(strategy)] = [cells[0], f"{correlation.p_value:.2f}", cells[1]]
    return rows


def _measures(alone: Means, means: Means) -> tuple[float, float]:
    return performance_fairness_pearson(alone, means).r, performance_distance(alone, means)


def _redrawn(alone: Cases, found: Cases) -> Iterator[tuple[Means, Means]]:
    """Both means of the same cases, drawn with replacement within sites, three hundred times."""
    rng = np.random.default_rng(0)
    scores = {
        site: np.array([[alone[site][case], dice] for case, dice in of.items()])
        for site, of in found.items()
    }
    for _ in range(300):
        drawn = {
            site: pairs[rng.integers(len(pairs), size=len(pairs))].mean(0)
            for site, pairs in scores.items()
        }
        yield {site: float(mean[0]) for site, mean in drawn.items()}, {
            s: float(mean[1]) for s, mean in drawn.items()
        }
