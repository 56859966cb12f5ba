# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's trainings: its recipes, as measured, and the first look of minutes.

The recipe is ``configs/federate.json`` as it is. ``configs/federate_NAME.json`` comes after it for
another recipe: its rounds, local epochs and training configuration. ``configs/quick.json`` comes
after it for a first look: fewer rounds, smaller images and a smaller network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai.utils import ensure_tuple

from monai_fairfl.bundle.configuration import FEDERATE, read_keys
from monai_fairfl.errors import ConfigError

RECIPE = "federate_"
"""Beginning of the name of a recipe's overlay of ``federate.json``."""


@dataclass(frozen=True)
class Recipe:
    """How long a bundle trains, and what it overrides.

    Args:
        rounds: of each strategy.
        local_epochs: of each round.
        overrides: plain values of its training configuration.
        config: files of that configuration; empty: ``train.json`` alone.
    """

    rounds: int
    local_epochs: int
    overrides: Mapping[str, Any]
    config: Sequence[str] = ()


def recipe(bundle: Path, name: str | None = None) -> Recipe:
    """The training of a bundle's ``federate.json``, or its recipe of this name.

    Raises:
        ConfigError: when the bundle has no such file or recipe, or it is damaged.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> found = recipe(find_bundle("prostate_mri_segmentation"), "strong")
    >>> found.rounds, found.local_epochs, found.config
    (100, 6, ('configs/train.json', 'configs/strong.json'))
    """
    federate = _read(bundle / FEDERATE, "a federation needs it")
    if name is None:
        return _recipe_of(federate)
    return _recipe_of({**federate, **read_keys(recipe_file(bundle, name))})


def recipe_file(bundle: Path, name: str) -> Path:
    """The bundle's overlay of ``federate.json`` for a recipe.

    Raises:
        ConfigError: naming the recipes that there are.
    """
    files = {file.stem[len(RECIPE) :]: file for file in bundle.glob(f"configs/{RECIPE}*.json")}
    if name not in files:
        known = f"name {' or '.join(sorted(files))}, or leave" if files else "leave"
        raise ConfigError(f"{bundle} has no recipe {name!r}: {known} --recipe out")
    return files[name]


def first_look(bundle: Path) -> Recipe:
    """The training of a bundle's first look: ``quick.json`` after ``federate.json``.

    Raises:
        ConfigError: when the bundle has none.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> first_look(find_bundle("prostate_mri_segmentation")).overrides["size"]
    [64, 64]
    """
    federate = _read(bundle / FEDERATE, "a federation needs it")
    fix = (
        "a first look needs its rounds, local_epochs and overrides; write them there, or give "
        "--rounds, --local-epochs and --overrides"
    )
    return _recipe_of({**federate, **_read(quick_file(bundle), fix)})


def quick_file(bundle: Path) -> Path:
    """The bundle's overlay for a first look."""
    return bundle / "configs" / "quick.json"


def _recipe_of(content: Mapping[str, Any]) -> Recipe:
    return Recipe(
        rounds=int(content.get("rounds", 1)),
        local_epochs=int(content.get("local_epochs", 1)),
        overrides=dict(content.get("overrides") or {}),
        config=ensure_tuple(content.get("config") or ()),
    )


def _read(file: Path, why: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ConfigError: naming the file, and why it is needed.
    """
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: {why}")
    return read_keys(file)
