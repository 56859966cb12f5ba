# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Models of a study that are scored again in several ways: one JSON a cell, and mean gains."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from cells import processor
from study import Cell, Study, write_result

from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.saved_files import read_state_dict

CASES = {"validation": "validation", "testing": "test"}
"""Part of a data list -> its name in a table."""
OfModel = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Site -> case -> way of scoring -> Dice."""
Score = Callable[[Study, Cell, dict[str, Any], Weights], dict[str, dict[str, Any]]]
"""A study, its cell, the cell's result and global model -> kind of cases -> what is found."""


def score_cells(
    study: Study, cells: Sequence[Cell], file_of: Callable[[Cell], Path], score: Score, runs: Path
) -> None:
    """Score the models of every cell that is in the folder of runs and has no JSON yet.

    Args:
        study: that trained the models.
        cells: of it.
        file_of: cell -> its JSON.
        score: scores the models of a cell.
        runs: the folder of all runs.
    """
    absent = []
    for cell in cells:
        if file_of(cell).exists():
            continue
        trained = runs / study.name / cell.name / "models" / "global.pt"
        # A run that is not finished has a model, too, and no JSON.
        if not study.path(cell).exists() or not trained.exists():
            absent.append(cell.name)
            continue
        print(cell.name, flush=True)
        started = time.process_time()
        result = json.loads(study.path(cell).read_text())
        found = score(study, cell, result, read_state_dict(study.model(cell, runs)))
        about = {
            "cell": cell.name,
            "seed": result["seed"],
            "minutes": round((time.process_time() - started) / 60, 2),
            "processor": processor(),
        }
        write_result(file_of(cell), {**about, **found})
    if absent:
        names = ", ".join(absent)
        print(f"not in {runs}, or not trained yet: {names}; `run.py {study.name}`", file=sys.stderr)


def mean_gains(
    of_models: Iterable[OfModel], better: str, other: str
) -> dict[str, dict[str, float]]:
    """Site -> case -> Dice in one way of scoring, minus that in another; mean over models.

    >>> mean_gains([{"A": {"c1": {"0": 0.25, "half": 0.75}}}, {"A": {}}], "half", "0")
    {'A': {'c1': 0.5}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for model in of_models:
        for site, of_cases in model.items():
            of_site = found.setdefault(site, {})
            for case, dice in of_cases.items():
                of_site.setdefault(case, []).append(dice[better] - dice[other])
    means = {}
    for site, of_site in found.items():
        means[site] = {case: mean(values) for case, values in of_site.items()}
    return means
