# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR, Tables 1 and 2: mean Dice of every site, average, and deviation over sites.

Standard deviations are of ddof 0, as there.
"""

from __future__ import annotations

from reading import cases, interval_of, markdown, read, shown_name, site_means, words

from monai_fairfl.statistics.fairness import performance
from monai_fairfl.statistics.intervals import Interval

STUDIES = ("prostate", "fundus")
SHOWN = ("Standalone", "FedAvg", "qFedAvg", "CFFL", "CGSV", "Ditto", "FedCE-sum", "FedCE", "FedLWR")


def table() -> str:
    """In the paper's layout, Dice in percent."""
    return "\n\n".join(f"{study.capitalize()}:\n\n{_of_study(study)}" for study in STUDIES)


def _of_study(study: str) -> str:
    results = read(study)
    sites = list(site_means(cases(results[SHOWN[0]])))
    rows = []
    for strategy in SHOWN:
        pooled = cases(results[strategy])
        means = site_means(pooled)
        average = interval_of(pooled)
        in_percent = Interval(100 * average.estimate, 100 * average.low, 100 * average.high)
        rows.append(
            [
                shown_name(strategy),
                *(f"{100 * means[site]:.2f}" for site in sites),
                words(in_percent, 2),
                f"{100 * performance(means, ddof=0).std:.2f}",
            ]
        )
    return markdown(["method", *sites, "average", "std"], rows)
