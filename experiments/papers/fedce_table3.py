# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 3: do a method's weights agree with leave-one-out by retraining?

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

from monai_fairfl.protocol.averages import normalise
from monai_fairfl.statistics.fairness import agreement

STUDIES = ("six_prostate", "six_fundus")
Fold = tuple[Mapping[str, float], Mapping[str, float]]


def table() -> str:
    """A table per task."""
    return "\n\n".join(f"`{study}`:\n\n{agreement_table(study)}" for study in STUDIES)


def drops(study: str) -> list[dict[str, float]]:
    """Return the drop in mean test Dice, in each fold, when FedAvg is trained without a site."""
    drops_of_folds = []
    for result in read(study, "leave_one_out")["FedAvg"]:
        valuation = next(iter(result["valuations"].values()))
        drops_of_folds.append({site: found["value"] for site, found in valuation["values"].items()})
    return drops_of_folds


def mean_of(vectors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each site's values over folds."""
    means = {}
    for site in vectors[0]:
        means[site] = float(np.mean([vector[site] for vector in vectors]))
    return means


def agreement_table(study: str) -> str:
    """A row per method: how far its contributions agree with the drops of this study."""
    reference = drops(study)
    rows = []
    for strategy, results in read(study).items():
        if strategy == "Standalone":
            continue
        if strategy == "FedCI":
            weights = [shares(result, "aggregation") for result in results]
            rows.append(_row("FedCI, its weights", weights, reference))
        contributions = [shares(result) for result in results]
        rows.append(_row(shown_name(strategy), contributions, reference))
    return markdown(["strategy", *MEASURES], rows)


def _row(
    name: str, estimated: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]]
) -> list[str]:
    folds = list(zip(estimated, reference, strict=True))
    row = [name]
    for measure in MEASURES:
        row.append(words(over_folds(folds, partial(agree, measure)), 2))
    return row


def agree(measure: str, folds: Sequence[Fold]) -> float:
    """Compute one measure of agreement between the means over these folds."""
    estimated = mean_of([estimate for estimate, _ in folds])
    lost = mean_of([drop for _, drop in folds])
    return MEASURES[measure](estimated, lost)


def _by_share(name: str, estimated: Mapping[str, float], lost: Mapping[str, float]) -> float:
    if not any(drop > 0 for drop in lost.values()):
        return float("nan")
    # A site whose absence helps counts as 0.
    value = getattr(agreement(estimated, normalise(lost)), name)
    if name == "pearson":
        value = value / 100
    return float(value)


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
