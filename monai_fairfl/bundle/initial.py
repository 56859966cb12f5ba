# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The initial model of a bundle's federation, and the recipe that its models carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.bundle.site import evaluation_files
from monai_fairfl.errors import ConfigError, FederationError, in_words
from monai_fairfl.messages import ModelSpec, Weights, read_spec
from monai_fairfl.model_files.recipe import ModelRecipe, acts, digests_of_files, state_of_file
from monai_fairfl.run.resuming import FullRun
from monai_fairfl.utils.named_classes import made


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
    parser = configuration.train_config(root, overrides or {}, config)
    try:
        network = parser.get_parsed_content("network_def")
    except Exception as error:  # whatever a constructor raises
        raise ConfigError(
            f"network_def of {root} cannot be built with {overrides}: {in_words(error)}"
        ) from error
    spec = read_spec(network, torch.zeros(configuration.input_shape(root, parser)))
    if file is not None:
        try:
            network.load_state_dict(state_of_file(file))
        except (ConfigError, RuntimeError) as error:
            raise FederationError(f"{file} cannot be the initial model: {error}") from error
    return spec.tensors_of(network), spec


def bundle_recipe(
    root: Path,
    everybody: SiteSettings,
    sites: Mapping[str, Mapping[str, Any]],
    full_run: Mapping[str, Any] | None,
) -> tuple[ModelRecipe | None, dict[str, str]]:
    """The recipe of the models that a federation of this bundle trains, and its files.

    Args:
        root: of the bundle; its configuration declares the recipe under the key ``recipe``.
        everybody: settings of all sites.
        sites: site -> its own overrides, and ``"config"``, its own files. The values that a site
            trains with instead of those of all go into the recipe.
        full_run: of the bundle, its ``rounds`` and ``local_epochs``; ``None``: it names none.

    Returns:
        The recipe, ``None`` where the bundle declares none; and name -> SHA-256 of the files that
        decide training and scores, for a run's ``settings.json``. Those that lie elsewhere than in
        the bundle's ``configs`` are named as they are in the settings.

    Raises:
        ConfigError: as :func:`~monai_fairfl.bundle.configuration.train_config`.
    """
    full = None if full_run is None else made(FullRun, [], full_run)
    names: list[str] = []
    recipes: list[ModelRecipe | None] = []
    for additions in ({}, *sites.values()):
        given = everybody.for_site(additions)
        names += given.config
        parser = configuration.train_config(root, given.overrides, given.config)
        parser["bundle_root"] = str(root)
        recipes.append(parser.get_parsed_content("recipe", default=None))
    names = list(dict.fromkeys([*names, *evaluation_files(root)]))
    digests = digests_of_files(root, names)
    files = {}
    for name, digest in digests.items():
        files[Path(name).name if Path(name).parent == Path("configs") else name] = digest

    recipe = recipes[0]
    if recipe is None:
        return None, files
    values_of_sites = {}
    for site, of_site in zip(sites, recipes[1:], strict=True):
        known = {} if of_site is None else of_site.values
        own = {key: known[key] for key in known if known[key] != recipe.values.get(key)}
        if own:
            values_of_sites[site] = own
    of_all = {name: digests[name] for name in everybody.config}
    recipe = replace(recipe, files=of_all, sites=values_of_sites)
    training: dict[str, Any] = {"local_epochs": everybody.local_epochs}
    if not recipe.values:
        # Which values decide what a model gives is not known: whatever was given may.
        by_site = {site: _given_values(additions) for site, additions in sites.items()}
        training |= {"overrides": _given_values(everybody.overrides), "overrides_of_sites": by_site}
    if full is not None:
        training["full_run"] = {"rounds": full.rounds, "local_epochs": full.local_epochs}
    return recipe.trained(**training), files


def _given_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without what a split or a place is, or what a configuration would carry out."""
    names = [name for name in overrides if not name.startswith("split_")]
    of_files = ("config", "dataset_dir", "datalist_file")
    return {n: overrides[n] for n in names if n not in of_files and not acts(overrides[n])}
