# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which connected part of a prostate mask is kept: the largest, or the one with the surest voxel.

No training: models of ``uneven_others`` are scored on validation and on test cases with both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from cells import processor
from reading import NOT_FOUND, NotFinished, interval_of, markdown, words
from study import HERE, Cell, Study, write_result
from yardsticks import dice, folders, masks, require_recorded, split_of, test_engine

from monai_fairfl.data.parts import KINDS
from monai_fairfl.utils.files import read_state_dict

OfModel = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Site -> case -> kept part -> Dice."""
STUDIES = ()
MODELS = "uneven_others"
CASES = {"validation": "validation", "testing": "test"}
"""Part of a data list -> its name in the table."""


def cells() -> list[Cell]:
    """List all models: those of seed 0 come first."""
    return sorted(Study.read(MODELS).cells(), key=lambda cell: cell.fold)


def result_file(cell: Cell) -> Path:
    """Return the JSON of a model."""
    return HERE / "results" / "kept_part" / f"{cell.name}.json"


def result_files() -> list[Path]:
    """List the JSON files of all models, also of those that are not done."""
    return [result_file(cell) for cell in cells()]


def measure_cells(data: Path, runs: Path) -> None:
    """Score every model that is in the folder of runs and has no JSON yet."""
    study = Study.read(MODELS)
    absent = []
    for cell in cells():
        if result_file(cell).exists():
            continue
        trained = runs / MODELS / cell.name / "models" / "global.pt"
        # A run that is not finished has a model, too, and no JSON.
        if not study.path(cell).exists() or not trained.exists():
            absent.append(cell.name)
            continue
        print(cell.name, flush=True)
        write_result(result_file(cell), measured(study, cell, data, runs))
    if absent:
        names = ", ".join(absent)
        print(f"not in {runs}, or not trained yet: {names}; `run.py {MODELS}`", file=sys.stderr)


def measured(study: Study, cell: Cell, data: Path, runs: Path) -> dict[str, Any]:
    """Kind of cases -> site -> case -> kept part -> Dice, of one model."""
    started = time.process_time()
    result = json.loads(study.path(cell).read_text())
    weights = read_state_dict(study.model(cell, runs))
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {kind: {} for kind in CASES}
    for site, folder in folders(study, data).items():
        split = split_of(study, cell, site, folder)
        for kind in CASES:
            of_cases = {Path(case["image"]).name: {} for case in split[kind]}
            for part in KINDS:
                engine = test_engine(study, cell, split[kind], part=part)
                predicted, labels = masks(engine, weights)
                if (kind, part) == ("testing", "largest"):
                    require_recorded(result, site, predicted, labels)
                for case, mask, label in zip(of_cases, predicted, labels, strict=True):
                    of_cases[case][part] = round(dice(mask, label), 4)
            found[kind][site] = of_cases
    return {
        "cell": cell.name,
        "seed": result["seed"],
        "minutes": round((time.process_time() - started) / 60, 2),
        "processor": processor(),
        **found,
    }


def table() -> str:
    """A row per kind of cases and seed: Dice of both parts, and the volumes that each loses."""
    found = [json.loads(path.read_text()) for path in result_files() if path.exists()]
    if not found:
        raise NotFinished("a model")
    rows = []
    for kind, name in CASES.items():
        for seed in sorted({result["seed"] for result in found}):
            of_models = [result[kind] for result in found if result["seed"] == seed]
            row = [name, seed, len(of_models)]
            for part in KINDS:
                values = scores(of_models, part)
                lost = sum(value < NOT_FOUND for value in values)
                row += [f"{np.mean(values):.3f}", f"{lost} of {len(values)}"]
            rows.append([*row, words(interval_of(gains(of_models)), signed=True)])
    head = ["cases", "seed", "models"]
    for part in KINDS:
        head += [f"{part} part: mean Dice", f"Dice below {NOT_FOUND}"]
    return markdown([*head, "surest − largest"], rows)


def scores(of_models: Iterable[OfModel], part: str) -> list[float]:
    """List the Dice of all models' cases with one part."""
    found = []
    for model in of_models:
        for of_cases in model.values():
            found += [of_parts[part] for of_parts in of_cases.values()]
    return found


def gains(of_models: Iterable[OfModel]) -> dict[str, dict[str, float]]:
    """Site -> case -> Dice with the surest part, minus that with the largest; mean over models.

    >>> gains([{"A": {"c1": {"largest": 0.2, "surest": 0.6}}}, {"A": {}}])
    {'A': {'c1': 0.4}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for model in of_models:
        for site, of_cases in model.items():
            of_site = found.setdefault(site, {})
            for case, of_parts in of_cases.items():
                gain = of_parts["surest"] - of_parts["largest"]
                of_site.setdefault(case, []).append(gain)
    means = {}
    for site, of_site in found.items():
        means[site] = {case: mean(values) for case, values in of_site.items()}
    return means
