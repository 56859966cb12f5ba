# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Fig. 5: do the others' contributions keep their proportions when one site is left out?

The paper shows that they do: they change by less than 1 %. Shares of the run with all sites,
without the one left out and divided by their sum, beside those of the run without it; means over
folds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from papers.fedce_table3 import Fold, mean_of
from reading import markdown, over_folds, read, shares, words
from scipy.stats import pearsonr
from study import Study

STUDIES = ("without_one", "without_one_fundus", "six_prostate", "six_fundus")
WHOLE = {"without_one": "six_prostate", "without_one_fundus": "six_fundus"}


def table() -> str:
    """A row per site left out."""
    rows = []
    for study, whole in WHOLE.items():
        with_all = [shares(result) for result in read(whole)["FedCE"]]
        for setting in Study.read(study).settings:
            without_one = [shares(result) for result in read(study, setting)["FedCE"]]
            folds = list(zip(with_all, without_one, strict=True))
            site, change = _largest_change(folds)
            rows.append(
                [
                    whole,
                    setting.removeprefix("without_"),
                    words(over_folds(folds, _pearson), 2),
                    words(over_folds(folds, _mean_change), 3),
                    f"{site}, {change:+.3f}",
                ]
            )
    return markdown(
        ["study", "left out", "Pearson", "mean change of a share", "largest change"], rows
    )


def _means(folds: Sequence[Fold]) -> Fold:
    """Average the others' shares over folds.

    Returns:
        Those of the run with all sites, divided by their sum, and those of the run without one.
    """
    with_all = mean_of([whole for whole, _ in folds])
    without_one = mean_of([without for _, without in folds])
    sum_of_others = sum(with_all[site] for site in without_one)
    rescaled = {site: with_all[site] / sum_of_others for site in without_one}
    return rescaled, without_one


def _pearson(folds: Sequence[Fold]) -> float:
    expected, found = _means(folds)
    return float(pearsonr(list(expected.values()), list(found.values())).statistic)


def _mean_change(folds: Sequence[Fold]) -> float:
    expected, found = _means(folds)
    return float(np.mean([abs(found[site] - expected[site]) for site in found]))


def _largest_change(folds: Sequence[Fold]) -> tuple[str, float]:
    expected, found = _means(folds)
    changes = {site: found[site] - expected[site] for site in found}
    site = max(changes, key=lambda each: abs(changes[each]))
    return site, changes[site]
