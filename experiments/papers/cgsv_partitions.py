# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, Tables 1 and 2: Dice, and the fairness of rewards, when one pool is dealt to the clients.

It is dealt evenly, unevenly, or one-sidedly.

Fairness is the correlation over clients of Dice alone with Dice in the federation, times 100: who
brings more should get more. Where all receive one model it is not defined. Means over folds;
intervals of Dice over images, of fairness over folds. The last two partitions are a control:
generated volumes, on which a client alone is far from what all reach together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from reading import (
    Result,
    cases,
    interval_of,
    markdown,
    over_folds,
    read,
    shown_name,
    site_means,
    words,
)
from study import Study

from monai_fairfl.statistics.fairness import pearson

STUDIES = ("rewards", "rewards_volumes")
HEAD = [
    "partition",
    "method",
    "mean Dice",
    "best client",
    "worst client",
    "fairness, Pearson x 100",
]


def table() -> str:
    """A row per partition and method."""
    rows = []
    for study in STUDIES:
        for setting in Study.read(study).settings:
            results = read(study, setting)
            for method, found in results.items():
                if "beta" not in method:
                    cells = row(found, results["Standalone"])
                    rows.append([setting, shown_name(method), *cells])
    return markdown(HEAD, rows)


def row(found: Sequence[Result], alone: Sequence[Result]) -> list[str]:
    """Dice and fairness of one method."""
    means = site_means(cases(found))
    fairness = "–"
    if found is not alone:
        pairs = list(zip(alone, found, strict=True))
        fairness = words(over_folds(pairs, _fairness), 0)
    return [
        words(interval_of({"all": _by_case(found)})),
        f"{max(means.values()):.3f}",
        f"{min(means.values()):.3f}",
        fairness,
    ]


def _by_case(found: Sequence[Result]) -> dict[str, float]:
    """case -> mean over the clients, who are all tested with the same photographs."""
    pooled = list(cases(found).values())
    means = {}
    for case in pooled[0]:
        means[case] = float(np.mean([scores[case] for scores in pooled]))
    return means


def _fairness(pairs: Sequence[tuple[Result, Result]]) -> float:
    """Compute the mean over folds of the correlation between Dice alone and in the federation."""
    values = []
    for alone, found in pairs:
        correlation = pearson(site_means(cases([alone])), site_means(cases([found])))
        values.append(100 * correlation.r)
    if not np.isfinite(values).any():
        return float("nan")
    return float(np.nanmean(values))
