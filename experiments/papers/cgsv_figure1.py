# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, Fig. 1: error and time of psi, the cosine with the aggregate, and of sampling, beside the
exact Shapley value.

The paper draws independent random updates and finds psi nearer than (0.1, 0.1)-sampling, and much
faster, for all N and D. Here also updates of equal length, as CGSV makes them, related ones, equal
shares as a baseline, and a Gram matrix. Means and standard deviations of ten draws; Pearson times
100.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import PALETTE, panels
from matplotlib.figure import Figure
from reading import markdown, measurement

from monai_fairfl.protocol.geometry import Geometry, UpdateMatrix
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.statistics.fairness import agreement
from monai_fairfl.valuation import Game, Hoeffding, cosine_game, exact_shapley, permutation_shapley

STUDIES = ()
POINTS = {
    "clients": [3, 4, 6, 8, 10, 12, 14, 16],  # of two each is worth half, whatever they send
    "parameters": [2**power for power in range(4, 19, 2)],
}
FIXED = {"clients": 10, "parameters": 1024}
KINDS = {"as in the paper": (0.0, False), "of equal length": (0.0, True), "related": (1.0, True)}
"""What the last client has of a common direction (the first has none); whether all are made equally
long.
"""
SEEDS = range(10)
SAMPLING = Hoeffding(0.1, 0.1, range=2)  # 600 permutations (the authors' code takes range 1: 150)


def updates(clients: int, parameters: int, seed: int, common: float, equal: bool) -> UpdateMatrix:
    """Normally distributed updates, plus a common direction of which each client has more than the
    one before.
    """
    rng = np.random.default_rng(seed)
    shared = np.linspace(0, common, clients)[:, None] * rng.standard_normal(parameters)
    drawn = torch.from_numpy(shared + rng.standard_normal((clients, parameters)))
    matrix = UpdateMatrix({"w": torch.zeros(parameters)}, ["w"], clients)
    matrix.rows.copy_(torch.nn.functional.normalize(drawn) if equal else drawn)
    return matrix


def game(geometry: Geometry) -> Game:
    """Coalitions' cosines with the aggregate, from the Gram matrix."""
    ones = np.ones(len(geometry.gram))
    return cosine_game(geometry.gram, ones, [f"{row:02d}" for row in range(len(ones))])


def summing_game(geometry: Geometry) -> Game:
    """The same from sums of the updates themselves, as the paper has it."""
    rows = geometry.matrix.rows
    whole = rows.sum(0)

    def utility(coalition: frozenset[str]) -> float:
        members = rows[[int(name) for name in coalition]].sum(0)
        return float(torch.nn.functional.cosine_similarity(members, whole, dim=0))

    return Game([f"{row:02d}" for row in range(len(rows))], utility)


METHODS: Mapping[str, Callable[[Geometry, int], Iterable[Any]]] = {
    "psi": lambda g, seed: [
        g.cosine(client, np.ones(len(g.gram))) for client in np.eye(len(g.gram))
    ],
    "sampling": lambda g, seed: permutation_shapley(game(g), SAMPLING, seed).values.values(),
    "equal shares": lambda g, seed: [1.0] * len(g.gram),
    "exact": lambda g, seed: exact_shapley(game(g)).values.values(),
    "sampling, no Gram matrix": lambda g, seed: permutation_shapley(
        summing_game(g), SAMPLING, seed
    ).values.values(),
}
COMPARED, TIMED = ("psi", "sampling", "equal shares"), (
    "psi",
    "sampling",
    "exact",
    "sampling, no Gram matrix",
)


def timed(name: str, matrix: UpdateMatrix, seed: int) -> tuple[np.ndarray, float]:
    """Shares, and the processor's seconds of the fastest of three runs, Gram matrix included; of
    one if it is slow.
    """
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and sum(seconds) < 0.1):
        begun = time.process_time()
        found = METHODS[name](Geometry(matrix, ModelSpec(("w",), layers={"w": "w"})), seed)
        seconds.append(time.process_time() - begun)
    values = np.array([float(value) for value in found])
    return values / values.sum(), min(seconds)


