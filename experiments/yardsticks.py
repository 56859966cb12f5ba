# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Models outside a study's federations: their masks of the study's test cases, and their Dice.

The masks are those that the study's own test scores: mirrored slices averaged, the largest
component, the grid of the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ignite.engine import Engine, Events
from monai.bundle import ConfigParser
from monai.engines import SupervisedEvaluator
from study import ROOT, Cell, Study

from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.data import site_datalist
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.protocol.values import Weights

Mask = npt.NDArray[np.bool_]
ROUNDING = 0.001
"""By so much may a model's Dice differ from what its own run recorded."""
EVALUATE = "configs/evaluate.json"
SPLIT = {"folds": "split_folds", "fold": "split_fold", "validation": "split_validation"}
"""Argument of a split -> its key in a bundle's configuration."""


def folders(study: Study, data: Path) -> dict[str, Path]:
    """Site -> the folder of its images."""
    return dict(sorted(site_folders(study.sites_root(data, Path())).items()))


def settings_of(study: Study, cell: Cell, site: str) -> dict[str, Any]:
    """Return the values with which a site trains in a cell."""
    of_sites = study.arguments_of(cell).get("sites", {})
    return {**study.overrides_of(cell), **of_sites.get(site, {})}


def split_of(study: Study, cell: Cell, site: str, folder: Path) -> dict[str, Any]:
    """Return the training, validation and testing cases of a site in a cell."""
    settings = settings_of(study, cell, site)
    arguments = {name: settings[key] for name, key in SPLIT.items()}
    return site_datalist(folder, seed=settings["split_seed"], **arguments)


def training_configuration(study: Study, cell: Cell) -> ConfigParser:
    """Return the training configuration of a cell, with the values that all sites share."""
    bundle = ROOT / "bundles" / study.bundle
    files = study.arguments_of(cell)["config"]
    parser = train_config(bundle, study.overrides_of(cell), files)
    parser["bundle_root"] = str(bundle)
    parser["device"] = "$torch.device('cpu')"
    return parser


def test_engine(
    study: Study, cell: Cell, cases: list[dict[str, Any]], **values: Any
) -> SupervisedEvaluator:
    """Return what tests a network of the cell on these cases, without any saved file.

    Args:
        study: of the cell.
        cell: whose network and settings are tested.
        cases: of one site.
        values: of the configuration, other than in the study.
    """
    bundle = ROOT / "bundles" / study.bundle
    files = [*study.arguments_of(cell)["config"], EVALUATE]
    deciding = training_configuration(study, cell).get_parsed_content("deciding")
    parser = ConfigParser()
    parser.read_config([str(bundle / file) for file in files])
    parser.update({**deciding, **study.overrides_of(cell), **values})
    parser["bundle_root"] = str(bundle)
    parser["device"] = "$torch.device('cpu')"
    parser["network"] = "$@network_def.to(@device)"
    parser["datalist"] = {"training": [], "validation": [], "testing": cases}
    # They save numbers, and read weights that are not in a file here.
    parser["validate#handlers"] = []
    # Only masks are taken from it: distances of surfaces would take longer than all the rest.
    parser["validate#additional_metrics"] = None
    engine: SupervisedEvaluator = parser.get_parsed_content("validate#evaluator")
    return engine


def masks(engine: SupervisedEvaluator, weights: Weights) -> tuple[list[Mask], list[Mask]]:
    """Return the masks of all test cases and their labels, in the order of the cases."""
    predicted: list[Mask] = []
    labels: list[Mask] = []

    def note(running: Engine) -> None:
        for case in running.state.output:  # type: ignore[union-attr]
            predicted.append(np.asarray(case["pred"].cpu()[0]) > 0.5)
            labels.append(np.asarray(case["label"].cpu()[0]) > 0.5)

    engine.network.load_state_dict(dict(weights))
    with engine.add_event_handler(Events.ITERATION_COMPLETED, note):
        engine.run()
    return predicted, labels


def dice(mask: Mask, label: Mask) -> float:
    """Compute Dice; 1 where both are empty.

    >>> dice(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    """
    size = int(mask.sum()) + int(label.sum())
    if not size:
        return 1.0
    return 2 * int((mask & label).sum()) / size


def names_of_cases(result: Mapping[str, Any], site: str) -> list[str]:
    """Return the names of a site's test cases in a cell's result, in the order of its tests."""
    of_sites = result["test"]["cases"]
    return list(of_sites.get(site) or of_sites["all"])


def require_recorded(
    result: Mapping[str, Any], site: str, predicted: Sequence[Mask], labels: Sequence[Mask]
) -> None:
    """Refuse masks that are not those which the cell's own test scored.

    Raises:
        ValueError: a Dice differs by more than rounding, or the number of cases differs.
    """
    recorded = result["test"]["dice"][site]
    if len(predicted) != len(recorded):
        raise ValueError(
            f"{site}, seed {result['seed']}: {len(predicted)} test cases here and {len(recorded)} "
            "in its run"
        )
    for number, (score, mask, label) in enumerate(zip(recorded, predicted, labels, strict=True)):
        if abs(dice(mask, label) - score) > ROUNDING:
            raise ValueError(
                f"{site}, seed {result['seed']}: test case {number} has Dice "
                f"{dice(mask, label):.4f} here and {score} in its run"
            )
