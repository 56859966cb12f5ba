# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The eight hospitals of ``benchmarks/attacks.py``, some of which may attack, in a few rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import attacks
import numpy as np
from attackers import Attack
from attacks import SITES, Hospital

from monai_fairfl import Federation, InProcess, Strategy
from monai_fairfl.guards import DEFAULT, Guard

SEED = 3
ROUNDS = 4


def federation_of(
    strategy: Strategy,
    folder: Path,
    attack: Attack | None = None,
    *,
    sites: Sequence[str] = SITES,
    guards: Sequence[Guard] = DEFAULT,
    outlier: bool = False,
    **settings: Any,
) -> Federation:
    """A federation of these sites, the last of which attack.

    Args:
        strategy: of the federation.
        folder: of the run.
        attack: of the last sites; ``None``: all are honest.
        sites: that take part.
        guards: of the federation.
        outlier: whether the last site is an honest outlier.
        settings: of the run.
    """
    clients = attacks.clients_of(sites, attack, SEED, outlier)
    makers = {name: partial(clients.get, name) for name in clients}
    given = {"seed": SEED, "final": (), "rounds": ROUNDS, **settings}
    return Federation(
        strategy, InProcess(makers), initial=attacks.initial, guards=guards, run_dir=folder, **given
    )


@cache
def hospital(name: str) -> Hospital:
    return Hospital(name, SEED)


def mean_dice(sites: Sequence[str], weights: Mapping[str, Any]) -> float:
    """The mean Dice of a model at some sites."""
    parameters = {name: weights[name] for name in attacks.SHAPES}
    return float(np.mean([hospital(name).score(parameters) for name in sites]))


def progress(federation: Federation, sites: Sequence[str]) -> float:
    """How much Dice the sites gained since the first model."""
    first, _ = attacks.initial()
    return mean_dice(sites, federation.strategy.weights) - mean_dice(sites, first)
