# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which connected part of a prostate mask is kept: the largest, or the one with the surest voxel.

No training: models of ``uneven_others`` are scored on validation and on test cases with both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from reading import NOT_FOUND, NotFinished, interval_of, markdown, words
from scored_again import CASES, OfModel, mean_gains, score_cells
from study import HERE, Cell, Study
from yardsticks import dice, folders, masks, require_recorded, split_of, test_engine

from monai_fairfl.data.parts import KINDS
from monai_fairfl.protocol.values import Weights

STUDIES = ()
MODELS = "uneven_others"


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

    def score(
        study: Study, cell: Cell, result: dict[str, Any], weights: Weights
    ) -> dict[str, dict[str, Any]]:
        return with_both_parts(study, cell, result, weights, data)

    score_cells(Study.read(MODELS), cells(), result_file, score, runs)


def with_both_parts(
    study: Study, cell: Cell, result: dict[str, Any], weights: Weights, data: Path
) -> dict[str, dict[str, Any]]:
    """Kind of cases -> site -> case -> kept part -> Dice, of one model."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in CASES}
    for site, folder in folders(study, data).items():
        split = split_of(study, cell, site, folder)
        for kind in CASES:
            of_cases: dict[str, dict[str, float]]
            of_cases = {Path(case["image"]).name: {} for case in split[kind]}
            for part in KINDS:
                engine = test_engine(study, cell, split[kind], part=part)
                predicted, labels = masks(engine, weights)
                if (kind, part) == ("testing", "largest"):
                    require_recorded(result, site, predicted, labels)
                for case, mask, label in zip(of_cases, predicted, labels, strict=True):
                    of_cases[case][part] = round(dice(mask, label), 4)
            found[kind][site] = of_cases
    return found


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
            rows.append(
                [*row, words(interval_of(mean_gains(of_models, "surest", "largest")), signed=True)]
            )
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
