# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR, Tables 1 and 2: mean Dice of every site, average, standard deviation over sites (ddof 0,
as there).
"""

from __future__ import annotations

from reading import cases, interval_of, markdown, read, shown_name, site_means, words

from monai_fairfl.statistics.fairness import performance
from monai_fairfl.statistics.intervals import Interval

STUDIES = ("prostate", "fundus")
SHOWN = ("Standalone", "FedAvg", "qFedAvg", "CFFL", "CGSV", "Ditto", "FedCE-sum", "FedCE", "FedLWR")


def table() -> str:
    """In the paper's layout, Dice in percent."""
    return "\n\n".join(f"{study.capitalize()}:\n\n{_of(study)}" for study in STUDIES)


def _of(study: str) -> str:
    results, rows = read(study), []
    for strategy in SHOWN:
        pooled = cases(results[strategy])
        means = site_means(pooled)
        summary = performance(means, ddof=0)
        average = words(Interval(*(100 * end for end in interval_of(pooled))), 2)
        of_sites = [f"{100 * mean:.2f}" for mean in means.values()]
        rows.append([shown_name(strategy), *of_sites, average, f"{100 * summary.std:.2f}"])
    return markdown(["method", *means, "average", "std"], rows)
