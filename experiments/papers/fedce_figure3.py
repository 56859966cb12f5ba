# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Fig. 3: mean validation Dice over the sites by round.

Means over folds, Savitzky-Golay smoothed (11 rounds, cubic).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from figures import lines, panels
from matplotlib.figure import Figure
from reading import read, shown_name
from scipy.signal import savgol_filter

STUDIES = ("prostate", "fundus")
SHOWN = (
    ("FedAvg", "FedCE", "FedCE-sum", "CGSV", "CFFL", "FedCI", "qFedAvg"),
    ("FedAvg", "FedCE", "FedLWR", "ShapFed", "FedISM", "FedGA", "FairFed"),
)


def course(results: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Compute the mean over sites and folds of the received model's validation Dice, per round."""
    of_folds = [np.mean(list(result["global_score"].values()), axis=0) for result in results]
    return np.mean(of_folds, axis=0)


def figure() -> Figure:
    """Two panels of strategies for each task."""
    contents = list(product(STUDIES, SHOWN))
    drawn, axes = panels([study for study, _ in contents], across=2)
    for axis, (study, names) in zip(axes, contents):
        results = read(study)
        smoothed = {}
        for name in names:
            smoothed[shown_name(name)] = savgol_filter(course(results[name]), 11, 3)
        lines(axis, smoothed, "rounds done", "validation Dice", first=0)
        axis.set_ylim(0.3, 0.95)
        axis.legend(fontsize=6, loc="lower right", ncols=2)
    return drawn
