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
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.errors import ConfigError, FederationError, in_words
from monai_fairfl.messages import ModelSpec, Weights, read_spec
from monai_fairfl.model_files.recipe import ModelRecipe, acts, digests_of_files, read_recipe
from monai_fairfl.run.resuming import FullRun
from monai_fairfl.utils.files import read_state_dict, sha256_of

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
            network.load_state_dict(read_state_dict(file))
        except (ConfigError, RuntimeError) as error:
            raise FederationError(f"initial model {file} cannot be used: {error}") from error
    return spec.tensors_of(network), spec


def bundle_recipe(
    bundle_root: str | Path,
    overrides: Mapping[str, Any] | None = None,
    config: Sequence[str] = TRAIN,
    sites: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    local_epochs: int | None = None,
    full_run: Mapping[str, Any] | None = None,
) -> ModelRecipe | None:
    """The recipe of the models that a federation of this bundle trains.

    Args:
        bundle_root: the bundle; its configuration declares the recipe under the key ``recipe``.
        overrides: of the training configuration, for all sites.
        config: its files.
        sites: site -> its own overrides, and ``"config"``, its own files. The values that a site
            trains with instead of those of all go into the recipe.
        local_epochs: of each round.
        full_run: of the bundle, its ``rounds`` and ``local_epochs``; ``None``: it names none.

    Returns:
        The recipe; ``None`` where the bundle declares none.
    """
    root = Path(bundle_root)
    recipe = _declared_recipe(root, overrides or {}, config)
    if recipe is None:
        return None
    values_of_sites = {}
    for site, additions in (sites or {}).items():
        site_overrides = dict(overrides or {})
        for key, value in additions.items():
            if key != "config":
                site_overrides[key] = value
        site_recipe = _declared_recipe(root, site_overrides, additions.get("config", config))
        other = _other_values(site_recipe, recipe)
        if other:
            values_of_sites[site] = other
    recipe = replace(recipe, files=digests_of_files(root, config), sites=values_of_sites)
    if not recipe.values:
        # Which values decide what a model gives is not known: whatever was given may.
        recipe = recipe.trained(**_given_values(overrides or {}, sites or {}))
    if local_epochs is not None:
        recipe = recipe.trained(local_epochs=local_epochs)
    full = FullRun.read(full_run)
    if full is not None:
        length = {"rounds": full.rounds, "local_epochs": full.local_epochs}
        recipe = recipe.trained(full_run=length)
    return recipe


def _given_values(
    overrides: Mapping[str, Any], sites: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The overrides of a training, and those of its sites; without what a split or a place is."""
    found: dict[str, Any] = {}
    own = _plain_overrides(overrides)
    if own:
        found["overrides"] = own
    of_sites = {site: _plain_overrides(additions) for site, additions in sites.items()}
    of_sites = {site: values for site, values in of_sites.items() if values}
    if of_sites:
        found["overrides_of_sites"] = of_sites
    return found


def _plain_overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for key, value in given.items():
        of_the_data = key.startswith("split_") or key in ("config", "dataset_dir", "datalist_file")
        # What a configuration would carry out has no place in a model's file.
        if not of_the_data and not acts(value):
            plain[key] = value
    return plain


def _declared_recipe(
    root: Path, overrides: Mapping[str, Any], config: Sequence[str]
) -> ModelRecipe | None:
    """The recipe that a configuration declares; ``None`` where it declares none."""
    parser = configuration.train_config(root, overrides, config)
    if "recipe" not in parser:
        return None
    parser["bundle_root"] = str(root)
    recipe: ModelRecipe = parser.get_parsed_content("recipe")
    return recipe


def _other_values(site_recipe: ModelRecipe | None, recipe: ModelRecipe) -> dict[str, Any]:
    """The values of a site's recipe that differ from those of the recipe of all."""
    other = {}
    if site_recipe is not None:
        for key, value in site_recipe.values.items():
            if value != recipe.values.get(key):
                other[key] = value
    return other


def warn_of_other_training(file: str | Path, recipe: ModelRecipe | None) -> None:
    """Report an initial model that was trained with other values than a federation trains with.

    Args:
        file: of the initial model; without a recipe in it, nothing is reported.
        recipe: of the federation's models; ``None``: unknown.
    """
    previous = read_recipe(file)
    if previous is None or recipe is None:
        return
    if previous.bundle != recipe.bundle:
        logger.warning(
            "%s is a model of the bundle %r, not of %r", file, previous.bundle, recipe.bundle
        )
    for key, value in recipe.values.items():
        if key in previous.values and previous.values[key] != value:
            logger.warning(
                "%s was trained with %s %r, and this federation trains with %r",
                file,
                key,
                previous.values[key],
                value,
            )


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
        for file in sorted(folder.glob(f"*.{ending}")):
            files[file.name] = file
    for name in others:
        file = bundle_root / name
        if file.parent.absolute() != folder.absolute() and file.is_file():
            files[name] = file
    return {name: sha256_of(file) for name, file in files.items()}
