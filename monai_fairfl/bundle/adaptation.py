# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A finished model is adapted to one hospital, which need not have been in its run.

This is the end of a run (:func:`~monai_fairfl.client.training.candidates`) without the run: the
hospital's client gets the request that a federation sends when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from monai.bundle import ConfigParser

from monai_fairfl import messages
from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.bundle.site import bundle_client, check_files, closing_measurements
from monai_fairfl.data.datalist import cases_of_list, settings_of_split
from monai_fairfl.data.layouts import name_and_folder
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import (
    ModelRecipe,
    num_members,
    read_recipe,
    save_model_file,
    state_of_file,
)
from monai_fairfl.utils.tensors import seed_of

ADAPTED = messages.CANDIDATES[0]
"""The candidate that is trained further: the only one without a run."""

GLOBAL_MODEL = Path("models") / "global.pt"
"""Where a run keeps its global model."""


def adapt_model(
    model: Path,
    bundle_root: Path,
    dataset_dir: Path,
    out: Path,
    datalist_file: Path,
    *,
    epochs: int,
    rate: float,
    device: str,
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Train a model further on one hospital's images, and take it if it gains.

    The training is the bundle's, with a new optimizer and a constant rate. Each epoch is scored on
    the validation cases; the best one counts. The model is taken if its mean gain there is larger
    than the gain's standard error, so at least two validation cases are needed. Test cases only
    report.

    Args:
        model: file with a recipe.
        bundle_root: the bundle that trained it.
        dataset_dir: the hospital's images and labels.
        out: gets ``model.pt`` where the adapted model is taken, and the client's files.
        datalist_file: which cases train, validate and test; made in ``out`` where it is missing.
        epochs: of training, at most.
        rate: learning rate.
        device: such as ``"cpu"`` or ``"cuda:0"``.
        overrides: of the configuration; they win over the values of the recipe.

    Returns:
        ``gain``: mean over the validation cases of the adapted model's score less the given
        model's, with its standard error; ``epochs`` of training until the best one, 0: none was
        better; ``before`` and ``after``: closing measurement, such as ``"test_score"`` -> its value
        for the given model and the adapted one; ``model``: file of the adapted one, ``None``: it
        was not taken.

    Raises:
        ConfigError: when the model is a fused one, has no recipe or one of another bundle, its
            configuration is not at hand, or the bundle has no evaluator.
        DataError: when files of the hospital are at fault.
    """
    site = name_and_folder(dataset_dir)[0]
    recipe = read_recipe(model)
    weights = state_of_file(model)
    # Of an adopted bundle only the models of a run's folder say how they were trained.
    if recipe is None or not {**recipe.values, **recipe.training} or num_members(weights):
        raise ConfigError(
            f"{model} is fused, or no recipe says how it was trained: adapt a single model of a "
            "run's models/"
        )
    configuration.require_same_bundle(model.name, recipe, bundle_root)
    files = list(recipe.files or TRAIN)
    untouched = configuration.train_config(bundle_root, {}, files)
    values = values_of(recipe, site, untouched) | values_of_list(datalist_file, untouched)
    values |= overrides
    cases = cases_of_list(datalist_file, dataset_dir) if datalist_file.is_file() else None
    check_files(bundle_root, dataset_dir, values, cases)
    final = closing_measurements(bundle_root)
    scored = messages.score_names(ADAPTED)
    adapted_names = {name: scored[name] for name in final if name in scored}
    names = (*final, *adapted_names.values(), messages.gain_name(ADAPTED), messages.ADAPTED_EPOCHS)
    context = {"closing": 1.0, "adapt_epochs": float(epochs), "adapt_rate": float(rate)}
    seed = seed_of(0, site, 0)
    request = messages.Request(
        site, "measure", weights, names, context, run="adapt", round=0, seed=seed
    )
    client = bundle_client(
        bundle_root,
        site,
        out / "site",
        dataset_dir=dataset_dir,
        datalist_file=datalist_file,
        device=device,
        config=files,
        overrides=values,
    )
    try:
        found = client.answer(request).measurements
    finally:
        client.finalize()
    if messages.gain_name(ADAPTED) not in found:
        raise ConfigError(f"{bundle_root} has no validate#evaluator to judge the model: add it")
    gain = cast(messages.Estimate, found[messages.gain_name(ADAPTED)])
    length = int(messages.value_of(found[messages.ADAPTED_EPOCHS]))
    taken = None
    if messages.is_taken(gain):
        taken = out / "model.pt"
        adapted = state_of_file(client.states.path("adapt", "own.pt"))
        how = {"hospital": site, "epochs": length, "rate": rate}
        save_model_file(taken, adapted, recipe.of_site(site).trained(adapted=how))
    return {
        "gain": gain,
        "epochs": length,
        "before": {name: found[name] for name in final if name in found},
        "after": {name: found[other] for name, other in adapted_names.items() if other in found},
        "model": taken and str(taken),
    }


# ---- how the model was trained


def values_of(recipe: ModelRecipe, site: str, config: ConfigParser) -> dict[str, Any]:
    """The values of a recipe that the training's configuration has, for one hospital.

    Of a bundle whose recipes have none, such as an adopted one, they are the training's overrides.
    """
    training = recipe.training
    own = training.get("overrides_of_sites", {}).get(site, {})
    values = {**training.get("overrides", {}), **own, **recipe.of_site(site).values}
    return {key: values[key] for key in values if (key.rpartition("#")[0] or key) in config}


def values_of_list(datalist: Path, config: ConfigParser) -> dict[str, Any]:
    """The values with which a data list was made, where the training's configuration has others."""
    values = {key: value for key, value in settings_of_split(datalist).items() if key in config}
    return {key: value for key, value in values.items() if config.get_parsed_content(key) != value}
