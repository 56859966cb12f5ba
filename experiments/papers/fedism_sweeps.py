# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, sweeps of q (how much the sharpest client counts) and beta (how fast weights follow).

20 % of the clients have noise.
"""

from __future__ import annotations

import numpy as np
from papers.fedism_table1 import HEAD, groups_of, row
from reading import markdown, over_folds, read, shares, words

STUDIES = ("quality",)
SWEEPS = {
    "q": {
        "0.5": "FedISM-q0.5",
        "1": "FedISM-q1",
        "2": "FedISM",
        "5": "FedISM-q5",
    },
    "beta": {
        "0.1": "FedISM-beta0.1",
        "0.3": "FedISM-beta0.3",
        "0.5": "FedISM",
        "0.7": "FedISM-beta0.7",
        "1": "FedISM-beta1",
    },
}


def table() -> str:
    """A row per value; the defaults, 2 and 0.5, are in both."""
    results = read("quality", "noise20")
    groups = groups_of("quality", "noise20")
    rows = []
    for name, values in SWEEPS.items():
        for value, method in values.items():
            weights = []
            for result in results[method]:
                share = shares(result)
                weights.append(sum(share[site] for site in groups["corrupted"]))
            weight = words(over_folds(weights, np.mean), 2)
            rows.append([name, value, *row(results, method, groups), weight])
    return markdown(["parameter", "value", *HEAD, "weight of the two corrupted clients"], rows)
