# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The initial model of a bundle's federation, and the recipe that its models carry."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.errors import ConfigError, FederationError, in_words
from monai_fairfl.messages import ModelSpec, Weights, read_spec
from monai_fairfl.model_files.recipe import (
    ModelRecipe,
    acts,
    digests_of_files,
    read_recipe,
    state_of_file,
)
from monai_fairfl.run.resuming import FullRun
from monai_fairfl.utils.files import sha256_of

logger = logging.getLogger(__name__)


def initial_model(
    bundle_root: str | Path,
    overrides: Mapping[str, Any] | None = None,
    file: str | None = None,
    config: Sequence[str] = TRAIN,
) -> tuple[Weights, ModelSpec]:
    """Build ``network_def`` of a bundle and read its specification; runs under the caller's seed.

    Args:
        bundle_root: the bundle; the example input's shape is read from its metadata, its channels
            and axes from ``network_def`` where that has them.
        overrides: of the training configuration.
        file: a ``state_dict`` whose values replace the built ones, or a checkpoint with one under
            ``"model"``.
        config: files of the training configuration.

    Raises:
        ConfigError: when the network cannot be built.
        FederationError: when ``file`` does not fit the network.

    >>> from monai_fairfl import find_bundle
    >>> root = find_bundle("prostate_mri_segmentation")
    >>> weights, spec = initial_model(root, {"channels": [2, 4, 4]})
    >>> sum(weights[name].numel() for name in spec.parameters), spec.output
    (1297, ('output_block.conv.conv', 0))
    """
    root = Path(bundle_root)
    configuration.make_scripts_importable(root)
    parser = configuration.train_config(root, overrides or {}, config)
    try:
        network = parser.get_parsed_content("network_def")
    except Exception as error:  # whatever a constructor raises
        given = f" with overrides {dict(overrides)}" if overrides else ""
        raise ConfigError(
            f"network_def of {bundle_root} cannot be built{given}: {in_words(error)}"
        ) from error
    shape = configuration.network_shape(root, parser)
    spec = read_spec(network, torch.zeros(shape))
    if file is not None:
        try:
            network.load_state_dict(state_of_file(file))
        except (ConfigError, RuntimeError) as error:
            raise FederationError(f"initial model {file} cannot be used: {error}") from error
    return spec.tensors_of(network), spec


def bundle_recipe(
    root: Path,
    everybody: SiteSettings,
    sites: Mapping[str, Mapping[str, Any]],
    full_run: Mapping[str, Any] | None,
) -> ModelRecipe | None:
    """The recipe of the models that a federation of this bundle trains.

    Args:
        root: of the bundle; its configuration declares the recipe under the key ``recipe``.
        everybody: settings of all sites.
        sites: site -> its own overrides, and ``"config"``, its own files. The values that a site
            trains with instead of those of all go into the recipe.
        full_run: of the bundle, its ``rounds`` and ``local_epochs``; ``None``: it names none.

    Returns:
        The recipe; ``None`` where the bundle declares none.
    """
    recipe = _declared_recipe(root, everybody)
    if recipe is None:
        return None
    values_of_sites = {}
    for site, additions in sites.items():
        of_site = _declared_recipe(root, everybody.for_site(additions))
        other = {}
        for key, value in (of_site.values if of_site else {}).items():
            if value != recipe.values.get(key):
                other[key] = value
        if other:
            values_of_sites[site] = other
    recipe = replace(recipe, files=digests_of_files(root, everybody.config), sites=values_of_sites)
    if not recipe.values:
        # Which values decide what a model gives is not known: whatever was given may.
        own = _given_values(everybody.overrides)
        if own:
            recipe = recipe.trained(overrides=own)
        of_sites = {site: _given_values(additions) for site, additions in sites.items()}
        if any(of_sites.values()):
            of_sites = {site: values for site, values in of_sites.items() if values}
            recipe = recipe.trained(overrides_of_sites=of_sites)
    recipe = recipe.trained(local_epochs=everybody.local_epochs)
    full = FullRun.read(full_run)
    if full is not None:
        length = {"rounds": full.rounds, "local_epochs": full.local_epochs}
        recipe = recipe.trained(full_run=length)
    return recipe


def _given_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without what a split or a place is, or what a configuration would carry out."""
    found = {}
    for key, value in overrides.items():
        of_the_data = key.startswith("split_") or key in ("config", "dataset_dir", "datalist_file")
        if not of_the_data and not acts(value):
            found[key] = value
    return found


def _declared_recipe(root: Path, settings: SiteSettings) -> ModelRecipe | None:
    """The recipe that a configuration declares; ``None`` where it declares none."""
    parser = configuration.train_config(root, settings.overrides, settings.config)
    parser["bundle_root"] = str(root)
    recipe: ModelRecipe | None = configuration.parsed_value(parser, "recipe")
    return recipe


def warn_of_other_training(file: str | Path, recipe: ModelRecipe | None) -> None:
    """Report an initial model that was trained with other values than a federation trains with.

    Args:
        file: of the initial model; without a recipe in it, nothing is reported.
        recipe: of the federation's models; ``None``: unknown.
    """
    previous = read_recipe(file)
    if previous is None or recipe is None:
        return
    before, now = ({"bundle": each.bundle, **each.values} for each in (previous, recipe))
    for key, value in now.items():
        if key in before and before[key] != value:
            words = "%s was trained with %s %r, and this federation trains with %r"
            logger.warning(words, file, key, before[key], value)


def digests_of_configs(bundle_root: Path, others: Sequence[str] = ()) -> dict[str, str]:
    """Name -> SHA-256 of every configuration file of a bundle, for the ``settings.json`` of a run.

    Args:
        bundle_root: the bundle.
        others: files of the training's configuration, relative to the bundle; those that lie
            elsewhere than in its ``configs`` are named as they are here.
    """
    folder = bundle_root / "configs"
    files = {}
    for ending in ("json", "yaml", "yml"):
        files.update({file.name: file for file in sorted(folder.glob(f"*.{ending}"))})
    for name in others:
        file = bundle_root / name
        if file.parent.absolute() != folder.absolute() and file.is_file():
            files[name] = file
    return {name: sha256_of(file) for name, file in files.items()}
