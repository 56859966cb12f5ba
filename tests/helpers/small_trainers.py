# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Supervised trainers of toy problems whose gradients are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from torch import nn

Batches = Sequence[dict[str, torch.Tensor]]


def trainer_of(
    network: nn.Module,
    batches: Batches,
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    epochs: int = 1,
    **arguments: Any,
) -> SupervisedTrainer:
    return SupervisedTrainer(
        torch.device("cpu"), epochs, batches, network, optimizer, loss, decollate=False, **arguments  # type: ignore[arg-type]
    )


class Point(nn.Module):
    """A model that is one vector and predicts it, so that the loss is a function of the weights."""

    def __init__(self, values: Sequence[float]):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.w


ONE_BATCH: Batches = [{"image": torch.zeros(1, 1), "label": torch.zeros(1, 1)}]


def image_batches(count: int = 3) -> Batches:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, 1, 8, 8, generator=generator)
    return [{"image": image, "label": (image > 0.3).float()} for image in images]


def conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.Conv2d(4, 1, 1),
    )


def least_squares() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(12, 1, generator=generator, dtype=torch.float64)
    return inputs, targets


def half_mean_square(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (predicted - target).square().mean()
