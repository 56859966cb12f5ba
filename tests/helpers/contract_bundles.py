# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The bundles on which the client's contract is tested: a further one is an entry of a list.

An entry is the bundle's folder, images of one site, and the settings that make it small: two
training cases, one a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT, DEVICE, TINY
from helpers.own_bundle import OWN_BUNDLE, write_noisy_balls

from monai_fairfl.bundle.federation import initial_model
from monai_fairfl.data import CLINICS, SITES, write_clinics, write_sites


@dataclass(frozen=True)
class ContractBundle:
    """A bundle that both clients train and evaluate.

    Args:
        name: of the tests with it.
        root: its folder, which is copied.
        write_site: writes the folder of one site into a folder.
        small: overrides for small images and a small network, and for one case a step.
        arguments: of both clients.
    """

    name: str
    root: Path
    write_site: Callable[[Path], object]
    small: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, images: Path, folder: Path) -> dict[str, Any]:
        """Overrides for a client of these images, whose files go below ``folder``."""
        return {
            "dataset_dir": str(images),
            "datalist_file": str(folder.parent / f"{folder.name}.json"),
            "ckpt_dir": str(folder / "models"),
            "output_dir": str(folder / "eval"),
            "device": f"$torch.device('{DEVICE}')",
            **self.small,
        }

    def weights(self) -> dict[str, Any]:
        """Initial weights of the small network."""
        found, _ = initial_model(self.root, dict(self.small))
        return dict(found)


def _prostates(folder: Path) -> None:
    write_sites(folder, sites=SITES[:1], seed=0, size=(48, 48, 8), cases=4)


def _photographs(folder: Path) -> None:
    write_clinics(folder, clinics=CLINICS[:1], size=64, cases=4)


def _balls(folder: Path) -> None:
    write_noisy_balls(folder, ["north"], side=16, centres=(6, 10), squared_radius=16)


CONTRACT_BUNDLES = [
    ContractBundle(
        "prostate",
        CHECKOUT / "bundles" / "prostate_mri_segmentation",
        _prostates,
        {**TINY, "batch_size": 1, "cache_rate": 0.0},
    ),
    ContractBundle(
        "fundus",
        CHECKOUT / "bundles" / "fundus_disc_cup_segmentation",
        _photographs,
        {"size": [32, 32], "working_size": 64, "channels": [4, 8], "batch_size": 1},
    ),
    ContractBundle(
        "own_bundle",
        OWN_BUNDLE,
        _balls,
        # Its handler takes no interval of 0.
        {"train#dataloader#batch_size": 1, "val_interval": 1},
        # It has no evaluate.json.
        {"config_evaluate_filename": ["configs/train.json"]},
    ),
]
"""The first is the one of tests that name none."""


def _parameters() -> list[Any]:
    first, *others = CONTRACT_BUNDLES
    parameters = [pytest.param(first, id=first.name)]
    for bundle in others:
        marks = (pytest.mark.slow, pytest.mark.long)
        parameters.append(pytest.param(bundle, id=bundle.name, marks=marks))
    return parameters


on_every_bundle = pytest.mark.parametrize("contract_bundle", _parameters(), indirect=True)
"""Runs a test of the fixtures ``built``, ``bundle`` and ``initial`` once for each bundle."""
