# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 7: sharpness of the last global model at each client: mean and standard deviation
over the clients.

Radius 0.05, on the training images, thousandths of the loss. 20 % of the clients with noise; mean
over folds, with the smallest and largest.
"""

from __future__ import annotations

import numpy as np
from papers.fedism_table1 import METHODS, groups_of
from reading import closing, markdown, read, shown_name

STUDIES = ("quality",)


def table() -> str:
    """A row per method."""
    results, groups, rows = read("quality", "noise20"), groups_of("quality", "noise20"), []
    for method in (*METHODS, "FedAvg-SALT", "SAGA"):
        found = [closing(result, "sharpness") for result in results[method]]
        cells = [
            _words([statistic(list(each.values())) for each in found])
            for statistic in (np.mean, np.std)
        ]
        cells += [
            _words([np.mean([each[site] for site in sites]) for each in found])
            for sites in groups.values()
        ]
        rows.append([shown_name(method), *cells])
    return markdown(
        ["method", "mean", "std over clients (ddof 0)", *(f"{group} clients" for group in groups)],
        rows,
    )


def _words(values: list[float]) -> str:
    thousandths = [1000 * float(value) for value in values]
    return f"{np.mean(thousandths):.1f} ({min(thousandths):.1f} to {max(thousandths):.1f})"
