# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The initial model of a job, as files beside the server's configuration.

The maker of the job writes them, and the server reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.model_files.recipe import ModelRecipe, recipe_of_json
from monai_fairfl.utils.files import tensors_as_bytes, write_atomically

INITIAL = "initial"
"""The folder's name."""
MODEL = "model.safetensors"
SPEC = "spec.json"
RECIPE = "recipe.json"
SETTINGS = "job.json"


def write_initial(
    folder: str | Path,
    weights: Weights,
    spec: ModelSpec,
    recipe: ModelRecipe | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a model and what each of its tensors is; no pickle.

    Args:
        folder: gets ``model.safetensors`` and ``spec.json``.
        weights: parameters and buffers, without aliases.
        spec: of the model.
        recipe: how the sites train it, where the bundle declares it; ``recipe.json``.
        settings: of the job, for the run's ``config.json``, where a bundle is trained;
            ``job.json``.
    """
    folder = Path(folder)
    write_atomically(folder / MODEL, tensors_as_bytes(weights))
    _write_json(folder / SPEC, spec.to_json())
    if recipe is not None:
        _write_json(folder / RECIPE, recipe.state_dict())
    if settings is not None:
        _write_json(folder / SETTINGS, settings)


def read_initial(folder: str | Path) -> tuple[Weights, ModelSpec]:
    """Return the model that :func:`write_initial` wrote.

    Raises:
        FederationError: when the job does not hold it.
    """
    folder = Path(folder)
    try:
        tensors = load_file(folder / MODEL)
        spec = ModelSpec.from_json(json.loads((folder / SPEC).read_text()))
        weights = {name: tensors[name] for name in (*spec.parameters, *spec.buffers)}
    except (OSError, KeyError, ValueError) as error:
        raise FederationError(
            f"the job holds no initial model in {folder} ({error}): write it with FairFLRecipe or "
            "'monai-fairfl export-flare', not by hand"
        ) from error
    return weights, spec


def read_initial_recipe(folder: str | Path) -> ModelRecipe | None:
    """Return the recipe that :func:`write_initial` wrote; ``None`` where the job has none.

    Raises:
        ConfigError: when the file is no recipe.
    """
    file = Path(folder) / RECIPE
    if not file.is_file():
        return None
    return recipe_of_json(file.read_text(), file)


def read_job_settings(folder: str | Path) -> dict[str, Any] | None:
    """Return the settings that :func:`write_initial` wrote; ``None`` where the job has none."""
    file = Path(folder) / SETTINGS
    if not file.is_file():
        return None
    settings: dict[str, Any] = json.loads(file.read_text())
    return settings


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(content, indent=1).encode())
