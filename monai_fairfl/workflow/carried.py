# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a model brings because the bundle has it otherwise: overlays of its configurations.

A configuration file of the training may have changed the network, the preparation of images or the
inferer. The model's recipe has these parts, so inference and evaluation need no such file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.configuration import (
    INFERENCE,
    TRAIN,
    parsed_value,
    read_configs,
    read_keys,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.workflow.running_recipe import key_as_written, parts_of

TRANSFORMS = "train#deterministic_transforms"
INFERER = "validate#inferer"

OF_EACH_KEY = ("mode", "padding_mode", "align_corners", "anti_aliasing", "dtype")
"""Arguments of MONAI's transforms with a value for each of several keys."""


def carried_sections(recipe: ModelRecipe, bundle_root: Path) -> dict[str, Any]:
    """The sections of a training that the bundle would build otherwise from the same values.

    Args:
        recipe: of the model.
        bundle_root: the bundle that uses it.

    Returns:
        Section -> content, as the recipe has it.
    """
    training = read_configs(bundle_root, TRAIN)
    # The bundle says what models bring: a model may replace nothing else.
    declared = map(key_as_written, parsed_value(training, "recipe#sections") or ())
    sections = [section for section in declared if section in recipe.parts]
    for key, value in recipe.values.items():
        if key.isidentifier() and key != "recipe" and key in training:
            training[key] = value
    unlabelled = parsed_value(training, "recipe#unlabelled")
    own = parts_of(training, sections, recipe.values, unlabelled)
    carried = {}
    for section in sections:
        content = recipe.parts[section]["content"]
        if section not in own or own[section]["content"] != content:
            carried[section] = content
    return carried


def evaluation_overlay(recipe: ModelRecipe, bundle_root: Path) -> dict[str, Any]:
    """What comes between ``train.json`` and ``evaluate.json`` for a model; often nothing."""
    carried = carried_sections(recipe, bundle_root)
    known = read_configs(bundle_root, TRAIN)
    return {**carried, **_values_of(carried, recipe, known)}


def inference_overlay(recipe: ModelRecipe, bundle_root: Path) -> dict[str, Any]:
    """What comes after ``inference.json`` for a model; often nothing.

    Raises:
        ConfigError: when that file has no place for what the model brings.
    """
    config = read_keys(bundle_root / INFERENCE)
    carried = carried_sections(recipe, bundle_root)
    overlay: dict[str, Any] = {}
    for section, content in carried.items():
        key, place = section, content
        if section == TRANSFORMS:
            key, place = "preprocessing#transforms", _of_images(content)
        elif section == INFERER:
            inferer = config.get("inferer")
            is_nested = isinstance(inferer, Mapping) and "inferer" in inferer
            key = "inferer#inferer" if is_nested else "inferer"
        if key.partition("#")[0] not in config:
            raise ConfigError(
                f"{bundle_root / INFERENCE} has no {key}, which this model's training changed: add "
                "it there"
            )
        overlay[key] = place
    return {**overlay, **_values_of(carried, recipe, config)}


def _values_of(carried: Mapping[str, Any], recipe: ModelRecipe, known: Any) -> dict[str, Any]:
    """The values that only the parts of the training know, as its configuration had them."""
    found = {}
    for section in carried:
        for key in recipe.parts[section]["values"]:
            if key in recipe.values and key not in known:
                found[key] = recipe.values[key]
                found[f"deciding#{key}"] = f"@{key}"
    return found


def _of_images(transforms: Any) -> list[dict[str, Any]]:
    """The transforms of images with labels, for images alone."""
    found = []
    for transform in transforms:
        keys = transform.get("keys")
        keys = [keys] if isinstance(keys, str) else list(keys or ())
        if "image" not in keys:
            continue
        of_image = {**transform, "keys": "image"}
        for name in OF_EACH_KEY:
            value = transform.get(name)
            if isinstance(value, list) and len(value) == len(keys):
                of_image[name] = value[keys.index("image")]
        found.append(of_image)
    return found
