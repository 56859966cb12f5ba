# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed, Table 1: weighted aggregation and personalised models; who loses by taking part.

Dice of the model each site would use; a loss against training alone is flagged with its interval.
Correlation over sites of Dice alone with Dice in the federation.
"""

from __future__ import annotations

from reading import Results, cases, difference, interval_of, markdown, read, site_means, words

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
            correlation = "–"
            losers = "nobody"
            if strategy != "Standalone":
                correlation = f"{pearson(alone, means).r:.2f}"
                losers = _losers(results, strategy) or "nobody"
            rows.append(
                [
                    study,
                    name,
                    words(interval_of(pooled)),
                    f"{min(means.values()):.3f}",
                    correlation,
                    losers,
                ]
            )
    head = [
        "study",
        "method",
        "mean Dice",
        "worst site",
        "correlation with alone",
        "who loses by taking part",
    ]
    return markdown(head, rows)


def _losers(results: Results, strategy: str) -> str:
    """List the sites whose mean is below that of training alone, with the difference."""
    alone = results["Standalone"]
    found = results[strategy]
    means_alone = site_means(cases(alone))
    losers = []
    for site, mean in site_means(cases(found)).items():
        if mean < means_alone[site]:
            loss = words(difference(found, alone, [site]), signed=True)
            losers.append(f"**{site}** {loss}")
    return "; ".join(losers)
