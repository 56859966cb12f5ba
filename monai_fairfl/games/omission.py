# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out: what is lost when one player is missing."""

from __future__ import annotations

import math

from monai_fairfl.games.game import Game
from monai_fairfl.games.valuation import Valuation
from monai_fairfl.messages import Estimate


def leave_one_out(game: Game) -> Valuation:
    r"""The drop in utility without each player, :math:`V(N) - V(N \setminus i)`.

    It is FedCE's ground truth (CVPR 2023) and takes N + 1 evaluations. Two clients with the same
    data both get nothing, as either replaces the other: where that matters use Shapley values. A
    client whose absence helps has a negative drop in ``values``, and 0 in ``shares()``. For several
    structures let the utility be their sum (or mean: the shares are the same). FedCE evaluates
    every coalition's model on *all* clients' test images, also on those of the client left out.

    Args:
        game: of any number of players.

    >>> worth = {"A": 3, "B": 1, "C": -1}
    >>> game = Game(worth, lambda coalition: sum(worth[player] for player in coalition))
    >>> found = leave_one_out(game)
    >>> {player: value.value for player, value in found.values.items()}
    {'A': 3.0, 'B': 1.0, 'C': -1.0}
    >>> found.shares()
    {'A': 0.75, 'B': 0.25, 'C': 0.0}
    """
    evaluations_before = game.evaluations
    whole = game(game.players)
    drops = {}
    for player in game.players:
        others = set(game.players) - {player}
        drops[player] = whole - game(others)
    return Valuation(
        method="leave_one_out",
        values={player: Estimate(drop, 0.0, 1) for player, drop in drops.items()},
        evaluations=game.evaluations - evaluations_before,
        rank_stability=1.0,
        total=math.fsum(drops.values()),
    )
