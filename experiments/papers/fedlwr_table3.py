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
    return "\n\n".join(f"`{study}`:\n\n{_of(study)}" for study in STUDIES)


def _of(study: str) -> str:
    results, rows = read(study), []
    for name, strategy in ROWS.items():
        pooled = cases(results[strategy])
        means = site_means(pooled)
        gain = (
            words(difference(results["FedLWR"], results[strategy]), signed=True)
            if name != "full"
            else "–"
        )
        sites = [f"{mean:.3f}" for mean in means.values()]
        rows.append(
            [
                name,
                *sites,
                words(interval_of(pooled)),
                f"{performance(means, ddof=0).std:.3f}",
                gain,
            ]
        )
    return markdown(
        ["version", *means, "mean Dice", "std", "gain of the full method over it"], rows
    )
