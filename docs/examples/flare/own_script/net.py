# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A network of two layers."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, channels: int = 4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.head = nn.Conv2d(channels, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(images))
        return logits
