# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Fig. 6: the two terms alone, their product, their sum.

Mean test Dice with interval, standard deviation over sites, worst site. Of `prostate` all four
folds.
"""

from __future__ import annotations

from reading import cases, difference, interval_of, joined, markdown, site_means, words

from monai_fairfl.statistics.fairness import performance

STUDIES = ("six_prostate", "six_fundus", "prostate", "prostate_other_folds", "fundus")
FOLDS = {
    "six_prostate": ["six_prostate"],
    "six_fundus": ["six_fundus"],
    "prostate": ["prostate", "prostate_other_folds"],
    "fundus": ["fundus"],
}
"""A row's study -> the studies that have its folds."""
MODES = {"cos": "FedCE-cos", "err": "FedCE-err", "multi": "FedCE", "sum": "FedCE-sum"}


def table() -> str:
    """A row per study and mode; on the real images product and sum alone were trained."""
    rows = []
    for study, folds in FOLDS.items():
        results = joined(*folds)
        for mode, strategy in MODES.items():
            if strategy not in results:
                continue
            pooled = cases(results[strategy])
            summary = performance(site_means(pooled))
            gain = difference(results[strategy], results["FedAvg"])
            rows.append(
                [
                    study,
                    mode,
                    words(interval_of(pooled)),
                    f"{summary.std:.3f}",
                    f"{summary.worst:.3f} ({summary.worst_client})",
                    words(gain, signed=True),
                ]
            )
    return markdown(["study", "mode", "mean Dice", "std", "worst site", "gain over FedAvg"], rows)
