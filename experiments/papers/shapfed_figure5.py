# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed, Fig. 5, on photographs: class values beside the true class-wise Shapley value and CGSV's
one number.

Five clients hold even shares; client01's cups are drawn anywhere, client02's discs. The truth is by
reconstruction: every coalition's model of every round is scored on the validation images, for disc
and cup apart. The mean of the honest clients is 1; intervals are over folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from figures import heat_maps
from matplotlib.figure import Figure
from reading import markdown, over_folds, read, shares, words
from scipy.stats import spearmanr

STUDIES = ("class_values",)
CLASSES = ("disc", "cup")
WRONG = ("client01, cups anywhere", "client02, discs anywhere")


def table() -> str:
    """What the two wrong clients are worth, the honest ones' mean being 1.

    Below, rank correlations with the truth.
    """
    found = {
        "ShapFed, class values": class_values(),
        "CGSV, one number": cgsv(),
        "true Shapley value, ShapFed's run": truths("ShapFed"),
        "true Shapley value, CGSV's run": truths("CGSV"),
    }
    rows = []
    for name, values in found.items():
        scaled = [value / value[len(WRONG) :].mean(axis=0) for value in values]
        row = [name]
        for place in range(len(WRONG)):
            for column in range(len(CLASSES)):
                of_folds = [float(value[place, column]) for value in scaled]
                row.append(words(over_folds(of_folds, np.mean), 2))
        rows.append(row)
    head = ["worth"]
    for client in WRONG:
        head += [f"{client}: {name}" for name in CLASSES]
    introduction = (
        "Rank correlation with the true value of the method's own run, over the clients, a fold "
        "at a time:"
    )
    return f"{markdown(head, rows)}\n\n{introduction}\n\n{_correlations(found)}"


def _correlations(found: Mapping[str, Sequence[np.ndarray]]) -> str:
    """A row per method: over both classes together, and over each."""
    rows = []
    for name, method in (("ShapFed, class values", "ShapFed"), ("CGSV, one number", "CGSV")):
        folds = list(zip(found[f"true Shapley value, {method}'s run"], found[name], strict=True))
        row = [name]
        for column in (None, *range(len(CLASSES))):
            correlations = [_correlation(truth, values, column) for truth, values in folds]
            row.append(words(over_folds(correlations, np.mean), 2))
        rows.append(row)
    return markdown(["contribution", "both classes, each divided by its largest", *CLASSES], rows)


def figure() -> Figure:
    """Clients by classes, means over folds; every class divided by its largest absolute value."""
    clients = list(read("class_values")["ShapFed"][0]["samples"])
    maps = {
        "true Shapley value": np.mean(truths("ShapFed"), axis=0),
        "ShapFed, class values": np.mean(class_values(), axis=0),
        "CGSV": np.mean(cgsv(), axis=0),
    }
    return heat_maps(maps, clients, CLASSES)


def truths(strategy: str) -> list[np.ndarray]:
    """Return the true values of a strategy's own training, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")[strategy]:
        of_class = {}
        for valuation in result["valuations"].values():
            of_class[valuation["utility"]] = valuation["values"]
        rows = []
        for client in result["samples"]:
            rows.append([of_class[name][client]["value"] for name in CLASSES])
        found.append(np.array(rows))
    return found


def class_values() -> list[np.ndarray]:
    """Return ShapFed's values of the last round, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")["ShapFed"]:
        of_clients = result["class_value"]
        rows = [list(of_clients[client].values()) for client in result["samples"]]
        found.append(np.array(rows))
    return found


def cgsv() -> list[np.ndarray]:
    """Return CGSV's contributions, once for each class, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")["CGSV"]:
        worth = shares(result)
        rows = [[worth[client]] * len(CLASSES) for client in result["samples"]]
        found.append(np.array(rows))
    return found


def _correlation(truth: np.ndarray, found: np.ndarray, column: int | None) -> float:
    """Compute Spearman's correlation over one class, or over both, each scaled to its largest."""
    if column is not None:
        return float(spearmanr(truth[:, column], found[:, column]).statistic)
    scaled_truth = truth / np.abs(truth).max(axis=0)
    scaled_found = found / np.abs(found).max(axis=0)
    return float(spearmanr(scaled_truth.ravel(), scaled_found.ravel()).statistic)
