# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The clients and the network of tests in which sites run a user's own training script."""

from __future__ import annotations

import torch
from torch import nn

CLIENTS = ["elm", "poplar", "sycamore"]


class Net(nn.Module):
    """With BatchNorm, and a head that shares its weight, which ``state_dict`` names twice."""

    def __init__(self, width: int = 3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, 1)
        self.second_head = self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))
