# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR, Table 3: cosine of features (v1), one encoder layer for all (v2), and the full method.

Standard deviations of Fed-LWR's tables are of ddof 0, as in its paper; those of FedCE's tables of n
- 1.
"""

from __future__ import annotations

from reading import cases, difference, interval_of, markdown, read, site_means, words

from monai_fairfl.statistics.fairness import performance

STUDIES = ("six_prostate", "six_fundus")
ROWS = {"FedAvg": "FedAvg", "v1": "FedLWR-v1", "v2": "FedLWR-v2", "full": "FedLWR"}


def table() -> str:
    """A table per task; the gain is that of the full method, case by case."""
    return "\n\n".join(f"`{study}`:\n\n{_of_study(study)}" for study in STUDIES)


def _of_study(study: str) -> str:
    results = read(study)
    sites = list(site_means(cases(results["FedAvg"])))
    rows = []
    for name, strategy in ROWS.items():
        pooled = cases(results[strategy])
        means = site_means(pooled)
        gain = "–"
        if name != "full":
            gain = words(difference(results["FedLWR"], results[strategy]), signed=True)
        rows.append(
            [
                name,
                *(f"{means[site]:.3f}" for site in sites),
                words(interval_of(pooled)),
                f"{performance(means, ddof=0).std:.3f}",
                gain,
            ]
        )
    return markdown(
        ["version", *sites, "mean Dice", "std", "gain of the full method over it"], rows
    )
