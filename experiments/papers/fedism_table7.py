# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 7: sharpness of the last global model at each client.

Mean and standard deviation over the clients. Radius 0.05, on the training images, thousandths of
the loss. 20 % of the clients with noise; mean over folds, with the smallest and largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from papers.fedism_table1 import METHODS, groups_of
from reading import closing, markdown, read, shown_name

STUDIES = ("quality",)


def table() -> str:
    """A row per method."""
    results = read("quality", "noise20")
    groups = groups_of("quality", "noise20")
    rows = []
    for method in (*METHODS, "FedAvg-SALT", "SAGA"):
        found = [closing(result, "sharpness") for result in results[method]]
        row = [shown_name(method)]
        for statistic in (np.mean, np.std):
            row.append(_in_thousandths([_of_sites(each, list(each), statistic) for each in found]))
        for sites in groups.values():
            row.append(_in_thousandths([_of_sites(each, sites, np.mean) for each in found]))
        rows.append(row)
    of_groups = [f"{group} clients" for group in groups]
    return markdown(["method", "mean", "std over clients (ddof 0)", *of_groups], rows)


def _of_sites(
    sharpness: Mapping[str, float], sites: Sequence[str], statistic: Callable[..., Any]
) -> float:
    """Compute the statistic of some sites' sharpness in one fold."""
    return float(statistic([sharpness[site] for site in sites]))


def _in_thousandths(folds: list[float]) -> str:
    """Write the mean over folds, with the smallest and the largest."""
    values = [1000 * value for value in folds]
    return f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
