# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which network a model is of: the bundle's own, or a fused one."""

from __future__ import annotations

import torch
from torch import nn

from monai_fairfl.model_files import fused_weights
from monai_fairfl.model_files.fused import network_for
from monai_fairfl.protocol.values import Weights


class Ensemble(nn.Module):
    """A bundle's own network, whose parts have the name that a fused model gives to its members."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Conv2d(1, 1, 1, bias=False) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.members[0](images) + self.members[1](images)


def ensemble(first: float, second: float) -> Weights:
    """The weights of an ensemble."""
    network = Ensemble()
    for part, value in zip(network.members, (first, second)):
        nn.init.constant_(part.weight, value)
    return network.state_dict()


def output_of(weights: Weights) -> float:
    """What the network of these weights makes of a pixel of value 1."""
    network = network_for(Ensemble(), weights)
    network.load_state_dict(dict(weights))
    return network(torch.ones(1, 1, 1, 1)).item()


def test_a_network_whose_parts_are_called_members_is_no_fused_model() -> None:
    assert output_of(ensemble(2.0, 3.0)) == 5.0


def test_a_fused_model_of_such_networks_has_the_mean_of_their_outputs() -> None:
    assert output_of(fused_weights([ensemble(2.0, 3.0), ensemble(4.0, 7.0)])) == 8.0
