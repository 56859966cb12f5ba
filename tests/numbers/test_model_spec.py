# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What is read of a network: its parameters, buffers, layers, output layer and normalisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from monai.networks.nets import DynUNet, UNet
from torch import nn

from monai_fairfl import read_spec

IMAGE = torch.zeros(1, 1, 32, 32)


@pytest.mark.parametrize("res_units", [0, 2])
def test_unet_output_is_the_module_that_makes_the_logits(res_units: int) -> None:
    """A transposed convolution has its classes on axis 1."""
    net = UNet(2, 1, 3, (4, 8), (2,), num_res_units=res_units)
    module, axis = read_spec(net, IMAGE).output or ("", -1)
    head = net.get_submodule(module)
    assert axis == (1 if isinstance(head, nn.ConvTranspose2d) else 0)
    assert head.weight.shape[axis] == 3
    with torch.no_grad():  # its bias moves the logits, and nothing comes after it
        before = net.eval()(IMAGE)
        head.bias.add_(1.0)
        assert torch.allclose(net(IMAGE) - before, torch.ones_like(before), atol=1e-5)


def test_dynunet_aliases_are_found_and_deep_supervision_heads_are_not_the_output() -> None:
    net = DynUNet(
        2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], [4, 8, 16], deep_supervision=True, deep_supr_num=1
    )
    spec = read_spec(net, IMAGE)
    assert len(spec.parameters) + len(spec.aliases) + len(spec.buffers) == len(net.state_dict())
    assert spec.aliases and spec.output is not None and "output_block" in spec.output[0]
    values = {name: tensor for name, tensor in net.state_dict().items() if name not in spec.aliases}
    net.load_state_dict(spec.with_aliases(values), strict=True)


def test_a_shared_module_counts_once_and_frozen_parameters_are_buffers() -> None:
    shared = nn.Linear(4, 4)
    spec = read_spec(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2)), torch.zeros(1, 4))
    assert spec.parameters == ("0.bias", "0.weight", "3.bias", "3.weight")
    assert spec.aliases == {"2.weight": "0.weight", "2.bias": "0.bias"} and spec.output == ("3", 0)

    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    frozen[0].requires_grad_(False)
    spec = read_spec(frozen, torch.zeros(1, 2))
    assert spec.buffers == ("0.bias", "0.weight") and spec.parameters == ("1.bias", "1.weight")
    # Without an example the output is unknown.
    assert read_spec(frozen).output is None


def test_reading_disturbs_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    # Some networks draw numbers in evaluation, too.
    net.register_forward_hook(lambda *_: torch.rand(1))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    random = torch.random.get_rng_state()
    read_spec(net, IMAGE)
    assert net.training and not net[0]._forward_hooks
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_norms_are_the_tensors_of_normalisation_layers_of_every_kind() -> None:
    kinds: list[Any] = ["batch", ("instance", {"affine": True}), ("group", {"num_groups": 2})]
    for norm in kinds:
        network = UNet(2, 1, 2, (4, 8), (2,), num_res_units=1, norm=norm)
        norms = read_spec(network).norms
        in_blocks = {name for name in network.state_dict() if ".N." in name}  # MONAI's name of one
        assert norms and set(norms) == in_blocks
