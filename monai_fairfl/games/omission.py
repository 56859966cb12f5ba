# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out: what is lost when one player is missing."""

from __future__ import annotations

import math

from monai_fairfl.games.game import Game
from monai_fairfl.games.valuation import Valuation
from monai_fairfl.protocol.values import Estimate


def leave_one_out(game: Game) -> Valuation:
    r"""The drop in utility without each player, :math:`V(N) - V(N \setminus i)`: FedCE's ground
    truth (CVPR 2023).

    N + 1 evaluations. Two clients with the same data both get nothing, as either replaces the
    other: where that matters use Shapley values. A client whose absence helps has a negative drop,
    kept in ``values`` and 0 in ``shares()``. For several structures let the utility be their sum
    (or mean: the shares are the same). FedCE evaluates every coalition's model on *all* clients'
    test images, also on those of the client left out.

    Args:
        game: of any number of players.

    >>> worth = {"A": 3, "B": 1, "C": -1}
    >>> found = leave_one_out(Game(worth, lambda coalition: sum(worth[player] for player in coalition)))
    >>> {player: value.value for player, value in found.values.items()}, found.shares()
    ({'A': 3.0, 'B': 1.0, 'C': -1.0}, {'A': 0.75, 'B': 0.25, 'C': 0.0})
    """
    before = game.evaluations
    whole = game(game.players)
    drops = {player: whole - game(set(game.players) - {player}) for player in game.players}
    return Valuation(
        method="leave_one_out",
        values={player: Estimate(drop, 0.0, 1) for player, drop in drops.items()},
        evaluations=game.evaluations - before,
        rank_stability=1.0,
        total=math.fsum(drops.values()),
    )
