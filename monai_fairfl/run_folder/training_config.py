# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What of a run's ``config.json`` decides how its sites train, and how they are scored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCORING = ("evaluate.json", "federated_evaluate.json")
"""Files of a bundle that say how its test cases are scored."""


def config_files(config: Mapping[str, Any]) -> list[str]:
    """The files of the training's configuration, of all sites and of single ones.

    >>> config_files({"config": ["a.json"], "sites": {"elm": {"config": "b.json"}, "oak": {}}})
    ['a.json', 'b.json']
    """
    found: list[str] = []
    for settings in (config, *(config.get("sites") or {}).values()):
        files = (settings or {}).get("config") or ()
        found += [files] if isinstance(files, str) else files
    return found


def training_settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What of a run's ``config.json`` decides how its sites train, and how they are scored.

    Args:
        config: as :class:`~monai_fairfl.bundle.federation.BundleFederation` writes it; what is not
            in it is left out.

    Returns:
        ``"plain"`` values; ``"overrides"`` by key; ``"files"`` of the bundle that are used, name ->
        SHA-256, and ``"scoring"``, those that score test cases; ``"sites"``, each site's own
        overrides; ``"data"``, each site's folder.

    >>> training_settings({"local_epochs": 4, "overrides": {"size": [64, 64]}})["overrides"]
    {'size': [64, 64]}
    """
    names = ("bundle", "config", "local_epochs", "amp")
    plain = {key: config.get(key) for key in names}

    # Of all files of the bundle, those that the training's configuration is made of.
    digests = config.get("files") or {}
    used = {}
    for file in config_files(config):
        # One that lies elsewhere than in the bundle's folder has its path for a name.
        for name in (file, Path(file).name):
            if name in digests:
                used[name] = digests[name]
                break
    scoring = {name: digests[name] for name in SCORING if name in digests}

    return {
        "plain": plain,
        "files": used,
        "scoring": scoring,
        "overrides": dict(config.get("overrides") or {}),
        "sites": dict(config.get("sites") or {}),
        "data": dict(config.get("data") or {}),
    }
