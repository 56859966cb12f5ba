# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy whose weights and contributions a test gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl import Strategy, Train
from monai_fairfl.strategies import Rounds


class Given(Strategy):
    """It averages with these weights, whatever the clients send.

    Args:
        weights: client -> weight; those of each layer are a mapping of such mappings.
        contributions: client -> contribution; the weights where they are not given.
        scale: client -> factor of its update.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        contributions: Mapping[str, Any] | None = None,
        scale: Mapping[str, float] | None = None,
    ):
        self.given = dict(weights)
        self.contributions = dict(self.given if contributions is None else contributions)
        self.scale = scale

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        return self.finish(local, self.given, self.contributions, scale=self.scale)


def equal(clients: Sequence[str], contributions: Mapping[str, Any] | None = None) -> Given:
    """Equal weights."""
    return Given(dict.fromkeys(clients, 1 / len(clients)), contributions)
