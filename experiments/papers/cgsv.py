# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV (Xu et al., NeurIPS 2021): Tables 1 to 3, Figs 1 and 2, and beta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from agreement import pearson
from figures import lines, panels
from matplotlib.figure import Figure
from reading import (
    NOTHING,
    Result,
    cases,
    interval_of,
    markdown,
    measurement,
    over_folds,
    read,
    shares,
    shown_name,
    site_means,
    words,
)
from study import Study

# --- Fig. 1


def figure1() -> str:
    """Errors of psi, of (0.1, 0.1)-sampling and of equal shares, from the exact Shapley value.

    Updates have D parameters, and there are N clients.

    Means and standard deviations of ten draws of random updates; Pearson times 100.
    """
    found = measurement("cgsv_figure1")
    rows = []
    for kind in ("as in the paper", "of equal length", "related"):
        clients, parameters = (found[f"{kind}, over {over}"] for over in ("clients", "parameters"))
        for name in ("psi", "sampling", "equal shares"):
            ten = clients["10"][name]
            errors = [ten["l1"], ten["l2"], clients["16"][name]["l1"]]
            errors.append(parameters["262144"][name]["l1"])
            cells = [f"{mean:.2g} ± {std:.1g}" for mean, std in errors]
            correlation = ten["pearson"][0]
            cells.append(NOTHING if correlation is None else f"{correlation:.1f}")
            rows.append([kind, name, *cells])
    head = ["updates", "method", "l1, N = 10, D = 1024", "l2", "l1, N = 16", "l1, D = 262144"]
    return markdown([*head, "Pearson"], rows)


# --- Fig. 2

WRONG = {
    "client01": "20 %",
    "client02": "40 %",
    "client03": "60 %",
    "client04": "none",
    "client05": "none",
}


def figure2_table() -> str:
    """Five even shares, three clients with wrong labels: contributions, rewards and Dice.

    The reward is the share of the step's entries that a client receives, tanh(r) / max tanh(r); the
    distance is that of its model from the server's at the end, over all weights.
    """
    results = read("wrong_labels")
    rows = []
    for client, wrong in WRONG.items():
        row = [client, wrong]
        for method in ("CGSV", "ShapFed", "FedCE"):
            of_folds = [shares(result)[client] for result in results[method]]
            row.append(words(over_folds(of_folds)))
        rewards = []
        for result in results["CGSV"]:
            worth = shares(result)
            rewards.append(np.tanh(worth[client]) / max(np.tanh(list(worth.values()))))
        row.append(words(over_folds(rewards), 2))
        distances = [result["distance"][client] for result in results["CGSV"]]
        row.append(words(over_folds(distances), 2))
        for method in ("Standalone", "FedAvg", "CGSV"):
            row.append(words(interval_of({client: cases(results[method])[client]})))
        rows.append(row)
    head = ["client", "wrong labels", "CGSV", "ShapFed", "FedCE", "reward"]
    head += ["distance from the server's model", "Dice alone", "Dice, FedAvg", "Dice, CGSV"]
    return markdown(head, rows)


def figure2() -> Figure:
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


# --- Tables 1 to 3, and beta

OF_REWARDS = ["mean Dice", "best client", "worst client", "fairness, Pearson x 100"]


def partitions() -> str:
    """Dice and the fairness of rewards, when one pool is dealt evenly, unevenly or one-sidedly.

    Fairness is the correlation over clients of Dice alone with Dice in the federation, times 100;
    where all receive one model it is not defined. Intervals of Dice are over images, of fairness
    over folds. On the generated volumes, a control, a client alone is far from what all reach.
    """
    rows = []
    for study in ("rewards", "rewards_volumes"):
        for setting in Study.read(study).settings:
            results = read(study, setting)
            for method, found in results.items():
                if "beta" not in method:
                    cells = _of_rewards(found, results["Standalone"])
                    rows.append([setting, shown_name(method), *cells])
    return markdown(["partition", "method", *OF_REWARDS], rows)


def beta() -> str:
    """How unequal the rewards are: Dice and fairness on the power-law partition.

    The paper shows that a small beta is fairer, and a large one serves everybody better; 1e7 gives
    everybody everything.
    """
    results = read("rewards", "power_law")
    rows = []
    for value in ("0.5", "1", "1.2", "1.5", "2", "1e7"):
        method = "CGSV" if value == "1" else f"CGSV-beta{value}"
        rows.append([value, *_of_rewards(results[method], results["Standalone"])])
    return markdown(["beta", *OF_REWARDS], rows)


def _of_rewards(found: Sequence[Result], alone: Sequence[Result]) -> list[str]:
    of_clients = cases(found)
    means = site_means(of_clients).values()
    # All clients are tested with the same images: a case counts once.
    of_cases = {}
    for case in next(iter(of_clients.values())):
        of_cases[case] = float(np.mean([scores[case] for scores in of_clients.values()]))
    fairness = NOTHING
    if found is not alone:
        of_folds = [_fairness(*pair) for pair in zip(alone, found, strict=True)]
        fairness = words(over_folds(of_folds, _mean_of_known), 0)
    dice = words(interval_of({"all": of_cases}))
    return [dice, f"{max(means):.3f}", f"{min(means):.3f}", fairness]


def _fairness(alone: Result, found: Result) -> float:
    """Compute the correlation between Dice alone and in the federation, in a fold."""
    return 100 * pearson(site_means(cases([alone])), site_means(cases([found])))


def _mean_of_known(values: Sequence[float]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def overhead() -> str:
    """Table 3: seconds of one processor to value the clients of a round, beside training.

    Training is the median round of all six generated hospitals, one after the other. The paper
    finds cosines at most 0.4 times as long as training, and valuing by validation up to 141 times.
    """
    found = measurement("cgsv_overhead")
    training = median(found["training"])
    rows = [["training, one round", NOTHING, f"{training:.2g}", "1"]]
    for name, (seconds, models) in found["steps"].items():
        rows.append([name, models or NOTHING, f"{seconds:.2g}", f"{seconds / training:.1g}"])
    size = f"{found['clients']} clients, {found['parameters']} parameters, 2 local epochs"
    head = ["step", "models scored", "seconds", "ratio to training"]
    return f"{size}:\n\n{markdown(head, rows)}"


TABLES: Mapping[str, Any] = {
    "cgsv_figure1": figure1,
    "cgsv_figure2": figure2_table,
    "cgsv_partitions": partitions,
    "cgsv_beta": beta,
    "cgsv_overhead": overhead,
}
FIGURES: Mapping[str, Any] = {"cgsv_figure2": figure2}
