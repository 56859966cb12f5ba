# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR, Fig. 2: mean and standard deviation over sites of validation Dice, round by round; means
over folds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from figures import lines, panels
from matplotlib.figure import Figure
from reading import read, shown_name

STUDIES = ("prostate", "fundus")
SHOWN = ("FedAvg", "FedCE", "CGSV", "qFedAvg", "FedLWR")


def figure() -> Figure:
    """Mean to the left, standard deviation (ddof 0) to the right."""
    contents: list[tuple[str, str, Callable[..., Any]]] = []
    for study in STUDIES:
        contents.append((study, "mean", np.mean))
        contents.append((study, "std over sites", np.std))
    titles = [f"{study}, {what}" for study, what, _ in contents]
    drawn, axes = panels(titles, across=2, share=False)
    for axis, (study, _, over_sites) in zip(axes, contents):
        results = read(study)
        series = {}
        for name in SHOWN:
            of_folds = []
            for result in results[name]:
                scores = np.array(list(result["global_score"].values()))
                of_folds.append(over_sites(scores, axis=0))
            series[shown_name(name)] = np.mean(of_folds, axis=0)
        lines(axis, series, "rounds done", "validation Dice", first=0)
    axes[0].legend(fontsize=6)
    return drawn
