# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs of three sites, one of which is far behind, that a report judges or calls a first look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

WriteRun = Callable[..., Path]
RECIPE = {"rounds": 4, "local_epochs": 2, "mean_dice": 0.5, "overrides": {"size": [128, 128]}}


def run(
    write_run: WriteRun,
    rounds: int,
    local_epochs: int = 2,
    dice: float = 0.8,
    name: str = "FedCE",
    **given: Any,
) -> Path:
    """A run of three sites, one of which is far behind."""
    config = {"local_epochs": local_epochs, "full_run": RECIPE, **given.pop("config", {})}
    scores = {"elm": (dice, 0.001, 20), "oak": (dice, 0.001, 20), "yew": (dice - 0.3, 0.001, 20)}
    return write_run(name, scores, rounds=[{}] * rounds, config=config, **given)
