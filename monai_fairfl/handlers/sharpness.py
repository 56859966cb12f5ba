# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures the sharpness of the received model, as an ignite handler."""

from __future__ import annotations

import math

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.measuring import MeasurementHandler
from monai_fairfl.measurements.table import SAM_RADIUS


class Sharpness(MeasurementHandler):
    """FedISM's sharpness of the received model on the training data, as ``fairfl/sharpness``.

    Args:
        rho: radius in which the loss may rise, in the unit of the weights; a ``sam_rho`` that the
            server sends takes its place.
        board: name that the filter has, too.

    Raises:
        ConfigError: when ``rho`` is not above 0, or not finite.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.Sharpness", "rho": 0.05}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), Sharpness(0.05, "alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> round(handler.board.take_values()["sharpness"], 4)  # (-0.05 - 2) ** 2 - (0 - 2) ** 2
    0.2025
    """

    name = "sharpness"

    def __init__(self, rho: float = SAM_RADIUS, board: str = "default"):
        super().__init__(board)
        if not 0 < rho < math.inf:
            raise ConfigError(f"Sharpness rho must be above 0 and finite, got {rho!r}")
        self.rho = rho

    def context(self) -> dict[str, float]:
        return {"sam_rho": self.rho, **super().context()}
