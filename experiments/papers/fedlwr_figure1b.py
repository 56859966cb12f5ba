# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR, Fig. 1b: similarity (CKA) between each site's own model and the average, layer by layer.

Mean over the last ten rounds and all folds. The paper shows that layers differ, and sites differ
most in deep ones.
"""

from __future__ import annotations

import numpy as np
from figures import panels
from matplotlib.figure import Figure
from reading import read

STUDIES = ("prostate", "fundus")


def figure() -> Figure:
    """Convolutions in forward order, one line per site."""
    drawn, axes = panels(STUDIES, across=2, height=2.6)
    for axis, study in zip(axes, STUDIES):
        results = read(study)["FedLWR"]
        for site, by_layer in results[0]["cka"].items():
            values = []
            for layer in by_layer:
                if layer.endswith("conv"):
                    of_folds = [result["cka"][site][layer] for result in results]
                    values.append(np.mean(of_folds))
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=site)
        axis.set_xlabel("convolution, from input to output")
        axis.set_ylabel("CKA with the average model")
        axis.legend(fontsize=6)
    return drawn
