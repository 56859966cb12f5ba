# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 3: sharpness-aware local training (SALT) added to other strategies.

20 % of the clients have noise.
"""

from __future__ import annotations

from papers.fedism_table1 import HEAD, groups_of, row
from reading import difference, markdown, read, shown_name, words

STUDIES = ("quality",)
METHODS = ("FedAvg", "qFedAvg", "AFL", "FairFed", "FedCE", "FedGA")


def table() -> str:
    """Each strategy without and with it, and what it adds, case by case."""
    results = read("quality", "noise20")
    groups = groups_of("quality", "noise20")
    rows = []
    for method in METHODS:
        with_salt = f"{method}-SALT"
        cells = [shown_name(method)]
        cells += row(results, method, groups)[:2]
        cells += row(results, with_salt, groups)[:2]
        for group in ("clean", "corrupted"):
            gain = difference(results[with_salt], results[method], groups[group][:1])
            cells.append(words(gain, signed=True))
        rows.append(cells)
    head = [
        "method",
        *HEAD[:2],
        *(f"{name}, with SALT" for name in HEAD[:2]),
        "SALT adds, clean",
        "SALT adds, corrupted",
    ]
    return markdown(head, rows)
