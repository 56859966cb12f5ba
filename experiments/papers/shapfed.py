# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed: Table 1, Figs 3 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from agreement import pearson
from figures import heat_maps
from matplotlib.figure import Figure
from reading import (
    NOTHING,
    cases,
    difference,
    interval_of,
    markdown,
    measurement,
    over_folds,
    read,
    shares,
    site_means,
    words,
)
from scipy.stats import spearmanr

# --- Fig. 3: a toy of two blocks of three classes, two clients each

CLIENTS = ["client 1", "client 2*", "client 3", "client 4"]
WRONG_CLIENT, WRONG_CLASS = 1, 1
"""Client 2's samples of class 2 carry labels drawn from the others."""


def figure3_table() -> str:
    """Class values (CSSV) and CGSV's one number beside the truth; means over ten seeds.

    The truth is the Shapley value of every class's accuracy, by averaging coalitions' updates.
    """
    found = {}
    for name, values in measurement("shapfed_figure3").items():
        # Seed x client x class.
        found[name] = np.array(values)
    means = {name: found[name].mean(axis=0) for name in ("truth for CSSV", "CSSV", "CGSV")}
    rows = []
    for row, name in enumerate(CLIENTS):
        cells = []
        for true, value in zip(means["truth for CSSV"][row], means["CSSV"][row]):
            cells.append(f"{true:+.2f} / {value:+.2f}")
        rows.append([name, *cells, f"{means['CGSV'][row, 0]:.2f}"])
    classes = [f"class {index + 1}, truth / CSSV" for index in range(means["CSSV"].shape[1])]
    values = markdown(["", *classes, "CGSV"], rows)

    truth = found["truth for CSSV"]
    own_mean = np.broadcast_to(truth.mean(axis=2, keepdims=True), truth.shape)
    compared = {
        "CSSV": (found["CSSV"], truth),
        "CGSV": (found["CGSV"], found["truth for CGSV"]),
        "the truth's own mean per client": (own_mean, truth),
    }
    rows = []
    for name, (of_method, true) in compared.items():
        last_in_class = of_method[:, :, WRONG_CLASS].argmin(axis=1)
        last = f"{(last_in_class == WRONG_CLIENT).sum()} of {len(of_method)}"
        of_clients = _rank_correlation(of_method.mean(axis=2), true.mean(axis=2))
        rows.append([name, _rank_correlation(of_method, true), of_clients, last])
    head = ["rank correlation with the truth", "over pairs of client and class", "over clients"]
    agreement = markdown([*head, "client 2 is last in class 2"], rows)
    return f"{values}\n\n\\* wrong labels in class {WRONG_CLASS + 1}\n\n{agreement}"


def _rank_correlation(values: np.ndarray, true: np.ndarray) -> str:
    """Compute the mean over the seeds of Spearman's correlation over all entries."""
    of_seeds = [spearmanr(*map(np.ravel, pair)).statistic for pair in zip(values, true)]
    return words(over_folds(of_seeds), 2)


# --- Fig. 5: photographs, five even shares

CLASSES = ("disc", "cup")
WRONG = ("client01, cups anywhere", "client02, discs anywhere")


