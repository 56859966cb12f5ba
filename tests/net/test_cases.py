# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Networks of others that once went wrong. Each says where it was met."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from monai_fairfl import read_spec
from monai_fairfl.errors import ConfigError


class WithExtraState(nn.Module):
    """A network that stores how often it ran."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def get_extra_state(self) -> Any:
        return {"steps": 0}

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.network(image)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "extra state"])
def test_network_with_other_state(kind: str) -> None:
    """flwrlabs/flower issue 4344: entries of a state dict that are no plain weight.

    Plain weights are read; what has no mean is refused, with its layer.
    """
    network: nn.Module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1))
    if kind == "extra state":
        network = WithExtraState(network)
    else:
        norm = {"weight_norm": weight_norm, "spectral_norm": spectral_norm}[kind]
        network[0] = norm(network[0])
    image = torch.zeros(1, 1, 24, 24)
    if kind == "weight_norm":
        spec = read_spec(network, image)
        assert set(spec.tensors_of(network)) == set(network.state_dict())
        assert {layer for name, layer in spec.layers.items() if name.startswith("0.")} == {"0"}
    else:
        with pytest.raises(ConfigError, match=f"'(0)?'.*{kind}"):
            read_spec(network, image)
