# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores the trained model on the validation data, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import ScoreHandler


class LocalScore(ScoreHandler):
    """Mean Dice of the trained model on the validation data, as ``fairfl/local_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LocalScore", "evaluator": "@validate#evaluator"}

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator, SupervisedTrainer
    >>> from monai.handlers import MeanDice, from_engine
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> data = [dict.fromkeys(("image", "label"), torch.ones(1, 1, 4, 1))]
    >>> dice = {"dice": MeanDice(output_transform=from_engine(["pred", "label"]))}
    >>> evaluator = SupervisedEvaluator(cpu, data, net, key_val_metric=dice)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.5), LocalScore(evaluator, "alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["local_score"]["mean"].value, net.weight.item()  # scored at 1
    (1.0, 1.0)
    """

    name = "local_score"
