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
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.run.resuming import begun, ended, recorded_config

CONFIG = "settings.json"
"""What every run has, and no folder of data lists alone."""


def model_file(given: str) -> Path:
    """The model that was given: its file, or the global model of a run's folder.

    Of a comparison's folder it is that of its only federation. Where every hospital trained alone,
    there is no trained global model.

    Raises:
        ConfigError: when there is none, or several.
    """
    path = Path(given).absolute()
    if not path.is_dir():
        if path.is_file():
            return path
        raise ConfigError(f"{path} does not exist: name a model file, or the folder of a run")
    of_run = path / GLOBAL_MODEL
    if of_run.is_file():
        if _trained_alone(path):
            raise ConfigError(
                f"{path} is of Standalone, in which each hospital trained a model of its own and "
                "nobody the global one: name the run of a federation, or a hospital's model file"
            )
        return of_run
    runs = []
    # The runs of `try` are in the folder `run` of its own.
    for file in sorted([*path.glob(f"*/{GLOBAL_MODEL}"), *path.glob(f"run/*/{GLOBAL_MODEL}")]):
        if not _trained_alone(file.parents[1]):
            runs.append(file.parents[1])
    if len(runs) == 1:
        return runs[0] / GLOBAL_MODEL
    if runs:
        names = ", ".join(str(run) for run in runs)
        raise ConfigError(f"{path} holds several runs: name one of {names}")
    raise ConfigError(_why_no_model(path))


def _why_no_model(path: Path) -> str:
    """Why a folder has no model to use, and what to name instead."""
    inner = sorted([*path.glob("*/ledger.jsonl"), *path.glob("run/*/ledger.jsonl")])
    for run in (path, *[ledger.parent for ledger in inner]):
        if begun(run) and not ended(run):
            return (
                f"{run} is a run that stopped, or still trains: give the same command again to "
                "finish it (python -m monai.bundle also needs --resume True), or name another run"
            )
    if any(path.glob("cells/*/*/ledger.jsonl")):
        return f"{path} is a comparison: name one of its trainings, which are in {path / 'cells'}"
    if begun(path):
        return f"{path} is a run without a global model: name a hospital's model file"
    return f"{path / GLOBAL_MODEL} does not exist: name a model file, or the folder of a run"


def _trained_alone(run: Path) -> bool:
    """Whether every hospital of a run trained alone, so that its global model is the first one."""
    recipe = read_recipe(run / GLOBAL_MODEL)
    return recipe is not None and recipe.training.get("strategy") == "Standalone"


def bundle_of_model(model: Path, given: str | None) -> Path:
    """The bundle that uses a model: the one that was given, else the shipped one that trained it.

    Raises:
        ConfigError: when the model does not say, or it was trained by no shipped bundle.
    """
    if given is not None:
        return locate_bundle(given)
    recipe = read_recipe(model)
    if recipe is None:
        raise ConfigError(
            f"{model} does not record how it was trained (it has no recipe): name its bundle with "
            "--bundle"
        )
    for name in bundle_names():
        bundle = find_bundle(name)
        if read_metadata(bundle).get("name") == recipe.bundle:
            return bundle
    raise ConfigError(
        f"{model} was trained by the bundle {recipe.bundle!r}, which is not shipped: name its "
        "folder with --bundle"
    )


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

    def warning_of_other_data(self, data: Path) -> str:
        """Say so where the site's data list is used in another folder, maybe of another hospital.

        Args:
            data: the folder in which it is used.

        Returns:
            Half a sentence; empty where the site had this folder, or the run does not say.
        """
        recorded = (self.config.get("data") or {}).get(self.name)
        if recorded is None or Path(recorded).resolve() == data.resolve():
            return ""
        return (
            f", whose {self.name} was in {recorded}: where this is another hospital of that name, "
            "copy the model out of the run's folder"
        )

    def settings(self) -> dict[str, Any]:
        """The settings with which the run read the site's files, such as ``stereo``.

        A model's recipe does not have them: they are of the images.
        """
        of_all = self.config.get("overrides") or {}
        return settings_of_files({**of_all, **_of_site(self.config, self.name)})


def site_of_run(model: Path, site: str) -> SiteOfRun | None:
    """A site of the run that a model is of; ``None``: it did not take part, or there is no run."""
    # The run that holds the model, at whatever depth, or the comparison that it is of.
    for folder in model.parents:
        # Without a run beside them, data lists are of no run: ``monai-fairfl doctor`` wrote them.
        if not (folder / CONFIG).is_file():
            continue
        try:
            config = recorded_config(folder)
        except ConfigError:  # of another program
            continue
        named = _of_site(config, site).get("datalist_file")
        datalist = Path(named or folder / "datalists" / f"{site}.json")
        if datalist.is_file():
            return SiteOfRun(site, datalist, config)
    return None


def _of_site(config: Mapping[str, Any], site: str) -> Mapping[str, Any]:
    """What a run's site adds to the settings of all."""
    sites = config.get("sites")
    found = sites.get(site) if isinstance(sites, Mapping) else None
    return found if isinstance(found, Mapping) else {}