def compare(clients: int, parameters: int, common: float, equal: bool) -> dict[str, dict[str, Any]]:
    """method -> mean and standard deviation over the seeds of its errors, and the median of its
    seconds.
    """
    rows: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in SEEDS:
        matrix = updates(clients, parameters, seed, common, equal)
        found = {name: timed(name, matrix, seed) for name in METHODS}
        truth = found["exact"][0]
        for name, (shares, seconds) in found.items():
            near = agreement(shares.tolist(), truth.tolist())
            rows[name].append([np.abs(shares - truth).sum(), near.euclidean, near.pearson, seconds])
    results: dict[str, dict[str, Any]] = {}
    for name, values in rows.items():
        *errors, seconds_of = np.array(values).T
        spread = {
            key: [float(e.mean()), float(e.std(ddof=1))]
            for key, e in zip(("l1", "l2", "pearson"), errors)
        }
        results[name] = {**spread, "seconds": float(np.median(seconds_of))}
    return results


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """ "KIND, over WHAT" -> point -> method -> errors and seconds."""
    torch.set_num_threads(1)
    return {
        f"{kind}, over {over}": {
            str(at): compare(**{**FIXED, over: at}, common=common, equal=equal) for at in points
        }
        for kind, (common, equal) in KINDS.items()
        for over, points in POINTS.items()
    }


def table() -> str:
    """A row per kind of updates and method; below, where which is the better one."""
    found, rows, said = measurement("cgsv_figure1"), [], []
    for kind in KINDS:
        over_n, over_d = found[f"{kind}, over clients"], found[f"{kind}, over parameters"]
        for name in COMPARED:
            ten = over_n["10"][name]
            errors = [ten["l1"], ten["l2"], over_n["16"][name]["l1"], over_d["262144"][name]["l1"]]
            pearson = ten["pearson"][0]
            cells = [f"{mean:.2g} ± {std:.1g}" for mean, std in errors]
            rows.append([kind, name, *cells, "–" if pearson is None else f"{pearson:.1f}"])
        near = [
            where(over, lambda at: at["sampling"]["l1"] < at["psi"]["l1"])
            for over in (over_n, over_d)
        ]
        none = where(over_d, lambda at: at["equal shares"]["l1"] < at["sampling"]["l1"])
        said.append(
            f"Updates {kind}: sampling is nearer than psi for {near[0]} clients, and for {near[1]} parameters; "
            f"equal shares are nearer than sampling for {none} parameters."
        )
    head = [
        "updates",
        "method",
        "l1, N = 10, D = 1024",
        "l2",
        "l1, N = 16",
        "l1, D = 262144",
        "Pearson",
    ]
    fast = where(over_n, lambda at: at["exact"]["seconds"] < at["sampling"]["seconds"])
    said.append(f"The exact values take less time than sampling for {fast} clients.")
    return "\n".join([markdown(head, rows), "", *said])


def where(points: Mapping[str, Any], holds: Callable[[Any], bool]) -> str:
    """The points at which something holds, in words."""
    return ", ".join(at for at, found in points.items() if holds(found)) or "no number of"


def figure() -> Figure:
    """Above the error, mean and standard deviation over the seeds; below the time."""
    found = measurement("cgsv_figure1")
    titles = [f"{what}, {fixed}" for what in ("error", "time") for fixed in ("D = 1024", "N = 10")]
    drawn, axes = panels(titles, across=2, height=2.4, share=False)
    for axis, over in zip(axes, [*POINTS, *POINTS]):
        error = axis in axes[:2]
        for kind, style in (("as in the paper", "-"), ("related", "--"))[: 2 if error else 1]:
            for name in COMPARED if error else TIMED:
                of = [point[name] for point in found[f"{kind}, over {over}"].values()]
                colour, label = PALETTE[list(METHODS).index(name)], (
                    f"{name}, {kind}" if error else name
                )
                mean, std = np.array(
                    [each["l1"] if error else [each["seconds"], 0.0] for each in of]
                ).T
                axis.plot(POINTS[over], mean, style, color=colour, label=label)
                axis.fill_between(
                    POINTS[over], mean - std, mean + std, color=colour, alpha=0.2, linewidth=0
                )
        axis.set_yscale("log")
        axis.set_ylabel("l1 distance from exact" if error else "seconds")
        axis.set_xlabel("clients N" if over == "clients" else "parameters D")
        if over == "parameters":
            axis.set_xscale("log", base=2)
            axis.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    return drawn
