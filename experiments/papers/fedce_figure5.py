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
        everybody = [shares(result) for result in read(whole)["FedCE"]]
        for setting in Study.read(study).settings:
            folds = list(
                zip(
                    everybody,
                    [shares(result) for result in read(study, setting)["FedCE"]],
                    strict=True,
                )
            )
            before, after = _means(folds)
            most = max(after, key=lambda site: abs(after[site] - before[site]))
            cells = [
                words(over_folds(folds, statistic), digits)
                for statistic, digits in ((_pearson, 2), (_change, 3))
            ]
            rows.append(
                [
                    whole,
                    setting.removeprefix("without_"),
                    *cells,
                    f"{most}, {after[most] - before[most]:+.3f}",
                ]
            )
    return markdown(
        ["study", "left out", "Pearson", "mean change of a share", "largest change"], rows
    )


def _means(folds: Sequence[Fold]) -> Fold:
    """Means over folds of the others' shares, before, divided by their sum, and after."""
    everybody, after = mean_of([whole for whole, _ in folds]), mean_of(
        [without for _, without in folds]
    )
    rest = sum(everybody[site] for site in after)
    return {site: everybody[site] / rest for site in after}, after


def _pearson(folds: Sequence[Fold]) -> float:
    before, after = _means(folds)
    return float(pearsonr(list(before.values()), list(after.values())).statistic)


def _change(folds: Sequence[Fold]) -> float:
    before, after = _means(folds)
    return float(np.mean([abs(after[site] - before[site]) for site in after]))
