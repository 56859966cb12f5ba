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
from reading import markdown, read
from study import Study

STUDIES = ("free_rider_controlled", "free_rider_dealt", "free_rider_fundus", "free_rider")
FORMS = ("product", "dissimilarity")
ROUNDS = slice(2, 10)


def table() -> str:
    """A row per study and rider."""
    rows = []
    for study, rider in ((name, rider) for name in STUDIES for rider in Study.read(name).settings):
        if not Study.read(study).missing():
            results = read(study, rider)["FedCE"]
            ratios = (
                [_ratio(results, form, rider) for form in (*FORMS, "cosine")]
                if rider != "nobody"
                else ["–"] * 3
            )
            rows.append([study, rider, *ratios, *(_flags(results, form, rider) for form in FORMS)])
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
    both = {
        name: {
            site: np.array(v, float) for site, v in result["free_riders"][name]["scores"].items()
        }
        for name in FORMS
    }
    if form != "cosine":
        return both[form]
    with np.errstate(
        invalid="ignore"
    ):  # product and dissimilarity are cos and 1 - cos times the same gap
        return {
            site: cos / (cos + both["dissimilarity"][site]) for site, cos in both["product"].items()
        }


def _ratio(results: Sequence[Mapping[str, Any]], form: str, rider: str) -> str:
    ratios = []
    for result in results:
        means = {
            site: float(np.nanmean(values[ROUNDS]))
            for site, values in _scores(result, form).items()
        }
        others = [value for site, value in means.items() if site != rider]
        ratios.append(means[rider] / (min(others) if form == "cosine" else max(others)))
    return f"{np.mean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def _flags(results: Sequence[Mapping[str, Any]], form: str, rider: str) -> str:
    """Rounds, counted from 1, in which the rider was flagged, fold by fold; and who else was, in
    how many folds.
    """
    found = [result["free_riders"][form]["flagged"] for result in results]
    rounds = [str(flags[rider] + 1) if rider in flags else "no" for flags in found]
    accused = Counter(site for flags in found for site in flags if site != rider)
    wrongly = ", ".join(f"{site} {folds}×" for site, folds in accused.most_common())
    words = [] if rider == "nobody" else [f"round {', '.join(rounds)}"]
    return "; ".join(
        [*words, f"wrongly {wrongly}" if wrongly else "nobody else" if words else "nobody"]
    )
