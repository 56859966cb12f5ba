# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: Tables 1 to 3, Figs 1b and 2. Standard deviations are of ddof 0, as in its paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from figures import lines, panels
from matplotlib.figure import Figure
from reading import (
    NOTHING,
    cases,
    difference,
    interval_of,
    markdown,
    read,
    shown_name,
    site_means,
    words,
)

from monai_fairfl.statistics.fairness import Interval, performance

REAL = ("prostate", "fundus")
SHOWN = ("Standalone", "FedAvg", "qFedAvg", "CFFL", "CGSV", "Ditto", "FedCE-sum", "FedCE", "FedLWR")
VERSIONS = {"FedAvg": "FedAvg", "v1": "FedLWR-v1", "v2": "FedLWR-v2", "full": "FedLWR"}


def tables1_2() -> str:
    """Dice of every site, average, and deviation over sites, in percent."""
    parts = []
    for study in REAL:
        results = read(study)
        rows = []
        for strategy in SHOWN:
            pooled = cases(results[strategy])
            means = site_means(pooled)
            average = Interval(*(100 * value for value in interval_of(pooled)))
            row = [shown_name(strategy), *(f"{100 * mean:.2f}" for mean in means.values())]
            rows.append([*row, words(average, 2), f"{100 * performance(means, ddof=0).std:.2f}"])
        head = ["method", *cases(results["FedAvg"]), "average", "std"]
        parts.append(f"{study.capitalize()}:\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def table3() -> str:
    """Cosine of features (v1), one encoder layer for all (v2), and the full method."""
    parts = []
    for study in ("six_prostate", "six_fundus"):
        results = read(study)
        rows = []
        for name, strategy in VERSIONS.items():
            pooled = cases(results[strategy])
            means = site_means(pooled)
            gain = NOTHING
            if name != "full":
                gain = words(difference(results["FedLWR"], results[strategy]), signed=True)
            row = [name, *(f"{mean:.3f}" for mean in means.values()), words(interval_of(pooled))]
            rows.append([*row, f"{performance(means, ddof=0).std:.3f}", gain])
        head = ["version", *cases(results["FedAvg"]), "mean Dice", "std"]
        head.append("gain of the full method over it")
        parts.append(f"`{study}`:\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def figure1b() -> Figure:
    """Similarity (CKA) between each site's own model and the average, convolution by convolution.

    Mean over the last ten rounds and all folds. The paper shows that layers differ, and sites
    differ most in deep ones.
    """
    drawn, axes = panels(REAL, across=2, height=2.6)
    for axis, study in zip(axes, REAL):
        results = read(study)["FedLWR"]
        for site, by_layer in results[0]["cka"].items():
            values = []
            for layer in by_layer:
                if layer.endswith("conv"):
                    values.append(np.mean([result["cka"][site][layer] for result in results]))
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=site)
        axis.set_xlabel("convolution, from input to output")
        axis.set_ylabel("CKA with the average model")
        axis.legend(fontsize=6)
    return drawn


def figure2() -> Figure:
    """Mean and standard deviation over sites of validation Dice by round, means over folds."""
    contents: list[tuple[str, str, Any]] = []
    for study in REAL:
        contents.append((study, "mean", np.mean))
        contents.append((study, "std over sites", np.std))
    titles = [f"{study}, {what}" for study, what, _ in contents]
    drawn, axes = panels(titles, across=2, share=False)
    for axis, (study, _, over_sites) in zip(axes, contents):
        results = read(study)
        series = {}
        for name in ("FedAvg", "FedCE", "CGSV", "qFedAvg", "FedLWR"):
            of_folds = []
            for result in results[name]:
                of_folds.append(over_sites(list(result["global_score"].values()), axis=0))
            series[shown_name(name)] = np.mean(of_folds, axis=0)
        lines(axis, series, "rounds done", "validation Dice", first=0)
    axes[0].legend(fontsize=6)
    return drawn


TABLES: Mapping[str, Any] = {"fedlwr_tables1_2": tables1_2, "fedlwr_table3": table3}
FIGURES: Mapping[str, Any] = {"fedlwr_figure1b": figure1b, "fedlwr_figure2": figure2}
