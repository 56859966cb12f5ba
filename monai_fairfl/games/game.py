# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalition games: what every subset of the players is worth, each evaluated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from monai_fairfl.errors import ConfigError

Coalition: TypeAlias = frozenset[str]
"""The names of its members."""

MOST_PLAYERS = 20
"""2^20 coalitions are a table of 8 MB, and as many evaluations."""


class Game:
    r"""A coalition game: players, and the utility :math:`V(S)` of every subset of them.

    In a federation the players are clients, and the utility is a score of the model that a
    coalition trains. It is evaluated when first asked for, once per coalition.

    Args:
        players: their names; sorted, so that results do not depend on their order.
        utility: coalition -> finite number, in any unit (Dice: a fraction in [0, 1]).

    Raises:
        ConfigError: when there is no player, or one is named twice.

    >>> game = Game(["B", "A"], lambda coalition: len(coalition) ** 2)
    >>> game(["A", "B"]), game({"B", "A"}), game.evaluations
    (4.0, 4.0, 1)
    """

    def __init__(self, players: Iterable[str], utility: Callable[[Coalition], float]):
        self.players = tuple(sorted(players))
        self.utility = utility
        self.evaluations = 0  # calls of the utility
        self.known: dict[Coalition, float] = {}
        if not self.players or len(set(self.players)) < len(self.players):
            raise ConfigError(
                f"a game needs at least one player, each named once; got {list(self.players)}"
            )

    def __call__(self, coalition: Iterable[str]) -> float:
        """Utility of ``coalition``.

        Raises:
            ConfigError: naming a player that is not of this game, or the coalition whose utility is
                not finite.
        """
        members = frozenset(coalition)
        for unknown in sorted(members.difference(self.players)):
            raise ConfigError(
                f"{unknown!r} is not a player of this game; its players are {list(self.players)}"
            )
        if members not in self.known:
            value = self.utility(members)
            self.evaluations += 1
            if not math.isfinite(value):
                raise ConfigError(
                    f"the utility of coalition {sorted(members)} is {value!r}, not a finite "
                    "number: leave out undefined scores (Dice of empty masks), or train a diverged "
                    "model again"
                )
            self.known[members] = float(value)
        return self.known[members]

    def table(self) -> NDArray[np.float64]:
        """Utility of all coalitions, shape (2^N,).

        Bit i of an index is set where ``players[i]`` is a member.

        Raises:
            ConfigError: with more than 20 players, whose coalitions are too many to evaluate.

        >>> Game("AB", len).table().tolist()
        [0.0, 1.0, 1.0, 2.0]
        """
        count = len(self.players)
        if count > MOST_PLAYERS:
            raise ConfigError(
                f"{count} players have 2^{count} coalitions, too many to evaluate (at most "
                f"{MOST_PLAYERS} players): sample instead, with permutation_shapley"
            )
        table = np.empty(2**count)
        for index in range(len(table)):
            bits = enumerate(self.players)
            table[index] = self([player for bit, player in bits if index >> bit & 1])
        return table
