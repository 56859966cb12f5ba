# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy whose weights and contributions a test gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl import Strategy
from monai_fairfl.strategies import Rounds


class Given(Strategy):
    """It averages with these weights, whatever the clients send.

    Args:
        weights: client -> weight; those of each layer are a mapping of such mappings.
        contributions: client -> contribution; the weights where they are not given.
    """

    def __init__(self, weights: Mapping[str, Any], contributions: Mapping[str, Any] | None = None):
        self.given = dict(weights)
        self.contributions = dict(self.given if contributions is None else contributions)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield self.train(clients)
        names = local.clients
        layers = {key: of for key, of in self.given.items() if isinstance(of, Mapping)}
        weights: Any = in_order(names, self.given) if not layers else {}
        for layer, of_layer in layers.items():
            weights[layer] = in_order(names, of_layer)
        contributions = [self.contributions[name] for name in names if name in self.contributions]
        return self.finish(local, weights, contributions)


def in_order(clients: Sequence[str], values: Mapping[str, float]) -> np.ndarray:
    """Numbers of clients as an array."""
    return np.array([values.get(client, 0.0) for client in clients])


def equal(clients: Sequence[str], contributions: Mapping[str, Any] | None = None) -> Given:
    """Equal weights."""
    return Given(dict.fromkeys(clients, 1 / len(clients)), contributions)
