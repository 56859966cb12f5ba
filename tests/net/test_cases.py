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


class WithExtraState(nn.Conv2d):
    """A layer that stores how often it ran."""

    def get_extra_state(self) -> Any:
        return {"steps": 0}

    def set_extra_state(self, state: Any) -> None:
        pass


KINDS = {
    "weight_norm": weight_norm,
    "spectral_norm": spectral_norm,
    "extra state": lambda layer: WithExtraState(1, 8, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_network_with_other_state(kind: str) -> None:
    """flwrlabs/flower issue 4344: entries of a state dict that are no plain weight.

    Plain weights are read; what has no mean is refused, with its layer.
    """
    network = nn.Sequential(KINDS[kind](nn.Conv2d(1, 8, 3)), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1))
    image = torch.zeros(1, 1, 24, 24)
    if kind == "weight_norm":
        spec = read_spec(network, image)
        assert set(spec.tensors_of(network)) == set(network.state_dict())
        assert {layer for name, layer in spec.layers.items() if name.startswith("0.")} == {"0"}
    else:
        with pytest.raises(ConfigError, match=f"'0'.*{kind}"):
            read_spec(network, image)
