# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What tests of several bundles share: the bundles, two generated sites of each, small models."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.made_once import MadeOnce
from helpers.shipped_bundles import BUNDLES, OWN, TRAIN, Bundle, Federated

from monai_fairfl import BundleFederation
from monai_fairfl.strategies import FedAvg

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


@pytest.fixture(scope="session")
def federated(made_once: MadeOnce) -> Federated:
    """Maker of a folder with ``sites`` and ``run``, a federation by a recipe; read only."""

    def federate(bundle: Bundle, recipe: str, folder: Path) -> None:
        bundle.write(folder / "sites")
        config = ["configs/train.json"]
        if recipe in bundle.recipes:
            config.append(f"configs/{recipe}.json")
        if recipe == OWN:
            overlay = folder / "own.json"
            overlay.write_text(json.dumps(bundle.own_overlay))
            config.append(str(overlay))
        # Its masks are neither empty nor full.
        learning = {"learning_rate": 0.01, "augmentation": []}
        BundleFederation(
            str(bundle.root),
            str(folder / "sites"),
            FedAvg(),
            rounds=1,
            local_epochs=8,
            run_dir=str(folder / "run"),
            config=config,
            overrides={**bundle.small, **bundle.recipes.get(recipe, {}), **learning},
            report=False,
        ).run()

    return lambda bundle, recipe: made_once(
        f"federated_{bundle.name}_{recipe}", partial(federate, bundle, recipe)
    )
