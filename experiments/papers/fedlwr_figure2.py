# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR, Fig. 2: mean and standard deviation over sites of validation Dice, round by round; means
over folds.
"""

from __future__ import annotations

import numpy as np
from figures import lines, panels
from matplotlib.figure import Figure
from reading import read, shown_name

STUDIES = ("prostate", "fundus")
SHOWN = ("FedAvg", "FedCE", "CGSV", "qFedAvg", "FedLWR")


def figure() -> Figure:
    """Mean to the left, standard deviation (ddof 0) to the right."""
    titles = [f"{study}, {what}" for study in STUDIES for what in ("mean", "std over sites")]
    drawn, axes = panels(titles, across=2, share=False)
    for number, axis in enumerate(axes):
        results, over_sites = read(STUDIES[number // 2]), (np.mean, np.std)[number % 2]
        series = {}
        for name in SHOWN:
            scores = [np.array(list(result["global_score"].values())) for result in results[name]]
            series[shown_name(name)] = np.mean(
                [over_sites(score, axis=0) for score in scores], axis=0
            )
        lines(axis, series, "rounds done", "validation Dice", first=0)
    axes[0].legend(fontsize=6)
    return drawn
