# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 3: sharpness-aware local training (SALT) added to other strategies; 20 % of the
clients with noise.
"""

from __future__ import annotations

from papers.fedism_table1 import HEAD, groups_of, row
from reading import difference, markdown, read, shown_name, words

STUDIES = ("quality",)
METHODS = ("FedAvg", "qFedAvg", "AFL", "FairFed", "FedCE", "FedGA")


def table() -> str:
    """Each strategy without and with it, and what it adds, case by case."""
    results, groups, rows = read("quality", "noise20"), groups_of("quality", "noise20"), []
    for method in METHODS:
        added = [
            words(
                difference(results[f"{method}-SALT"], results[method], groups[group][:1]),
                signed=True,
            )
            for group in ("clean", "corrupted")
        ]
        without = row(results, method, groups)[:2]
        with_it = row(results, f"{method}-SALT", groups)[:2]
        rows.append([shown_name(method), *without, *with_it, *added])
    head = [
        "method",
        *HEAD[:2],
        *(f"{name}, with SALT" for name in HEAD[:2]),
        "SALT adds, clean",
        "SALT adds, corrupted",
    ]
    return markdown(head, rows)
