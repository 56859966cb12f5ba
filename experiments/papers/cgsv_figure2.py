# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, Fig. 2: five even shares, three clients with 20, 40 and 60 % wrong labels.

In what order do contributions come? The reward is the share of the step's entries that a client
receives, tanh(r) / max tanh(r); the distance is that of its model from the server's at the end,
over all weights.
"""

from __future__ import annotations

import numpy as np
from figures import lines, panels
from matplotlib.figure import Figure
from reading import cases, interval_of, markdown, over_folds, read, shares, words

STUDIES = ("wrong_labels",)
WRONG = {
    "client01": "20 %",
    "client02": "40 %",
    "client03": "60 %",
    "client04": "none",
    "client05": "none",
}


def table() -> str:
    """A row per client."""
    results, rows = read("wrong_labels"), []
    own = {name: cases(found) for name, found in results.items()}
    worth = {n: [shares(result) for result in results[n]] for n in ("CGSV", "ShapFed", "FedCE")}
    for client, wrong in WRONG.items():
        reward = [
            np.tanh(each[client]) / max(np.tanh(list(each.values()))) for each in worth["CGSV"]
        ]
        contributions = [
            words(over_folds([each[client] for each in found], np.mean)) for found in worth.values()
        ]
        distances = [result["distance"][client] for result in results["CGSV"]]
        others = [words(over_folds(values, np.mean), 2) for values in (reward, distances)]
        dice = [
            words(interval_of({client: own[name][client]}))
            for name in ("Standalone", "FedAvg", "CGSV")
        ]
        rows.append([client, wrong, *contributions, *others, *dice])
    head = [
        "client",
        "wrong labels",
        "CGSV",
        "ShapFed",
        "FedCE",
        "reward",
        "distance from the server's model",
    ]
    return markdown([*head, "Dice alone", "Dice, FedAvg", "Dice, CGSV"], rows)


def figure() -> Figure:
    """CGSV's contributions by round, a panel per fold."""
    results = read("wrong_labels")["CGSV"]
    drawn, axes = panels([f"fold {result['fold']}" for result in results])
    for axis, result in zip(axes, results):
        lines(
            axis,
            {f"{wrong} wrong ({c})": result["contributions"][c] for c, wrong in WRONG.items()},
            y="contribution",
        )
    axes[0].legend(fontsize=6)
    return drawn
