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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reading import markdown, measurement

from monai_fairfl.protocol.geometry import Geometry
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.update_matrix import UpdateMatrix
from monai_fairfl.statistics.fairness import agreement
from monai_fairfl.valuation import Game, MaxSamples, cosine_game, exact_shapley, permutation_shapley

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
SAMPLING = MaxSamples(600)
"""Hoeffding's inequality with epsilon = delta = 0.1 and range 2; the authors take range 1: 150."""


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """ "KIND, over WHAT" -> point -> method -> errors and seconds."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for kind, (common, equal) in KINDS.items():
        for over, points in POINTS.items():
            at_points = {}
            for point in points:
                sizes = {**FIXED, over: point}
                at_points[str(point)] = compare(**sizes, common=common, equal=equal)
            found[f"{kind}, over {over}"] = at_points
    return found


def compare(clients: int, parameters: int, common: float, equal: bool) -> dict[str, dict[str, Any]]:
    """Compare all methods with the exact values, on the same updates.

    Returns:
        Method -> mean and standard deviation over the seeds of its errors, and the median of its
        seconds.
    """
    errors: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in SEEDS:
        matrix = updates(clients, parameters, seed, common, equal)
        found = {name: timed(name, matrix, seed) for name in METHODS}
        exact = found["exact"][0]
        for name, (shares, taken) in found.items():
            near = agreement(shares.tolist(), exact.tolist())
            errors[name].append([np.abs(shares - exact).sum(), near.euclidean, near.pearson])
            seconds[name].append(taken)
    results: dict[str, dict[str, Any]] = {}
    for name in METHODS:
        results[name] = {}
        for kind, values in zip(("l1", "l2", "pearson"), np.array(errors[name]).T):
            results[name][kind] = [float(values.mean()), float(values.std(ddof=1))]
        results[name]["seconds"] = float(np.median(seconds[name]))
    return results


def updates(clients: int, parameters: int, seed: int, common: float, equal: bool) -> UpdateMatrix:
    """Draw normally distributed updates.

    A common direction is added, of which each client has more than the one before.
    """
    rng = np.random.default_rng(seed)
    shared = np.linspace(0, common, clients)[:, None] * rng.standard_normal(parameters)
    drawn = torch.from_numpy(shared + rng.standard_normal((clients, parameters)))
    if equal:
        drawn = torch.nn.functional.normalize(drawn)
    matrix = UpdateMatrix({"w": torch.zeros(parameters)}, ["w"], clients)
    matrix.rows.copy_(drawn)
    return matrix


def timed(name: str, matrix: UpdateMatrix, seed: int) -> tuple[np.ndarray, float]:
    """Compute a method's shares, and the processor's seconds of the fastest of three runs.

    The Gram matrix is included. A slow method is run once.
    """
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and sum(seconds) < 0.1):
        begun = time.process_time()
        found = METHODS[name](Geometry(matrix, ModelSpec(("w",), layers={"w": "w"})), seed)
        seconds.append(time.process_time() - begun)
    values = np.array([float(value) for value in found])
    return values / values.sum(), min(seconds)


def psi(geometry: Geometry, seed: int) -> Iterable[Any]:
    """The cosine of every update with their sum."""
    everybody = np.ones(len(geometry.gram))
    return [geometry.cosine(client, everybody) for client in np.eye(len(geometry.gram))]


def sampled(geometry: Geometry, seed: int) -> Iterable[Any]:
    """Sampled Shapley values, from the Gram matrix."""
    return permutation_shapley(game(geometry), SAMPLING, seed).values.values()


def sampled_by_summing(geometry: Geometry, seed: int) -> Iterable[Any]:
    """Sampled Shapley values, from sums of the updates."""
    return permutation_shapley(summing_game(geometry), SAMPLING, seed).values.values()


def equal_shares(geometry: Geometry, seed: int) -> Iterable[Any]:
    """The same for everybody: what an estimate must beat."""
    return [1.0] * len(geometry.gram)


def exact(geometry: Geometry, seed: int) -> Iterable[Any]:
    """Exact Shapley values, from the Gram matrix."""
    return exact_shapley(game(geometry)).values.values()


def game(geometry: Geometry) -> Game:
    """Coalitions' cosines with the aggregate, from the Gram matrix."""
    clients = len(geometry.gram)
    names = [f"{row:02d}" for row in range(clients)]
    return cosine_game(geometry.gram, np.ones(clients), names)


