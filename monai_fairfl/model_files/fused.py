# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A fused model: two or more models of one network, whose outputs are averaged.

Its file has the tensors of all its members, so it is used, scored and exported as any other model.
It takes the time and the memory of its members together.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

import torch
from torch import nn

from monai_fairfl.messages import Weights

MEMBERS = "members"
"""Every name of a fused model's tensors begins with this word and the number of the member."""


class FusedNetwork(nn.Module):
    """Averages the outputs of networks of one kind.

    Outputs are logits as a rule. The mean of logits is the logarithm of the geometric mean of the
    odds (sigmoid), or of the probabilities up to a factor (softmax).

    Args:
        network: of each member; it gives one tensor.
        num_members: number of copies of it.

    >>> import torch
    >>> from torch import nn
    >>> fused = FusedNetwork(nn.Linear(1, 1, bias=False), 2)
    >>> weights = [{"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[2.0]])}]
    >>> _ = fused.load_state_dict(dict(fused_weights(weights)))
    >>> fused(torch.ones(1, 1)).item()
    1.5
    """

    def __init__(self, network: nn.Module, num_members: int):
        super().__init__()
        self.members = nn.ModuleList(copy.deepcopy(network) for _ in range(num_members))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The mean of the members' outputs (B, C, ...) for ``images`` (B, channels, ...)."""
        # A plain loop, which TorchScript compiles.
        outputs = []
        for member in self.members:
            outputs.append(member(images))
        return torch.stack(outputs).mean(0)


def fused_weights(models: Sequence[Weights]) -> Weights:
    """The tensors of a fused model.

    Args:
        models: the members, of one network.

    >>> import torch
    >>> list(fused_weights([{"w": torch.zeros(1)}, {"w": torch.ones(1)}]))
    ['members.0.w', 'members.1.w']
    """
    found = {}
    for number, weights in enumerate(models):
        for name, tensor in weights.items():
            found[f"{MEMBERS}.{number}.{name}"] = tensor
    return found


def num_members(weights: Weights) -> int:
    """The number of members of a fused model; 0: it is no fused model.

    >>> num_members({"members.0.w": torch.zeros(1), "members.1.w": torch.ones(1)})
    2
    >>> num_members({"w": torch.zeros(1)})
    0
    """
    found = [re.match(rf"{MEMBERS}\.(\d+)\..", name) for name in weights]
    return len({name.group(1) for name in found if name}) if all(found) else 0


def network_for(network: nn.Module, weights: Weights) -> nn.Module:
    """The network that a model is of: the given one, or that of a fused model, made of copies.

    Args:
        network: of a model that is not fused, or of each member.
        weights: the model.
    """
    members = num_members(weights)
    # A network of one's own may have parts that are called members, too.
    if members == 0 or weights.keys() == network.state_dict().keys():
        return network
    return FusedNetwork(network, members)
