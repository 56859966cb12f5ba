# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed, Table 1: weighted aggregation and personalised models against FedAvg; who loses by
taking part.

Dice of the model each site would use; a loss against training alone is flagged with its interval.
Correlation over sites of Dice alone with Dice in the federation.
"""

from __future__ import annotations

from reading import cases, difference, interval_of, markdown, read, site_means, words

from monai_fairfl.statistics.fairness import pearson

STUDIES = ("prostate", "fundus")
ROWS = {
    "Standalone": "Standalone",
    "FedAvg": "FedAvg",
    "CGSV with rewards": "CGSV-rewards",
    "ShapFed-WA": "ShapFed",
    "ShapFed": "ShapFed-personalised",
}


def table() -> str:
    """A row per study and method."""
    rows = []
    for study in STUDIES:
        results = read(study)
        alone = site_means(cases(results["Standalone"]))
        for name, strategy in ROWS.items():
            pooled = cases(results[strategy])
            means = site_means(pooled)
            correlation = "–" if name == "Standalone" else f"{pearson(alone, means).r:.2f}"
            losses = {} if name == "Standalone" else _losses(results, strategy, means, alone)
            flagged = "; ".join(f"**{site}** {loss}" for site, loss in losses.items()) or "nobody"
            rows.append(
                [
                    study,
                    name,
                    words(interval_of(pooled)),
                    f"{min(means.values()):.3f}",
                    correlation,
                    flagged,
                ]
            )
    return markdown(
        [
            "study",
            "method",
            "mean Dice",
            "worst site",
            "correlation with alone",
            "who loses by taking part",
        ],
        rows,
    )


def _losses(
    results: dict, strategy: str, means: dict[str, float], alone: dict[str, float]
) -> dict[str, str]:
    return {
        site: words(difference(results[strategy], results["Standalone"], [site]), signed=True)
        for site in means
        if means[site] < alone[site]
    }
