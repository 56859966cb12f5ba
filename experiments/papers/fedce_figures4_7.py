# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Figs 4 and 7: a site repeats one image: is it found, and is anybody else accused?

The rider's score divided by the highest of the others', mean over rounds 3 to 10 and over folds,
for FedCE's product, for the product with the dissimilarity, and for the cosine with the global
update alone (divided by the lowest of the others': a rider should be low). A flag is a score above
five times the median of the others in three rounds running, as fixed beforehand.
`free_rider_controlled` is as in the paper: one image, always the same view, about forty steps a
round; `free_rider_dealt` is the same with the photographs dealt evenly, so that no clinic is
unusual; `free_rider_fundus` has a twentieth to a fifth of the steps and changing views; in
`free_rider` the rider repeats one volume, and everybody augments. In brackets: the smallest and
largest fold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from figures import lines, panels
from matplotlib.figure import Figure
from reading import NotFinished, markdown, read
from study import Study

STUDIES = ("free_rider_controlled", "free_rider_dealt", "free_rider_fundus", "free_rider")
FORMS = ("product", "dissimilarity")
ROUNDS = slice(2, 10)  # rounds 3 to 10
NOBODY = "nobody"  # the setting without a rider


def table() -> str:
    """A row per study and rider."""
    rows = []
    for name in STUDIES:
        for rider in Study.read(name).settings:
            try:
                results = read(name, rider)["FedCE"]
            except NotFinished:
                continue
            row = [name, rider]
            for form in (*FORMS, "cosine"):
                row.append(_ratio(results, form, rider))
            for form in FORMS:
                row.append(_flags(results, form, rider))
            rows.append(row)
    head = [
        "study",
        "rider",
        "product",
        "dissimilarity",
        "cosine",
        "flagged by product",
        "flagged by dissimilarity",
    ]
    return markdown(head, rows)


def figure() -> Figure:
    """The product by round, first fold, a panel per rider."""
    riders = list(Study.read(STUDIES[0]).settings)
    drawn, axes = panels([f"rider: {rider}" for rider in riders], across=4)
    for axis, rider in zip(axes, riders):
        scores = read(STUDIES[0], rider)["FedCE"][0]["free_riders"]["product"]["scores"]
        lines(axis, scores, y="score")
    axes[0].legend(fontsize=6)
    return drawn


def _scores(result: Mapping[str, Any], form: str) -> dict[str, np.ndarray]:
    """Return the scores of every site by round."""
    if form != "cosine":
        return _recorded_scores(result, form)
    # Product and dissimilarity are cos and 1 - cos times the same gap.
    products = _recorded_scores(result, "product")
    dissimilarities = _recorded_scores(result, "dissimilarity")
    cosines = {}
    with np.errstate(invalid="ignore"):
        for site, product in products.items():
            cosines[site] = product / (product + dissimilarities[site])
    return cosines


def _recorded_scores(result: Mapping[str, Any], form: str) -> dict[str, np.ndarray]:
    scores = result["free_riders"][form]["scores"]
    return {site: np.array(values, float) for site, values in scores.items()}


def _ratio(results: Sequence[Mapping[str, Any]], form: str, rider: str) -> str:
    """Describe the rider's score over the highest of the others' (of cosines the lowest)."""
    if rider == NOBODY:
        return "–"
    ratios = []
    for result in results:
        means = {}
        for site, values in _scores(result, form).items():
            means[site] = float(np.nanmean(values[ROUNDS]))
        of_rider = means.pop(rider)
        if form == "cosine":
            ratios.append(of_rider / min(means.values()))
        else:
            ratios.append(of_rider / max(means.values()))
    return f"{np.mean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def _flags(results: Sequence[Mapping[str, Any]], form: str, rider: str) -> str:
    """Describe in which folds and rounds the rider was flagged first, and who else was flagged.

    Rounds are counted from 1; of others the number of folds is given.
    """
    found = []
    accused: Counter[str] = Counter()
    for result in results:
        flagged = dict(result["free_riders"][form]["flagged"])
        if rider in flagged:
            found.append(str(flagged.pop(rider) + 1))
        accused.update(flagged.keys())
    others = "nobody else"
    if rider == NOBODY:
        others = "nobody"
    if accused:
        names = [f"{site} in {_folds(folds)}" for site, folds in accused.most_common()]
        others = "wrongly: " + ", ".join(names)
    if rider == NOBODY:
        return others
    if not found:
        return f"rider in no fold; {others}"
    noun = "round" if len(found) == 1 else "rounds"
    return f"rider in {len(found)} of {_folds(len(results))}: {noun} {', '.join(found)}; {others}"


def _folds(number: int) -> str:
    """Return the number with its noun.

    >>> _folds(1), _folds(3)
    ('1 fold', '3 folds')
    """
    if number == 1:
        return "1 fold"
    return f"{number} folds"
