# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven hospitals, yardstick: all training volumes in one place.

One training with the recipe of the federations and as many epochs, on the training volumes of all
hospitals; its last model is tested at each of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import uneven
from monai.utils import set_determinism
from reading import measurement
from study import ALONE, Cell, Study
from yardsticks import (
    dice,
    folders,
    masks,
    names_of_cases,
    split_of,
    test_engine,
    training_configuration,
)

from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.terminal import quiet

STUDIES = ("uneven_prostate",)
SMALL = "BIDMC"


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Seed -> site -> test case -> Dice; the cases are named as in the runs of training alone."""
    study = Study.read(STUDIES[0])
    found: dict[str, dict[str, dict[str, float]]] = {}
    for fold in study.repeats or range(study.folds):
        cell = Cell("", ALONE, fold)
        result = json.loads(study.path(cell).read_text())
        splits = {}
        for site, folder in folders(study, data).items():
            splits[site] = split_of(study, cell, site, folder)
        weights = _trained(study, cell, splits, runs / "uneven_pooled" / cell.name)
        of_sites = {}
        for site, split in splits.items():
            predicted, labels = masks(test_engine(study, cell, split["testing"]), weights)
            names = names_of_cases(result, site)
            scores = {}
            for case, mask, label in zip(names, predicted, labels, strict=True):
                scores[case] = round(dice(mask, label), 4)
            of_sites[site] = scores
        found[str(study.seed_of(cell))] = of_sites
    return {"dice": found}


def _trained(study: Study, cell: Cell, splits: dict[str, Any], folder: Path) -> Weights:
    """Train on the training cases of all sites together."""
    shutil.rmtree(folder, ignore_errors=True)
    parser = training_configuration(study, cell)
    training = []
    for split in splits.values():
        training += split["training"]
    parser["datalist"] = {"training": training, "validation": [], "testing": []}
    parser["ckpt_dir"] = str(folder)
    parser["max_epochs"] = study.rounds_of(cell) * study.local_epochs
    # The last epoch's model counts, as the last round's does.
    parser["val_interval"] = 0
    set_determinism(seed=study.seed_of(cell))
    with quiet():
        parser.get_parsed_content("train#trainer").run()
    weights: Weights = parser.get_parsed_content("network").state_dict()
    return weights


def table() -> str:
    """A row beside FedAvg and training alone; gains are over FedAvg."""
    measured = measurement("uneven_pooled")["dice"]
    found = uneven.complete(STUDIES[0])
    values = {
        "all volumes in one place": {int(seed): of_seed for seed, of_seed in measured.items()},
        "FedAvg": uneven.by_seed(found["FedAvg"]),
        "training alone": uneven.by_seed(found[ALONE]),
    }
    return uneven.table_of(values, SMALL)
