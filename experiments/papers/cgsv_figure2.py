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
from reading import Result, cases, interval_of, markdown, over_folds, read, shares, words

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
    results = read("wrong_labels")
    own = {name: cases(found) for name, found in results.items()}
    rows = []
    for client, wrong in WRONG.items():
        row = [client, wrong]
        for method in ("CGSV", "ShapFed", "FedCE"):
            of_folds = [shares(result)[client] for result in results[method]]
            row.append(words(over_folds(of_folds, np.mean)))
        rewards = [_rewards(result)[client] for result in results["CGSV"]]
        row.append(words(over_folds(rewards, np.mean), 2))
        distances = [result["distance"][client] for result in results["CGSV"]]
        row.append(words(over_folds(distances, np.mean), 2))
        for method in ("Standalone", "FedAvg", "CGSV"):
            row.append(words(interval_of({client: own[method][client]})))
        rows.append(row)
    head = [
        "client",
        "wrong labels",
        "CGSV",
        "ShapFed",
        "FedCE",
        "reward",
        "distance from the server's model",
        "Dice alone",
        "Dice, FedAvg",
        "Dice, CGSV",
    ]
    return markdown(head, rows)


def _rewards(result: Result) -> dict[str, float]:
    """Compute the share of the step that every client receives: tanh(r) / max tanh(r)."""
    worth = shares(result)
    largest = max(np.tanh(list(worth.values())))
    return {client: np.tanh(share) / largest for client, share in worth.items()}


def figure() -> Figure:
    """CGSV's contributions by round, a panel per fold."""
    results = read("wrong_labels")["CGSV"]
    drawn, axes = panels([f"fold {result['fold']}" for result in results])
    for axis, result in zip(axes, results):
        series = {}
        for client, wrong in WRONG.items():
            series[f"{wrong} wrong ({client})"] = result["contributions"][client]
        lines(axis, series, y="contribution")
    axes[0].legend(fontsize=6)
    return drawn
