# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM (Wang et al.): Tables 1 to 3 and 7, Fig. 7, and the sweeps of q and beta.

Ten clients hold shares of one real clinic's photographs (72 are tested) or of all generated
hospitals' volumes (54), some of them corrupted; all are tested with the same images, clean clients
with clean ones, corrupted clients with corrupted ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from reading import (
    NOTHING,
    by_fold,
    cases,
    difference,
    interval_of,
    markdown,
    measurement,
    over_folds,
    read,
    shares,
    shown_name,
    words,
)
from study import Study

SETTINGS = {
    ("quality", "noise20"): "photographs, noise, 20 %",
    ("quality", "severe20"): "photographs, noise of severity 5, 20 %",
    ("quality", "severe20_plain"): "the same, no noise or blur in augmentation",
    ("quality_volumes", "noise10"): "volumes, noise, 10 %",
    ("quality_volumes", "noise20"): "volumes, noise, 20 %",
    ("quality_volumes", "noise30"): "volumes, noise, 30 %",
    ("quality_volumes", "blur20"): "volumes, motion blur, 20 %",
}
"""(study, setting) -> images, corruption, and how many of the clients have it."""
METHODS = ("FedAvg", "qFedAvg", "AFL", "FairFed", "FedCE", "FedGA", "FedISM")
HEAD = ["clean", "corrupted", "corrupted, gain over FedAvg", "fold by fold"]
Groups = Mapping[str, Sequence[str]]


def table1() -> str:
    """Dice of clean and of corrupted clients, a row per setting and method."""
    rows = []
    for (study, setting), images in SETTINGS.items():
        planned = Study.read(study).strategies_of(setting)
        for method in METHODS:
            if method in planned:
                rows.append([images, shown_name(method), *_row(study, setting, method)])
    return markdown(["images", "method", *HEAD], rows)


def table2() -> str:
    """FedISM's training alone (SALT), its weights alone (SAGA), and both."""
    parts = {"FedAvg": "neither (FedAvg)", "FedAvg-SALT": "SALT only", "SAGA": "SAGA only"}
    parts["FedISM"] = "both (FedISM)"
    rows = []
    for study in ("quality", "quality_volumes"):
        for method, name in parts.items():
            images = SETTINGS[study, "noise20"]
            rows.append([images, name, *_row(study, "noise20", method)])
    return markdown(["images", "parts", *HEAD], rows)


def table3() -> str:
    """Sharpness-aware local training (SALT) added to other strategies: what it adds, by case."""
    results = read("quality", "noise20")
    groups = groups_of("quality", "noise20")
    rows = []
    for method in METHODS[:-1]:
        cells = [shown_name(method)]
        for name in (method, f"{method}-SALT"):
            cells += _row("quality", "noise20", name)[:2]
        for group in ("clean", "corrupted"):
            compared = results[f"{method}-SALT"], results[method], groups[group][:1]
            cells.append(words(difference(*compared), signed=True))
        rows.append(cells)
    head = ["method", *HEAD[:2], *(f"{name}, with SALT" for name in HEAD[:2])]
    return markdown([*head, "SALT adds, clean", "SALT adds, corrupted"], rows)


def sweeps() -> str:
    """How much the sharpest client counts (q), and how fast weights follow (beta)."""
    results = read("quality", "noise20")
    corrupted = groups_of("quality", "noise20")["corrupted"]
    rows = []
    for name, values in {
        "q": ("0.5", "1", "2", "5"),
        "beta": ("0.1", "0.3", "0.5", "0.7", "1"),
    }.items():
        for value in values:
            # The defaults are q = 2 and beta = 0.5.
            method = f"FedISM-{name}{value}"
            if method not in results:
                method = "FedISM"
            weights = []
            for result in results[method]:
                share = shares(result)
                weights.append(sum(share[site] for site in corrupted))
            weight = words(over_folds(weights), 2)
            rows.append([name, value, *_row("quality", "noise20", method), weight])
    return markdown(["parameter", "value", *HEAD, "weight of the two corrupted clients"], rows)


def table7() -> str:
    """Sharpness of the last global model at each client: mean, and deviation over the clients.

    Radius 0.05, on the training images, thousandths of the loss; mean over folds, with the smallest
    and largest.
    """
    results = read("quality", "noise20")
    groups = groups_of("quality", "noise20")
    rows = []
    for method in (*METHODS, "FedAvg-SALT", "SAGA"):
        found = []
        for result in results[method]:
            of_sites = result["closing"].items()
            found.append({site: measured["own"]["sharpness"] for site, measured in of_sites})
        columns = []
        for statistic in (np.mean, np.std):
            columns.append([statistic(list(of_fold.values())) for of_fold in found])
        for sites in groups.values():
            columns.append([np.mean([of_fold[site] for site in sites]) for of_fold in found])
        row = [shown_name(method)]
        for column in columns:
            values = [1000 * float(value) for value in column]
            row.append(f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        rows.append(row)
    of_groups = [f"{group} clients" for group in groups]
    return markdown(["method", "mean", "std over clients (ddof 0)", *of_groups], rows)


def _row(study: str, setting: str, method: str) -> list[str]:
    """Clean Dice, corrupted Dice, and the gain in the latter.

    All clients of a group have the same model and the same tests, so one of them is enough.
    """
    results = read(study, setting)
    groups = groups_of(study, setting)
    pooled = cases(results[method])
    cells = []
    for group in ("clean", "corrupted"):
        site = groups[group][0]
        cells.append(words(interval_of({site: pooled[site]})))
    if method == "FedAvg":
        return [*cells, NOTHING, NOTHING]
    compared = results[method], results["FedAvg"], groups["corrupted"][:1]
    return [*cells, words(difference(*compared), signed=True), by_fold(*compared)]


def groups_of(study: str, setting: str) -> dict[str, list[str]]:
    """Return the ``"corrupted"`` and the ``"clean"`` clients of a setting."""
    return dict(Study.read(study).settings[setting]["arguments"]["groups"])


def figure7() -> str:
    """How the loss rises around the last global model, along a filter-normalised direction.

    At half and at the whole direction, mean of both signs.
    """
    found = measurement("fedism_figure7")["losses"]
    rows = []
    for method, groups in found.items():
        row = [method]
        for folds in groups.values():
            losses = np.array(folds)
            middle = losses.shape[1] // 2
            at_model = losses[:, middle]
            row.append(words(over_folds(list(at_model))))
            for distance in (middle // 2, middle):
                both_ways = (losses[:, middle - distance] + losses[:, middle + distance]) / 2
                row.append(words(over_folds(list(both_ways - at_model)), signed=True))
        rows.append(row)
    head = ["method"]
    for group in found["FedAvg"]:
        head += [f"{group}, loss", f"{group}, rise at 0.5", f"{group}, rise at 1"]
    return markdown(head, rows)


TABLES: Mapping[str, Any] = {
    "fedism_table1": table1,
    "fedism_table2": table2,
    "fedism_table3": table3,
    "fedism_sweeps": sweeps,
    "fedism_table7": table7,
    "fedism_figure7": figure7,
}
