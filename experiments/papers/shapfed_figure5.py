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
from reading import Result, markdown, over_folds, read, shares, words
from scipy.stats import spearmanr

STUDIES = ("class_values",)
CLASSES = ("disc", "cup")
WRONG = ("client01, cups anywhere", "client02, discs anywhere")


def table() -> str:
    """What the two wrong clients are worth, the honest ones' mean being 1; then rank correlations
    with the truth.
    """
    found = {"ShapFed, class values": class_values(), "CGSV, one number": cgsv()}
    found |= {f"true Shapley value, {name}'s run": truths(name) for name in ("ShapFed", "CGSV")}
    rows = []
    for name, values in found.items():
        scaled = [value / value[len(WRONG) :].mean(axis=0) for value in values]
        cells = [
            over_folds([float(value[c, k]) for value in scaled], np.mean)
            for c in (0, 1)
            for k in (0, 1)
        ]
        rows.append([name, *(words(cell, 2) for cell in cells)])
    worth = markdown(
        ["worth", *(f"{client}: {name}" for client in WRONG for name in CLASSES)], rows
    )
    what = "Rank correlation with the true value of the method's own run, over the clients, a fold at a time:"
    return f"{worth}\n\n{what}\n\n{_correlations(found)}"


def _correlations(found: Mapping[str, Sequence[np.ndarray]]) -> str:
    rows = []
    for name in list(found)[:2]:
        pairs = list(
            zip(
                found[f"true Shapley value, {name.partition(',')[0]}'s run"],
                found[name],
                strict=True,
            )
        )
        whole = over_folds([_agreement(*pair) for pair in pairs], np.mean)
        each = [
            over_folds([_agreement(*pair, column) for pair in pairs], np.mean) for column in (0, 1)
        ]
        rows.append([name, *(words(cell, 2) for cell in (whole, *each))])
    return markdown(["contribution", "both classes, each divided by its largest", *CLASSES], rows)


def figure() -> Figure:
    """Clients by classes, means over folds; every class divided by its largest absolute value."""
    clients = list(read("class_values")["ShapFed"][0]["samples"])
    names = {
        "true Shapley value": truths("ShapFed"),
        "ShapFed, class values": class_values(),
        "CGSV": cgsv(),
    }
    return heat_maps(
        {name: np.mean(found, axis=0) for name, found in names.items()}, clients, CLASSES
    )


def truths(strategy: str) -> list[np.ndarray]:
    """Of a strategy's own training, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")[strategy]:
        of_class = {
            valuation["utility"]: valuation["values"] for valuation in result["valuations"].values()
        }
        found.append(
            np.array([[of_class[name][c]["value"] for name in CLASSES] for c in result["samples"]])
        )
    return found


def class_values() -> list[np.ndarray]:
    """ShapFed's, of the last round."""
    results = read("class_values")["ShapFed"]
    return [
        np.array([list(result["class_value"][c].values()) for c in result["samples"]])
        for result in results
    ]


def cgsv() -> list[np.ndarray]:
    """CGSV's contribution, once for each class."""
    return [
        np.array([[value] * len(CLASSES) for value in _in_order(result)])
        for result in read("class_values")["CGSV"]
    ]


def _in_order(result: Result) -> Sequence[float]:
    worth: Mapping[str, float] = shares(result)
    return [worth[client] for client in result["samples"]]


def _agreement(truth: np.ndarray, found: np.ndarray, column: int | None = None) -> float:
    if column is not None:
        return float(spearmanr(truth[:, column], found[:, column]).statistic)
    scaled = [values / np.abs(values).max(axis=0) for values in (truth, found)]
    return float(spearmanr(*(values.ravel() for values in scaled)).statistic)
