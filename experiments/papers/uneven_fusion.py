# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven hospitals, yardstick: no training in common, only the masks of all hospitals' own models.

Each hospital trains alone and sends its model. Where it is used, the masks of all of them are
fused: by majority, where half of them is enough, and by STAPLE (Warfield et al., IEEE TMI 2004).
Segmentation fusion has been found equal to averaging models (arXiv 2309.17097).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import uneven
from reading import measurement
from study import ALONE, Cell, Study
from yardsticks import (
    Mask,
    dice,
    folders,
    masks,
    names_of_cases,
    require_recorded,
    split_of,
    test_engine,
)

from monai_fairfl.utils.saved_files import read_state_dict

STUDIES = ("uneven_prostate",)
SMALL = "BIDMC"
FUSIONS = {"majority": "majority of the masks", "staple": "STAPLE of the masks"}
"""Key -> title of a row."""


def majority(found: Sequence[Mask]) -> Mask:
    """Take the voxels that at least half of the masks have.

    >>> masks_of_four = [np.array([True, True]), *[np.array([True, False])] * 3]
    >>> majority(masks_of_four).tolist()
    [True, False]
    """
    return 2 * np.sum(found, axis=0) >= len(found)


def staple(found: Sequence[Mask]) -> Mask:
    """Take the voxels whose probability by STAPLE is above one half."""
    import SimpleITK

    images = [SimpleITK.GetImageFromArray(mask.astype(np.uint8)) for mask in found]
    return SimpleITK.GetArrayFromImage(SimpleITK.STAPLE(images, 1.0)) > 0.5


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Fusion -> seed -> site -> test case -> Dice.

    The models trained alone must be in the folder of runs. Without SimpleITK there is no STAPLE.
    """
    study = Study.read(STUDIES[0])
    fusions = {"majority": majority}
    if find_spec("SimpleITK") is not None:
        fusions["staple"] = staple
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {name: {} for name in fusions}
    for fold in study.repeats or range(study.folds):
        cell = Cell("", ALONE, fold)
        result = json.loads(study.path(cell).read_text())
        for site, folder in folders(study, data).items():
            of_models, labels = _masks_of_all(study, cell, site, folder, data, runs)
            names = names_of_cases(result, site)
            require_recorded(result, site, of_models[site], labels)
            for name, fuse in fusions.items():
                scores = {}
                for number, case in enumerate(names):
                    fused = fuse([of_model[number] for of_model in of_models.values()])
                    scores[case] = round(dice(fused, labels[number]), 4)
                found[name].setdefault(str(result["seed"]), {})[site] = scores
    return found


def _masks_of_all(
    study: Study, cell: Cell, site: str, folder: Path, data: Path, runs: Path
) -> tuple[dict[str, list[Mask]], list[Mask]]:
    """Return the masks of a site's test cases by each hospital's own model, and the labels."""
    engine = test_engine(study, cell, split_of(study, cell, site, folder)["testing"])
    of_models = {}
    for owner in folders(study, data):
        weights = read_state_dict(study.model(cell, runs, owner))
        of_models[owner], labels = masks(engine, weights)
    return of_models, labels


def table() -> str:
    """A row per fusion beside training alone and FedAvg; gains are over FedAvg."""
    measured = measurement("uneven_fusion")
    found = uneven.complete(STUDIES[0])
    values = {
        "training alone": uneven.by_seed(found[ALONE]),
        "FedAvg": uneven.by_seed(found["FedAvg"]),
    }
    absent = []
    for key, title in FUSIONS.items():
        if key in measured:
            values[title] = {int(seed): of_seed for seed, of_seed in measured[key].items()}
        else:
            absent.append(title)
    text = uneven.table_of(values, SMALL)
    if absent:
        text += f"\n\nNot measured, because SimpleITK was not installed: {', '.join(absent)}."
    return text
