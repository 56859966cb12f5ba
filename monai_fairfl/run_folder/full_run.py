# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's full run: the training at which its results were measured.

The report judges no result of a shorter one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.settings import check_whole, is_number

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
            check_whole(f"full_run: {name}", given[name], least=1)
        dice = given["mean_dice"]
        if not is_number(dice) or not 0 <= dice <= 1:
            raise ConfigError(f"full_run: mean_dice must be a fraction from 0 to 1, got {dice!r}")
        return cls(given["rounds"], given["local_epochs"], float(dice))

    @property
    def epochs(self) -> int:
        """Local epochs of all rounds together."""
        return self.rounds * self.local_epochs
