# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The model that a command names, the bundle that uses it, and the run that trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
from monai_fairfl.bundle.configuration import read_metadata, settings_of_files
from monai_fairfl.bundle.shipped import bundle_names, find_bundle, locate_bundle
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.run.resuming import SETTINGS, begun, ended, recorded_config


def model_file(given: str) -> Path:
    """The model that was given: its file, or the global model of a run's folder.

    Of a comparison's folder it is that of its only federation. Where every hospital trained alone,
    there is no trained global model.

    Raises:
        ConfigError: when there is none, or several.
    """
    path = Path(given).absolute()
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConfigError(f"{path} does not exist: name a model file, or the folder of a run")
    files = [path / GLOBAL_MODEL] if (path / GLOBAL_MODEL).is_file() else []
    for depth in ("*", "run/*"):  # the runs of `try` are in the folder `run` of its own
        files = files or sorted(path.glob(f"{depth}/{GLOBAL_MODEL}"))
    federated = []
    for file in files:
        recipe = read_recipe(file)
        if recipe is None or recipe.training.get("strategy") != "Standalone":
            federated.append(file)
    if len(federated) == 1:
        return federated[0]
    if federated:
        names = ", ".join(str(file.parents[1]) for file in federated)
        raise ConfigError(f"{path} holds several runs: name one of {names}")
    if files:
        raise ConfigError(
            f"{path} is of Standalone, in which each hospital trained a model of its own: name the "
            "run of a federation, or a hospital's model file"
        )
    for depth in ("", "*/", "run/*/"):
        for run in [ledger.parent for ledger in path.glob(f"{depth}ledger.jsonl")]:
            if begun(run) and not ended(run):
                raise ConfigError(
                    f"{run} stopped, or still trains: the command that began it finishes it "
                    "(python -m monai.bundle also needs --resume True)"
                )
    cells = path / "cells"
    if any(cells.glob("*/*/ledger.jsonl")):
        raise ConfigError(f"{path} is a comparison: name one of its trainings in {cells}")
    raise ConfigError(
        f"{path} is {'a run' if begun(path) else 'a folder'} without {GLOBAL_MODEL}: name a model "
        "file, or the folder of a run with a global model"
    )


def bundle_of_model(model: Path, given: str | None) -> Path:
    """The bundle that uses a model: the one that was given, else the shipped one that trained it.

    Raises:
        ConfigError: when the model does not say, or it was trained by no shipped bundle.
    """
    if given is not None:
        return locate_bundle(given)
    recipe = read_recipe(model)
    for bundle in map(find_bundle, bundle_names()):
        if recipe is not None and read_metadata(bundle).get("name") == recipe.bundle:
            return bundle
    by = "a bundle that it does not name (it has no recipe)"
    if recipe is not None:
        by = f"the bundle {recipe.bundle!r}, which is not shipped"
    raise ConfigError(f"{model} was trained by {by}: name its folder with --bundle")


def training_words(recipe: ModelRecipe | None) -> str:
    """How a model was trained, and whether that was a first look; empty where it is not known.

    >>> full = {"rounds": 60, "local_epochs": 4}
    >>> known = {"strategy": "FedCE", "seed": 0, "local_epochs": 4, "full_run": full}
    >>> words = training_words(ModelRecipe("Prostate", "1", {}, training=known | {"rounds": 3}))
    >>> for sentence in words.split(". "):
    ...     print(sentence)
    The model: FedCE, 3 rounds of 4 local epochs, seed 0
    It is of a first look: a full run has 60 rounds of 4 local epochs.
    """
    training = recipe.training if recipe is not None else {}
    if not {"strategy", "rounds", "local_epochs"} <= set(training):
        return ""
    length = "{rounds} rounds of {local_epochs} local epochs"
    words = f"The model: {training['strategy']}, {length.format(**training)}"
    words += f", seed {training.get('seed')}."
    if adapted := training.get("adapted"):
        words += " Adapted to {hospital} in {epochs} epochs.".format(**adapted)
    full = training.get("full_run") or {"rounds": 0, "local_epochs": 0}
    epochs = training["rounds"] * (training["local_epochs"] or 0)
    if epochs < full["rounds"] * full["local_epochs"]:
        words += f" It is of a first look: a full run has {length.format(**full)}."
    return words


@dataclass(frozen=True)
class SiteOfRun:
    """A site that took part in a run.

    Args:
        name: of the site.
        datalist: with which it took part.
        config: of the run, its ``settings.json``.
    """

    name: str
    datalist: Path
    config: Mapping[str, Any]

    def split(self, data: Path) -> str:
        """Which split into cases this is, in words.

        Args:
            data: the folder in which it is used, maybe that of another hospital.
        """
        recorded = (self.config.get("data") or {}).get(self.name)
        if recorded is None or Path(recorded).resolve() == data.resolve():
            return "that of the run"
        return (
            f"that of the run, whose {self.name} was in {recorded}: where this is another hospital "
            "of that name, copy the model out of the run's folder"
        )

    def settings(self) -> dict[str, Any]:
        """The settings with which the run read the site's files, such as ``stereo``.

        A model's recipe does not have them: they are of the images.
        """
        own = (self.config.get("sites") or {}).get(self.name) or {}
        return settings_of_files({**(self.config.get("overrides") or {}), **own})


def site_of_run(model: Path, site: str) -> SiteOfRun | None:
    """A site of the run that a model is of; ``None``: it did not take part, or there is no run."""
    # The run that holds the model, at whatever depth, or the comparison that it is of. Without a
    # run beside them, data lists are of no run: ``monai-fairfl doctor`` wrote them.
    for folder in model.parents:
        if not (folder / SETTINGS).is_file():
            continue
        config = recorded_config(folder)
        own = (config.get("sites") or {}).get(site) or {}
        datalist = Path(own.get("datalist_file") or folder / "datalists" / f"{site}.json")
        if datalist.is_file():
            return SiteOfRun(site, datalist, config)
    return None
