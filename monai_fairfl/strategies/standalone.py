# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Standalone: every hospital trains alone; the yardstick of collaboration."""

from __future__ import annotations

from dataclasses import replace

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies.base import RoundResult, Rounds, Strategy
from monai_fairfl.strategies.parts import Parts


class Standalone(Strategy):
    """Each client trains from its own model for the same number of epochs as in the federation.

    The global model stays the initial one; nothing is averaged and nobody contributes to anybody.
    Seeds, splits and epochs equal those of a federated run, so a client's difference to it is what
    collaboration gained. Guards judge each update by itself: what the others sent changes nothing.

    This is the usual baseline.

    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply
    >>> from monai_fairfl.replies import Replies
    >>> alone = Standalone()
    >>> alone.start({"w": torch.zeros(1)}, ["A"], ModelSpec(("w",)))
    >>> def one_round():
    ...     result = yield from alone.round(["A"])
    ...     yield result
    >>> playing = one_round()
    >>> asked = next(playing)
    >>> sent = Reply("A", {"w": torch.ones(1)}, 10)
    >>> result = playing.send(Replies([sent], asked, alone.spec))
    >>> result.weights["w"].item(), result.rewards["A"]["w"].item()
    (0.0, 1.0)
    """

    shares_nothing = True

    def check_parts(self, parts: Parts) -> None:
        if replace(parts, training={}) != Parts():
            raise ConfigError(
                "Standalone averages and rewards nothing: of the parts it takes training alone"
            )

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients)

        # Everybody goes on with its own model, and the global one stays.
        own_models = {reply.client: local.local(reply) for reply in local}
        return RoundResult(self.weights, {}, {}, rewards={**self.rewards, **own_models})
