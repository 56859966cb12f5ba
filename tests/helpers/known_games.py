# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Games whose values are known from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from helpers.driving import GOLDEN

from monai_fairfl.valuation import Game

COSTS = {"a": 1.0, "b": 3.0, "c": 3.0, "d": 7.0, "e": 12.0}


@pytest.fixture
def worked() -> Callable[[], Game]:
    """Makes the three-player game of the worked example, none of it evaluated yet."""
    utility = GOLDEN["shapley"]["v"]
    return lambda: Game("123", lambda coalition: utility["".join(sorted(coalition)) or "empty"])


@pytest.fixture
def airport() -> tuple[Game, Mapping[str, float]]:
    """The airport game and its values (Littlechild and Owen, 1973).

    A runway costs what its largest aircraft needs; the aircraft that use a stretch share its cost.
    """
    game = Game(COSTS, lambda coalition: max((COSTS[player] for player in coalition), default=0.0))
    order = sorted(COSTS, key=COSTS.__getitem__)
    steps = np.diff([0.0, *(COSTS[player] for player in order)]) / np.arange(len(order), 0, -1)
    return game, dict(zip(order, np.cumsum(steps).tolist()))


@pytest.fixture
def random_game() -> Callable[[int], Game]:
    """Makes the same game of eight players, with random utilities in [0, 1].

    Larger coalitions tend to be better.
    """

    def make(seed: int = 0) -> Game:
        names = [f"site{i}" for i in range(8)]
        noise = np.random.default_rng(seed).random(2**8)
        position = {name: i for i, name in enumerate(names)}

        def utility(coalition: frozenset[str]) -> float:
            return len(coalition) / 16 + noise[sum(1 << position[name] for name in coalition)] / 2

        return Game(names, utility)

    return make
