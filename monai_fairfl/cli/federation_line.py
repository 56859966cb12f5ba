# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The line of ``python -m monai.bundle run`` that trains a federation or a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.first_look import FEDERATE, first_look, quick_file, recipe_file
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.errors import ConfigError


def federation_line(
    bundle: Path,
    sites_root: Path,
    run_dir: Path,
    strategies: Sequence[str],
    *,
    quick: bool = False,
    recipe: str | None = None,
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    **keys: Any,
) -> MonaiLine:
    """The line that trains hospitals with a bundle, or goes on where it stopped.

    Args:
        bundle: its folder.
        sites_root: one folder per hospital.
        run_dir: gets the run.
        strategies: each as on a command line, such as ``FedCE`` or ``CGSV(gamma=None)``.
        quick: the bundle's first look.
        recipe: of the bundle; ``None``: that of its ``federate.json``.
        config: a file with keys of ``federate.json``, which count more than those of the bundle.
        overrides: plain values of the training configuration, beside those of the files.
        keys: others of ``federate.json``; ``None``: as the files have it.

    Raises:
        ConfigError: when the bundle or a file has no such thing.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> bundle = find_bundle("prostate_mri_segmentation")
    >>> line = federation_line(bundle, Path("data"), Path("run"), ["FedCE"], rounds=3, seed=None)
    >>> line.arguments["strategy"], line.arguments["rounds"], "seed" in line.arguments
    ('FedCE', 3, False)
    """
    files = [str(bundle / FEDERATE)]
    if recipe is not None:
        files.append(str(recipe_file(bundle, recipe)))
    if quick:
        # Refuses a bundle that has none.
        first_look(bundle)
        files.append(str(quick_file(bundle)))
    if config is not None:
        if not config.is_file():
            raise ConfigError(
                f"{config} does not exist: --settings names a file with keys of federate.json"
            )
        # The line is recorded with the run, and may be used in another folder.
        files.append(str(config.absolute()))
    of_files = MonaiLine(files, {}).configuration()

    arguments: dict[str, Any] = {
        "bundle_root": str(bundle),
        "sites_root": str(sites_root),
        "run_dir": str(run_dir),
    }
    if len(strategies) == 1:
        arguments["strategy"] = strategies[0]
        if of_files.get("strategies"):
            # A file's list would count in its place.
            arguments["strategies"] = []
    else:
        arguments["strategies"] = list(strategies)
    arguments["resume"] = True
    for name, value in keys.items():
        if value is not None:
            arguments[name] = value
    if overrides:
        arguments.update(_override_arguments(of_files.get("overrides") or {}, overrides))
    return MonaiLine(files, arguments)


def strategies_in_file(config: Path | None) -> list[str]:
    """The strategies that a user's file names, each as on a command line; empty where it has none.

    As ``python -m monai.bundle run`` reads it: ``strategy`` counts where ``strategies`` is empty.

    Args:
        config: a file with keys of ``federate.json``; ``None``: there is none.

    Raises:
        ConfigError: when the file is no configuration.
    """
    if config is None or not config.is_file():
        return []
    found = MonaiLine([str(config)], {}).configuration()
    strategies = found.get("strategies") or found.get("strategy") or []
    if not isinstance(strategies, list):
        strategies = [strategies]
    return [text if isinstance(text, str) else json.dumps(text) for text in strategies]


def _override_arguments(of_files: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as arguments of the line, beside those of its files.

    >>> _override_arguments({"channels": [4, 8]}, {"size": [32, 32]})
    {'overrides#size': [32, 32]}
    >>> _override_arguments({}, {"size": [32, 32]})
    {'overrides': {'size': [32, 32]}}
    """
    # MONAI takes a # for the place of a key.
    if not of_files or any("#" in key for key in given):
        return {"overrides": {**of_files, **given}}
    return {f"overrides#{key}": value for key, value in given.items()}
