# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's trainings: its recipes, as measured, and the first look of minutes.

The recipe is ``configs/federate.json`` as it is. ``configs/federate_NAME.json`` comes after it for
another recipe: its rounds, local epochs and training configuration. ``configs/quick.json`` comes
after it for a first look: fewer rounds, smaller images and a smaller network.
"""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.errors import ConfigError

RECIPE = "federate_"
"""Beginning of the name of a recipe's overlay of ``federate.json``."""


def recipe_file(bundle: Path, name: str) -> Path:
    """The bundle's overlay of ``federate.json`` for a recipe.

    Raises:
        ConfigError: naming the recipes that there are.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> recipe_file(find_bundle("prostate_mri_segmentation"), "strong").name
    'federate_strong.json'
    """
    files = {file.stem[len(RECIPE) :]: file for file in bundle.glob(f"configs/{RECIPE}*.json")}
    if name not in files:
        known = f"name {' or '.join(sorted(files))}, or leave" if files else "leave"
        raise ConfigError(f"{bundle} has no recipe {name!r}: {known} --recipe out")
    return files[name]


def quick_file(bundle: Path) -> Path:
    """The bundle's overlay for a first look.

    Raises:
        ConfigError: when the bundle has none.
    """
    file = bundle / "configs" / "quick.json"
    if not file.is_file():
        raise ConfigError(
            f"{file} does not exist: a first look needs its rounds, local_epochs and overrides; "
            "write them there, or give --rounds, --local-epochs and --overrides"
        )
    return file
