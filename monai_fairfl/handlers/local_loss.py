# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes the training loss of the trained model, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import MeasurementHandler


class LocalLoss(MeasurementHandler):
    """The bundle's loss of the trained model on the training data, as ``fairfl/local_loss``.

    Args:
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LocalLoss"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), LocalLoss("alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["local_loss"].value, net.weight.item()  # (1 - 2) ** 2
    (1.0, 1.0)
    """

    name = "local_loss"
