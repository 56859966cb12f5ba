# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from helpers.small_trainers import conv_net, image_batches, trainer_of
from torch import nn

from monai_fairfl.handlers import TrainLoss


@pytest.mark.parametrize(
    ("batches", "accumulated", "epochs"), [(4, 1, 2), (4, 2, 2), (5, 2, 2), (3, 4, 2), (3, 2, 1)]
)
def test_steps_are_those_of_the_optimizer(batches: int, accumulated: int, epochs: int) -> None:
    network, steps = conv_net(), []
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    loss = nn.BCEWithLogitsLoss()
    trainer = trainer_of(
        network, image_batches(batches), loss, optimizer, epochs, accumulation_steps=accumulated
    )
    counter = TrainLoss()
    counter.attach(trainer)
    trainer.run()
    assert counter.steps == len(steps) and counter.images == 4 * batches * epochs


def test_a_label_of_indices_says_nothing_of_what_is_labelled() -> None:
    network = nn.Conv2d(1, 3, 1)
    label = torch.ones(2, 1, 8, 8)
    label[..., 0] = -1

    def loss(predicted: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(predicted, label[:, 0].long(), ignore_index=-1)

    batches = [{"image": torch.zeros(2, 1, 8, 8), "label": label}]
    trainer = trainer_of(network, batches, loss, torch.optim.SGD(network.parameters(), 0.1))
    counter = TrainLoss()
    counter.attach(trainer)
    trainer.run()
    assert counter.labelled == ()
