# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What tests of several bundles share: the bundles, two generated sites of each, small models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.made_once import MadeOnce
from helpers.shipped_bundles import BUNDLES, TRAIN, Bundle

# They are written for the model zoo's own runner; test_commands.py runs them as it does.
collect_ignore_glob = ["unit_tests/*"]


def _short_name(bundle: Bundle) -> str:
    return bundle.name.partition("_")[0]


@pytest.fixture(scope="module", params=BUNDLES, ids=_short_name)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """Each of the shipped bundles."""
    torch.set_num_threads(1)
    shipped: Bundle = request.param
    return shipped


@pytest.fixture(scope="module")
def sites(bundle: Bundle, made_once: MadeOnce) -> Path:
    """Two generated sites of four cases each; read only."""
    return made_once(f"sites_of_{bundle.name}", bundle.write)


@pytest.fixture(scope="module")
def site(sites: Path, bundle: Bundle) -> Path:
    """The site whose cases carry all labels; read only."""
    return sites / bundle.whole_sites(sites)[0]


@pytest.fixture(scope="module")
def one_image(bundle: Bundle, site: Path, made_once: MadeOnce) -> Path:
    """A folder with the image of one case, for inference; read only."""

    def copy_first_image(folder: Path) -> None:
        for image in (site / bundle.images).glob("Case00.*"):
            shutil.copy(image, folder)

    return made_once(f"one_image_of_{bundle.name}", copy_first_image)


@pytest.fixture(scope="module")
def trained(bundle: Bundle, site: Path, made_once: MadeOnce) -> Path:
    """The file of a model trained for two epochs on :func:`site`; read only."""

    def train(folder: Path) -> None:
        bundle.run(TRAIN, site, folder, max_epochs=2)

    return made_once(f"trained_{bundle.name}", train) / "model.pt"