def summing_game(geometry: Geometry) -> Game:
    """The same from sums of the updates themselves, as the paper has it."""
    rows = geometry.matrix.rows
    whole = rows.sum(0)

    def utility(coalition: frozenset[str]) -> float:
        members = rows[[int(name) for name in coalition]].sum(0)
        return float(torch.nn.functional.cosine_similarity(members, whole, dim=0))

    return Game([f"{row:02d}" for row in range(len(rows))], utility)


METHODS: Mapping[str, Callable[[Geometry, int], Iterable[Any]]] = {
    "psi": psi,
    "sampling": sampled,
    "equal shares": equal_shares,
    "exact": exact,
    "sampling, no Gram matrix": sampled_by_summing,
}
COMPARED = ("psi", "sampling", "equal shares")
TIMED = ("psi", "sampling", "exact", "sampling, no Gram matrix")


def table() -> str:
    """A row per kind of updates and method; below, where which is the better one."""
    found = measurement("cgsv_figure1")
    rows = []
    sentences = []
    for kind in KINDS:
        over_clients = found[f"{kind}, over clients"]
        over_parameters = found[f"{kind}, over parameters"]
        for name in COMPARED:
            ten = over_clients["10"][name]
            errors = [
                ten["l1"],
                ten["l2"],
                over_clients["16"][name]["l1"],
                over_parameters["262144"][name]["l1"],
            ]
            cells = [f"{mean:.2g} ± {std:.1g}" for mean, std in errors]
            pearson = "–"
            if ten["pearson"][0] is not None:
                pearson = f"{ten['pearson'][0]:.1f}"
            rows.append([kind, name, *cells, pearson])
        sentences.append(
            f"Updates {kind}: sampling is nearer to the exact value than psi for "
            f"{where_nearer(over_clients, 'sampling', 'psi')} clients, and for "
            f"{where_nearer(over_parameters, 'sampling', 'psi')} parameters. "
            f"Equal shares are nearer than sampling for "
            f"{where_nearer(over_parameters, 'equal shares', 'sampling')} parameters."
        )
    related = found["related, over clients"]
    faster = where(related, lambda at: at["exact"]["seconds"] < at["sampling"]["seconds"])
    sentences.append(f"Exact values take less time than sampling for {faster} clients.")
    head = [
        "updates",
        "method",
        "l1, N = 10, D = 1024",
        "l2",
        "l1, N = 16",
        "l1, D = 262144",
        "Pearson",
    ]
    return "\n".join([markdown(head, rows), "", *sentences])


def where_nearer(points: Mapping[str, Any], one: str, other: str) -> str:
    """List the points at which one method has the smaller error."""
    return where(points, lambda at: at[one]["l1"] < at[other]["l1"])


def where(points: Mapping[str, Any], holds: Callable[[Any], bool]) -> str:
    """List the points at which something holds."""
    return ", ".join(at for at, found in points.items() if holds(found)) or "no number of"


def figure() -> Figure:
    """Above the error, mean and standard deviation over the seeds; below the time."""
    found = measurement("cgsv_figure1")
    titles = ["error, D = 1024", "error, N = 10", "time, D = 1024", "time, N = 10"]
    drawn, axes = panels(titles, across=2, height=2.4, share=False)
    for axis, over in zip(axes[:2], POINTS):
        for kind, style in (("as in the paper", "-"), ("related", "--")):
            for name in COMPARED:
                errors = [point[name]["l1"] for point in found[f"{kind}, over {over}"].values()]
                mean, std = np.array(errors).T
                _draw(axis, over, name, mean, std, style, f"{name}, {kind}")
        axis.set_yscale("log")
        axis.set_ylabel("l1 distance from exact")
        _label(axis, over)
    for axis, over in zip(axes[2:], POINTS):
        for name in TIMED:
            points = found[f"as in the paper, over {over}"].values()
            seconds = np.array([point[name]["seconds"] for point in points])
            _draw(axis, over, name, seconds, np.zeros_like(seconds), "-", name)
        axis.set_yscale("log")
        axis.set_ylabel("seconds")
        _label(axis, over)
    return drawn


def _draw(
    axis: Axes,
    over: str,
    name: str,
    mean: np.ndarray,
    std: np.ndarray,
    style: str,
    label: str,
) -> None:
    """Draw a method's line with a band of one standard deviation."""
    colour = PALETTE[list(METHODS).index(name)]
    axis.plot(POINTS[over], mean, style, color=colour, label=label)
    axis.fill_between(POINTS[over], mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)


def _label(axis: Axes, over: str) -> None:
    """Label the horizontal axis; the legend is beside the right panels."""
    if over == "clients":
        axis.set_xlabel("clients N")
        return
    axis.set_xlabel("parameters D")
    axis.set_xscale("log", base=2)
    axis.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
