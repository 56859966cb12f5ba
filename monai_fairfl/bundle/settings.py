# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a site: plain values, their defaults, and which of them decide the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monai_fairfl.utils.settings import (
    Settings,
    checked_mapping,
    marked,
    setting,
)

TRAIN = ("configs/train.json",)

TRAINS = "trains"
"""The setting decides what a site trains: a resumed run must have the same value."""


@dataclass(frozen=True)
class SiteSettings(Settings):
    """How a site trains and measures, the same for a bundle's federation and for any engine.

    Args:
        config: training configuration, files relative to the bundle; overlays come after
            ``train.json``.
        overrides: of the configuration, plain values; they win.
        local_epochs: epochs of local training per round.
        device: for training, such as ``"cpu"`` or ``"cuda:0"``.
        amp: automatic mixed precision.
        alone: file of the model that the site trained alone, a candidate of the last mile; empty:
            there is none.

    >>> SiteSettings(overrides={"size": [64, 64]}).for_site({"channel": 1}).overrides
    {'size': [64, 64], 'channel': 1}
    """

    config: Sequence[str] = setting(TRAIN, TRAINS)
    overrides: Mapping[str, Any] = setting({}, TRAINS)
    local_epochs: int = setting(1, TRAINS, allowed="[1, inf)")
    device: str = setting("cpu")
    amp: bool = setting(False, TRAINS)
    alone: str = setting("")

    def __post_init__(self) -> None:
        super().__post_init__()
        files = [self.config] if isinstance(self.config, str) else self.config
        object.__setattr__(self, "config", list(files))
        object.__setattr__(self, "overrides", checked_mapping("overrides", self.overrides))
        object.__setattr__(self, "device", str(self.device))

    def for_site(self, additions: Mapping[str, Any]) -> SiteSettings:
        """These settings with what one site adds.

        Args:
            additions: overrides of the site, and ``"config"``, files in place of those of all.
        """
        overrides = dict(self.overrides)
        for key, value in additions.items():
            if key != "config":
                overrides[key] = value
        return replace(self, config=additions.get("config", self.config), overrides=overrides)

    def training(self) -> dict[str, Any]:
        """The settings that decide what a site trains."""
        return marked(self, TRAINS)
