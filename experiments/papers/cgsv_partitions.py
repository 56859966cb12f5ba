# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, Tables 1 and 2: Dice, and the fairness of rewards, when one pool is dealt out evenly,
unevenly, or one-sidedly.

Fairness is the correlation over clients of Dice alone with Dice in the federation, times 100: who
brings more should get more. Where all receive one model it is not defined. Means over folds;
intervals of Dice over images, of fairness over folds. The last two partitions are a control:
generated volumes, on which a client alone is far from what all reach together.
"""

from __future__ import annotations

from functools import partial

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


def table() -> str:
    """A row per partition and method."""
    rows = []
    for study, setting in [
        (name, setting) for name in STUDIES for setting in Study.read(name).settings
    ]:
        results = read(study, setting)
        for method, found in results.items():
            if "beta" not in method:
                rows.append([setting, shown_name(method), *row(found, results["Standalone"])])
    return markdown(HEAD, rows)


HEAD = [
    "partition",
    "method",
    "mean Dice",
    "best client",
    "worst client",
    "fairness, Pearson x 100",
]


def row(found: list[Result], alone: list[Result]) -> list[str]:
    """Dice and fairness of one method."""
    means = site_means(cases(found))
    pairs = list(zip(alone, found, strict=True))
    fair = "–" if found is alone else words(over_folds(pairs, partial(_fairness)), 0)
    return [
        words(interval_of({"all": _by_case(found)})),
        f"{max(means.values()):.3f}",
        f"{min(means.values()):.3f}",
        fair,
    ]


def _by_case(found: list[Result]) -> dict[str, float]:
    """case -> mean over the clients, who are all tested with the same photographs."""
    pooled = list(cases(found).values())
    return {case: float(np.mean([scores[case] for scores in pooled])) for case in pooled[0]}


def _fairness(pairs: list[tuple[Result, Result]]) -> float:
    values = [
        100 * pearson(site_means(cases([alone])), site_means(cases([found]))).r
        for alone, found in pairs
    ]
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
