# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The bundles on which the client's contract is tested: a further one is an entry of a list.

An entry is the bundle's folder, images of one site, and the settings that make it small: two
training cases, one a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers.checkout import DEVICE, TINY
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls
from helpers.made_once import MadeOnce
from helpers.own_bundle import OWN_BUNDLE, write_noisy_balls

from monai_fairfl.bundle.adoption import adopt_bundle
from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.bundle.settings import TRAIN
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.data import CLINICS, SITES, write_clinics, write_sites


@dataclass(frozen=True)
class ContractBundle:
    """A bundle that both clients train and evaluate.

    Args:
        name: of the tests with it.
        find: returns its folder, which is copied.
        write_site: writes the folder of one site into a folder.
        small: overrides for small images and a small network, and for one case a step.
        arguments: of both clients.
        files: of the training configuration, where ``arguments`` name them, too.
        repeats: whether the same seed gives the same bits on a GPU, too.
    """

    name: str
    find: Callable[[], Path]
    write_site: Callable[[Path], object]
    small: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[str] = TRAIN
    repeats: bool = True

    def skip_unless_it_repeats(self) -> None:
        """Skip a test that compares the bits of two trainings, where the GPU's differ."""
        if DEVICE != "cpu" and not self.repeats:
            pytest.skip(f"{self.name}: interpolation has no deterministic gradient on a GPU")

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.find()

    def images(self, made_once: MadeOnce) -> Path:
        """The images of one site, made once for all tests; read only."""
        root = made_once(f"contract_{self.name}", self.write_site)
        [site] = [path for path in root.iterdir() if path.is_dir()]
        return site

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
        found, _ = initial_model(self.root, dict(self.small), config=self.files)
        return dict(found)


def _prostates(folder: Path) -> None:
    write_sites(folder, sites=SITES[:1], seed=0, size=(48, 48, 8), cases=4)


def _photographs(folder: Path) -> None:
    write_clinics(folder, clinics=CLINICS[:1], size=64, cases=4)


def _balls(folder: Path) -> None:
    write_noisy_balls(folder, ["north"], side=16, centres=(6, 10), squared_radius=16)


ADOPTED = ["configs/train.json", "configs/federated_train.json"]
SCORES = "configs/federated_evaluate.json"


@cache
def _adopted() -> Path:
    """A bundle of others, as ``monai-fairfl adopt`` leaves it."""
    folder = Path(_TEMPORARY.name, "bundle")
    write_foreign_bundle(folder, "segresnet", classes=3)
    return adopt_bundle(folder).bundle


_TEMPORARY = TemporaryDirectory()
"""Removed when the tests end."""


def _nested_balls(folder: Path) -> None:
    write_nested_balls(folder, ["north"], side=16, classes=3, cases=4)


def _listed(name: str) -> str:
    return f"$sorted(glob.glob(@dataset_dir + '/{name}/*.nii.gz'))"


CONTRACT_BUNDLES = [
    ContractBundle(
        "prostate",
        partial(find_bundle, "prostate_mri_segmentation"),
        _prostates,
        {**TINY, "batch_size": 1, "cache_rate": 0.0},
    ),
    ContractBundle(
        "fundus",
        partial(find_bundle, "fundus_disc_cup_segmentation"),
        _photographs,
        {"size": [32, 32], "working_size": 64, "channels": [4, 8], "batch_size": 1},
    ),
    ContractBundle(
        "own_bundle",
        lambda: OWN_BUNDLE,
        _balls,
        # Its handler takes no interval of 0.
        {"train#dataloader#batch_size": 1, "val_interval": 1},
        # It has no evaluate.json.
        {"config_evaluate_filename": ["configs/train.json"]},
    ),
    ContractBundle(
        "adopted",
        _adopted,
        _nested_balls,
        # The bundle's own paths need a folder that ends with a slash.
        {"images": _listed("volumes"), "labels": _listed("outlines")},
        {"config_train_filename": ADOPTED, "config_evaluate_filename": [*ADOPTED, SCORES]},
        ADOPTED,
        # The SegResNet's upsampling.
        repeats=False,
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
