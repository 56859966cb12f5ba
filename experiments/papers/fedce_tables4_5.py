# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Tables 4 and 5: what a site is worth by leave-one-out, beside its share of the images.

A drop is that of the mean test Dice over all sites, of the mean over structures, when FedAvg is
trained without the site, over all folds; the paper adds the drops of disc and cup.
"""

from __future__ import annotations

from statistics import fmean

from papers.fedce_table3 import drops, mean_of
from reading import markdown, over_folds, read, words

from monai_fairfl.protocol.averages import normalise

STUDIES = ("six_prostate", "six_fundus")


def table() -> str:
    """A row per study and site."""
    rows = []
    for study in STUDIES:
        drops_of_folds = drops(study)
        worth = normalise(mean_of(drops_of_folds))
        results = read(study, "leave_one_out")["FedAvg"]
        images = mean_of([result["samples"] for result in results])
        for site, number in images.items():
            drop = over_folds([fold[site] for fold in drops_of_folds], fmean)
            rows.append(
                [
                    study,
                    site,
                    f"{number / sum(images.values()):.0%}",
                    f"{worth[site]:.0%}",
                    words(drop, 4, signed=True),
                ]
            )
    return markdown(
        ["study", "site", "share of images", "share of leave-one-out", "drop in Dice without it"],
        rows,
    )
