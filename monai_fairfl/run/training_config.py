# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What of a run's ``settings.json`` decides how its sites train and are scored; its full run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.arguments import check_value

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
    """What of a run's ``settings.json`` decides how its sites train, and how they are scored.

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


# ---- the training at which a bundle's results were measured

NEEDED = {"rounds", "local_epochs", "mean_dice"}
"""Its keys; the ``overrides`` of the measured training are for a reader of the file."""

QUICK = "quick.json"
"""Name of a bundle's overlay of ``federate.json`` with the settings of a first look."""


@dataclass(frozen=True)
class FullRun:
    """The key ``full_run`` of a bundle's ``federate.json``.

    Args:
        rounds: of the measured training, at least 1.
        local_epochs: of each of these rounds, at least 1.
        mean_dice: least mean Dice over the sites, 0 to 1; below it a model has not learnt enough to
            be judged.
    """

    rounds: int
    local_epochs: int
    mean_dice: float

    @classmethod
    def read(cls, given: Any) -> FullRun | None:
        """From the configuration; ``None`` where the bundle names no full run.

        Raises:
            ConfigError: naming what is wrong in it.

        >>> FullRun.read({"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}).epochs
        240
        >>> FullRun.read({"rounds": 60, "local_epochs": 4})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: full_run needs rounds, local_epochs and mean_dice, got ...
        """
        if given is None:
            return None
        if not isinstance(given, Mapping) or not NEEDED <= set(given) <= {*NEEDED, "overrides"}:
            raise ConfigError(
                f"full_run needs rounds, local_epochs and mean_dice, got {given!r}; besides it may "
                "have overrides"
            )
        for name in ("rounds", "local_epochs"):
            check_value(f"full_run: {name}", given[name], "int", "[1, inf)")
        dice = given["mean_dice"]
        check_value("full_run: mean_dice", dice, "float", "[0, 1]")
        return cls(given["rounds"], given["local_epochs"], float(dice))

    @property
    def epochs(self) -> int:
        """Local epochs of all rounds together."""
        return self.rounds * self.local_epochs
