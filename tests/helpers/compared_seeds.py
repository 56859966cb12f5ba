# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Comparisons over seeds and folds of scripted runs, whose cases a test may change."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers.reports import rows_of
from helpers.scripted_run import mean_of, train, with_cases

from monai_fairfl import strategies
from monai_fairfl.report import write_comparison
from monai_fairfl.statistics import CaseScore

GAINS = {
    "Standalone": {"elm": 0.0, "oak": 0.0, "yew": 0.0},
    "FedAvg": {"elm": 0.02, "oak": 0.01, "yew": -0.10},
    "FedCE": {"elm": 0.06, "oak": 0.0, "yew": -0.01},
}
"""Strategy -> hospital -> Dice more than alone, in the mean."""

Tables = dict[str, dict[str, dict[str, float]]]
"""Measurement -> hospital -> case -> Dice."""


@dataclass
class Cell:
    """One run of a comparison.

    Args:
        strategy: its class.
        seed: of the run.
        tables: the closing scores of its cases.
        given: further arguments of :func:`helpers.scripted_run.train`.
    """

    strategy: str
    seed: int
    tables: Tables
    given: dict[str, Any]


def tables_of(strategy: str, seed: int, fold: int | None) -> Tables:
    """Cases differ most, then strategies, then seeds; all of fold 1 are harder."""
    found: Tables = {"test_score": {}, "score": {}}
    for site, gain in GAINS[strategy].items():
        hardness = np.random.default_rng(ord(site[0])).uniform(0.6, 0.9, 6)
        noise = np.random.default_rng([seed, len(strategy), ord(site[0])]).normal(size=6)
        scores = (hardness + gain + 0.004 * noise - 0.2 * (fold or 0)).round(6).tolist()
        found["test_score"][site] = {f"f{fold}-case{n}.nii": dice for n, dice in enumerate(scores)}
        found["score"][site] = dict.fromkeys(["v1.nii", "v2.nii"], round(np.mean(scores) - 0.1, 6))
    return found


def compare(
    folder: Path,
    seeds: Sequence[int] = (0, 1, 2),
    folds: Sequence[int | None] = (None,),
    change: Callable[[Cell], object] = lambda cell: None,
    failed: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Train every strategy, seed and fold, and compare the runs.

    Args:
        folder: of the comparison.
        seeds: of every strategy.
        folds: of every seed.
        change: of each cell before it is trained.
        failed: ``STRATEGY-SEED-FOLD`` -> why; these are not trained.

    Returns:
        What ``comparison.json`` holds.
    """
    runs = []
    for strategy, seed, fold in itertools.product(GAINS, seeds, folds):
        name = f"{strategy}-{seed}-{fold}"
        if name in failed:
            continue
        tables = tables_of(strategy, seed, fold)
        error = {"measured": {"leave_one_out_error": 0.3 + 0.1 * seed + 0.02 * (fold or 0)}}
        given: dict[str, Any] = {"config": {"share_cases": True}, "about": {"yew": error}}
        if fold is not None:
            given["config"]["overrides"] = {"split_fold": fold}
        change(Cell(strategy, seed, tables, given))
        scores: dict[str, Any] = {site: {} for site in GAINS[strategy]}
        for measurement, of_sites in tables.items():
            for site, cases in of_sites.items():
                scores[site][measurement] = mean_of(list(cases.values()))
        made = getattr(strategies, strategy)()
        run = train(folder / "runs" / name, made, scores, 2, seed=seed, **given)
        for measurement, of_sites in tables.items():
            for site, cases in of_sites.items():
                with_cases(run, site, cases, measurement)
        runs.append(run)
    plan = {"strategies": {name: name for name in GAINS}, "seeds": list(seeds), "bundle": "b"}
    plan |= {"folds": len(folds) if None not in folds else None, "rounds": 2, "local_epochs": 1}
    found = write_comparison(folder, plan, runs, failed)
    assert found == json.loads((folder / "comparison.json").read_text())
    return found


def scores_of(folder: Path) -> list[CaseScore]:
    """The Dice of test cases in ``cases.csv``."""
    found = []
    for row in rows_of(folder / "cases.csv"):
        if row["metric"] == "test_score:dice":
            about = row["strategy"], int(row["seed"]), None, row["site"], row["case"]
            found.append(CaseScore(*about, float(row["value"])))
    return found


def array_of(folder: Path, strategy: str, site: str) -> np.ndarray:
    """Dice of a strategy at a hospital: seeds by cases."""
    by_seed: dict[int, list[float]] = {}
    for score in scores_of(folder):
        if (score.strategy, score.site) == (strategy, site):
            by_seed.setdefault(score.seed, []).append(score.value)
    return np.array(list(by_seed.values()))
