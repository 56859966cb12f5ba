# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven hospitals: what fair methods add to uniform weights, which need no method at all."""

from __future__ import annotations

import uneven
from papers.uneven_prostate import SMALL
from reading import hierarchical_difference, markdown, shown_name, words

STUDIES = ("uneven_prostate",)
UNIFORM = "FedAvg-uniform"
METHODS = ("FedCE", "FedCE-sum", "ShapFed-paper", "FedLWR-paper", "FedLWR-released")
"""Those that change only the weights of the average, and train in the same precision."""


def table() -> str:
    """A row per method: Dice minus that of uniform weights, received and used."""
    found = uneven.complete(STUDIES[0])
    rows = []
    for method in METHODS:
        row = [shown_name(method)]
        for model in uneven.MODELS:
            one, other = (uneven.by_seed(found[name], model) for name in (method, UNIFORM))
            of_small = (uneven.only(one, SMALL), uneven.only(other, SMALL))
            row.append(words(hierarchical_difference(one, other), signed=True))
            row.append(words(hierarchical_difference(*of_small), signed=True))
        rows.append(row)
    head = ["method"]
    for name in uneven.MODELS.values():
        head += [f"mean, {name}", f"{SMALL}, {name}"]
    return markdown(head, rows)
