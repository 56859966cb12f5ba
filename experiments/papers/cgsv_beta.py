# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV's beta, how unequal the rewards are: Dice and fairness on the power-law partition.

The paper shows that a small beta is fairer, and a large one serves everybody better; 1e7 gives
everybody everything.
"""

from __future__ import annotations

from papers.cgsv_partitions import HEAD, row
from reading import markdown, read

STUDIES = ("rewards",)
BETAS = {
    "0.5": "CGSV-beta0.5",
    "1": "CGSV",
    "1.2": "CGSV-beta1.2",
    "1.5": "CGSV-beta1.5",
    "2": "CGSV-beta2",
    "1e7": "CGSV-beta1e7",
}


def table() -> str:
    """A row per value."""
    results = read("rewards", "power_law")
    rows = []
    for beta, method in BETAS.items():
        rows.append([beta, *row(results[method], results["Standalone"])])
    return markdown(["beta", *HEAD[2:]], rows)
