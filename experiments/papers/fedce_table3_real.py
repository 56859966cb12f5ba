# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 3 on the real prostate volumes: contributions beside leave-one-out by retraining.

The first table is the drop in mean test Dice of FedAvg trained without a hospital, fold by fold.
The second is that of Table 3: do a method's shares over its last ten rounds say the same?
"""

from __future__ import annotations

from statistics import fmean

from papers.fedce_table3 import agreement_table, drops
from reading import markdown, over_folds, read, shares, words

STUDIES = ("real_leave_one_out",)
STUDY = STUDIES[0]


def table() -> str:
    """The drops, then how far each method agrees with them."""
    return f"{_drops_table()}\n\n{agreement_table(STUDY)}"


def _drops_table() -> str:
    """A row per hospital: what leaving it out costs, and every method's share for it."""
    drops_of_folds = drops(STUDY)
    methods = read(STUDY)
    head = ["hospital", "drop in Dice without it", "fold by fold"]
    rows = []
    for site in drops_of_folds[0]:
        drops_of_site = [drops_of_fold[site] for drops_of_fold in drops_of_folds]
        by_fold = ", ".join(f"{drop:+.3f}" for drop in drops_of_site)
        rows.append([site, words(over_folds(drops_of_site, fmean), signed=True), by_fold])
    for method, results in methods.items():
        head.append(f"share, {method}")
        for row in rows:
            site = row[0]
            share = fmean([shares(result)[site] for result in results])
            row.append(f"{share:.0%}")
    return markdown(head, rows)
