# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 3: do a method's weights say what leave-one-out by retraining says?

Contributions are a method's shares over its last ten rounds, the reference the drop in mean test
Dice of FedAvg trained without a site. Both are averaged over folds; intervals are over folds drawn
with replacement. FedCI's are Shapley values summed from the first round on, from which its weights
follow: both have a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from reading import markdown, over_folds, read, shares, shown_name, words
from scipy.stats import spearmanr

from monai_fairfl.statistics.fairness import agreement, leave_one_out_shares

STUDIES = ("six_prostate", "six_fundus")
Fold = tuple[Mapping[str, float], Mapping[str, float]]


def table() -> str:
    """A table per task."""
    return "\n\n".join(f"`{study}`:\n\n{_of(study)}" for study in STUDIES)


def drops(study: str) -> list[dict[str, float]]:
    """Of each fold: site -> drop in mean test Dice when FedAvg is trained without it."""
    results = read(study, "leave_one_out")["FedAvg"]
    values = [next(iter(result["valuations"].values()))["values"] for result in results]
    return [{site: found["value"] for site, found in value.items()} for value in values]


def mean_of(vectors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """site -> mean over folds."""
    return {site: float(np.mean([vector[site] for vector in vectors])) for site in vectors[0]}


def _of(study: str) -> str:
    reference, rows = drops(study), []
    for strategy, results in read(study).items():
        if strategy == "FedCI":
            rows += [
                _row(
                    "FedCI, its weights",
                    [shares(result, "aggregation") for result in results],
                    reference,
                )
            ]
        if strategy != "Standalone":
            rows += [_row(shown_name(strategy), [shares(result) for result in results], reference)]
    return markdown(["strategy", *MEASURES], rows)


def _row(
    name: str, estimated: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]]
) -> list[str]:
    folds = list(zip(estimated, reference, strict=True))
    return [name, *(words(over_folds(folds, partial(_agree, measure)), 2) for measure in MEASURES)]


def _agree(measure: str, folds: Sequence[Fold]) -> float:
    estimated, lost = mean_of([own for own, _ in folds]), mean_of([drop for _, drop in folds])
    return MEASURES[measure](estimated, lost)


def _by_share(name: str, estimated: Mapping[str, float], lost: Mapping[str, float]) -> float:
    true = leave_one_out_shares(lost).shares
    value = (
        getattr(agreement(estimated, true), name)
        if np.isfinite(list(true.values())).all()
        else np.nan
    )
    return float(value / 100 if name == "pearson" else value)


def _spearman(estimated: Mapping[str, float], lost: Mapping[str, float]) -> float:
    if len(set(estimated.values())) == 1:
        return float("nan")
    return float(spearmanr([estimated[site] for site in lost], list(lost.values())).statistic)


MEASURES: Mapping[str, Any] = {
    "Pearson": partial(_by_share, "pearson"),
    "Spearman": _spearman,
    "Euclid": partial(_by_share, "euclidean"),
    "cosine": partial(_by_share, "cosine"),
}
