# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a running configuration uses a model as its recipe records that it was trained."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.configuration import calling_parser, read_configs, read_metadata
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.workflow.running_recipe import digest_of_section
from monai_fairfl.workflow.section_changes import changes_of

logger = logging.getLogger(__name__)


def require_same_values(
    model: str, recipe: ModelRecipe, values: Mapping[str, Any], own_values: Collection[str]
) -> None:
    """Compare the running configuration's values with those of the training.

    Args:
        model: name of the model's file, for messages.
        recipe: inside the model.
        values: key -> plain value, of the running configuration.
        own_values: keys that may differ, because this hospital's images were trained so.

    Raises:
        ConfigError: when a value differs, or the configuration does not have it.
    """
    differing = {}
    for key, trained in recipe.values.items():
        if key in own_values:
            continue
        if key not in values:
            files = ", ".join(recipe.files) or "not recorded"
            raise ConfigError(
                f"{model} was trained with {key} {trained!r}, which this configuration does not "
                f"know: use version {recipe.version} of the bundle, and the configuration files of "
                f"the training ({files})"
            )
        if values[key] != trained:
            differing[key] = (
                f"{key} is {values[key]!r} here, and {model} was trained with {trained!r}"
            )
    if differing:
        raise ConfigError(
            f"{'; '.join(differing.values())}. Leave it out, and the model's own value is used. "
            "Only where this hospital's images were trained with another value, name the key too: "
            f'--own_values "{list(differing)}"'
        )
    if recipe.sites and not own_values:
        of_sites = [f"{site} {dict(own)}" for site, own in recipe.sites.items()]
        logger.warning(
            "%s was trained with other values on the images of %s: these sites give them by hand, "
            "and name the keys in --own_values",
            model,
            ", ".join(of_sites),
        )


def require_carried(
    model: str,
    recipe: ModelRecipe,
    carried: Collection[str],
    overlay: Mapping[str, Any],
    values: Mapping[str, Any],
    own_values: Collection[str],
) -> None:
    """Refuse a running configuration without what a model brings, or with other values than it has.

    Args:
        model: name of the model's file, for messages.
        recipe: inside the model.
        carried: sections of the training that it brings.
        overlay: key -> content of the running configuration that they make.
        values: key -> plain value, of the running configuration.
        own_values: keys and sections that this hospital changed on purpose.

    Raises:
        ConfigError: naming the sections, or the value.
    """
    running = calling_parser()
    assert running is not None
    others = []
    for key, content in overlay.items():
        changes = changes_of(key, content, running.get(key))
        is_own = not {key, key.partition("#")[0]}.isdisjoint(own_values)
        # By the configuration file of the training.
        is_own |= digest_of_section(running.get(key)) == recipe.sections.get(key)
        if not is_own and not all(change.may_differ for change in changes):
            others.append(key)
    if others:
        raise ConfigError(
            f"{model} was trained with another {', '.join(others)} than this configuration has, "
            "and brings it: monai-fairfl infer, evaluate and export use what a model brings"
        )
    for section in carried:
        for key in recipe.parts[section]["values"]:
            trained = recipe.values[key]
            if values.get(key, trained) != trained:
                raise ConfigError(
                    f"{key} is {values[key]!r} here, and {model} brings its own {section} for "
                    f"{trained!r}: leave {key} out"
                )


def require_same_sections(
    model: str,
    recipe: ModelRecipe,
    bundle_root: Path,
    skipped: Collection[str] = (),
    expected: ConfigParser | None = None,
) -> None:
    """Compare the sections whose digests the recipe records, such as ``"network_def"``.

    A section that the recipe has as a part is compared with ``expected``. Any other one that the
    running configuration does not have, such as the training's preprocessing, is compared with the
    bundle's ``train.json``.

    Args:
        model: name of the model's file, for messages.
        recipe: inside the model.
        bundle_root: folder of the bundle.
        skipped: sections that were changed on purpose.
        expected: the bundle's own configuration with what the model brings; ``None``: not known.

    Raises:
        ConfigError: when the running configuration would build something else than was trained.
    """
    running = calling_parser()
    for section, digest in recipe.sections.items():
        if section in skipped:
            continue
        if expected is not None and section in recipe.parts:
            if running is None or section not in running:
                continue
            if digest_of_section(running[section]) == digest_of_section(expected.get(section)):
                continue
        if running is not None and section in running:
            if digest_of_section(running[section]) != digest:
                raise ConfigError(
                    f"{section} of this configuration is not what {model} was trained with (bundle "
                    f"version {recipe.version}): add the configuration file that changed it in the "
                    "training, such as --config_file \"['configs/inference.json', "
                    "'configs/MY_OVERLAY.json']\""
                )
            continue
        training = read_configs(bundle_root, TRAIN)
        if section in training and digest_of_section(training[section]) != digest:
            version = read_metadata(bundle_root).get("version", "")
            if version != recipe.version:
                raise ConfigError(
                    f"{model} was trained by version {recipe.version} of the bundle, which "
                    f"prepared images otherwise ({section}) than this version {version}: use that "
                    "version"
                )
            logger.warning(
                "%s was trained with another %s than %s has, by a configuration file of the "
                "training. Where that file changes images that you have, give inference an overlay "
                "that does the same, and name the section that it changes in --own_values",
                model,
                section,
                bundle_root / TRAIN[0],
            )