def figure5_table() -> str:
    """What the two clients with wrong labels are worth, the honest ones' mean being 1.

    Class values beside CGSV's one number and the true class-wise Shapley value, by reconstruction:
    every coalition's model of every round is scored on the validation images. Intervals are over
    folds. Below, rank correlations with the truth.
    """
    found = {
        "ShapFed, class values": class_values(),
        "CGSV, one number": _cgsv(),
        "true Shapley value, ShapFed's run": _truth("ShapFed"),
        "true Shapley value, CGSV's run": _truth("CGSV"),
    }
    rows = []
    for name, values in found.items():
        scaled = [value / value[len(WRONG) :].mean(axis=0) for value in values]
        row = [name]
        for place in range(len(WRONG)):
            for column in range(len(CLASSES)):
                of_folds = [float(value[place, column]) for value in scaled]
                row.append(words(over_folds(of_folds), 2))
        rows.append(row)
    head = ["worth", *(f"{client}: {name}" for client in WRONG for name in CLASSES)]
    worth = markdown(head, rows)

    rows = []
    for name, method in (("ShapFed, class values", "ShapFed"), ("CGSV, one number", "CGSV")):
        folds = list(zip(found[f"true Shapley value, {method}'s run"], found[name], strict=True))
        row = [name]
        for columns in (slice(None), slice(0, 1), slice(1, 2)):
            of_folds = []
            for pair in folds:
                scaled = [each[:, columns] / np.abs(each[:, columns]).max(axis=0) for each in pair]
                of_folds.append(float(spearmanr(*map(np.ravel, scaled)).statistic))
            row.append(words(over_folds(of_folds), 2))
        rows.append(row)
    head = ["contribution", "both classes, each divided by its largest", *CLASSES]
    below = (
        "Rank correlation with the true value of the method's own run, over the clients, a fold "
        "at a time:"
    )
    return f"{worth}\n\n{below}\n\n{markdown(head, rows)}"


def figure5() -> Figure:
    """Class values, CGSV's one number and the true class-wise Shapley value, means over folds."""
    clients = list(read("class_values")["ShapFed"][0]["samples"])
    maps = {
        "true Shapley value": np.mean(_truth("ShapFed"), axis=0),
        "ShapFed, class values": np.mean(class_values(), axis=0),
        "CGSV": np.mean(_cgsv(), axis=0),
    }
    return heat_maps(maps, clients, CLASSES)


def class_values() -> list[np.ndarray]:
    """Return ShapFed's values of the last round, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")["ShapFed"]:
        values = result["class_value"]
        found.append(np.array([list(values[client].values()) for client in result["samples"]]))
    return found


def _truth(strategy: str) -> list[np.ndarray]:
    """Return the true values of a strategy's own run, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")[strategy]:
        of_class = {each["utility"]: each["values"] for each in result["valuations"].values()}
        rows = []
        for client in result["samples"]:
            rows.append([of_class[name][client]["value"] for name in CLASSES])
        found.append(np.array(rows))
    return found


def _cgsv() -> list[np.ndarray]:
    """Return CGSV's contributions, once for each class, fold by fold: clients x classes."""
    found = []
    for result in read("class_values")["CGSV"]:
        worth = shares(result)
        found.append(np.array([[worth[client]] * len(CLASSES) for client in result["samples"]]))
    return found


# --- Table 1

ROWS = {
    "Standalone": "Standalone",
    "FedAvg": "FedAvg",
    "CGSV with rewards": "CGSV-rewards",
    "ShapFed-WA": "ShapFed",
    "ShapFed": "ShapFed-personalised",
}


def table1() -> str:
    """Dice of the model each site would use, and who loses by taking part, with its interval."""
    rows = []
    for study in ("prostate", "fundus"):
        results = read(study)
        alone = site_means(cases(results["Standalone"]))
        for name, strategy in ROWS.items():
            pooled = cases(results[strategy])
            means = site_means(pooled)
            row = [study, name, words(interval_of(pooled)), f"{min(means.values()):.3f}"]
            losers = []
            for site, mean in means.items():
                if mean < alone[site]:
                    loss = difference(results[strategy], results["Standalone"], [site])
                    losers.append(f"**{site}** {words(loss, signed=True)}")
            correlation = NOTHING
            if strategy != "Standalone":
                correlation = f"{pearson(alone, means):.2f}"
            rows.append([*row, correlation, "; ".join(losers) or "nobody"])
    head = ["study", "method", "mean Dice", "worst site", "correlation with alone"]
    return markdown([*head, "who loses by taking part"], rows)


TABLES: Mapping[str, Any] = {
    "shapfed_figure3": figure3_table,
    "shapfed_figure5": figure5_table,
    "shapfed_table1": table1,
}
FIGURES: Mapping[str, Any] = {"shapfed_figure5": figure5}
