# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes the training loss of the received model, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import MeasurementHandler


class GlobalLoss(MeasurementHandler):
    """The bundle's loss of the received model on the training data, as ``fairfl/global_loss``.

    It is q-FedAvg's F.

    Args:
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalLoss"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), GlobalLoss("alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["global_loss"].value, net.weight.item()  # (0 - 2) ** 2
    (4.0, 1.0)
    """

    name = "global_loss"
