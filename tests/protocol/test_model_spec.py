# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from monai.networks.nets import DynUNet, UNet
from torch import nn

from monai_fairfl.protocol.model_spec import read_spec

IMAGE = torch.zeros(1, 1, 32, 32)


def test_unet_parameters_buffers_and_layers_cover_the_state_dict_once() -> None:
    net = UNet(2, 1, 2, (4, 8), (2,), num_res_units=2, norm="batch")
    spec = read_spec(net, IMAGE)
    state = net.state_dict()
    assert sorted([*spec.parameters, *spec.buffers, *spec.aliases]) == sorted(state)
    assert spec.parameters == tuple(sorted(name for name, _ in net.named_parameters()))
    assert all(
        name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        for name in spec.buffers
    )
    assert all(name.startswith(layer) for name, layer in spec.layers.items())


def test_unet_output_is_the_module_that_makes_the_logits() -> None:
    net = UNet(2, 1, 3, (4, 8), (2,), num_res_units=2)
    module, axis = read_spec(net, IMAGE).output  # type: ignore[misc]
    weight = net.get_submodule(module).weight
    assert axis == 0 and weight.shape[axis] == 3
    with torch.no_grad():  # its bias moves the logits, and nothing comes after it
        before = net.eval()(IMAGE)
        net.get_submodule(module).bias.add_(1.0)
        assert torch.allclose(net(IMAGE) - before, torch.ones_like(before), atol=1e-5)


def test_transposed_convolution_head_has_its_classes_on_axis_one() -> None:
    net = UNet(2, 1, 3, (4, 8), (2,), num_res_units=0)
    module, axis = read_spec(net, IMAGE).output  # type: ignore[misc]
    assert isinstance(net.get_submodule(module), nn.ConvTranspose2d)
    assert axis == 1 and net.get_submodule(module).weight.shape[1] == 3


def test_dynunet_aliases_are_found_and_deep_supervision_heads_are_not_the_output() -> None:
    net = DynUNet(
        2,
        1,
        2,
        [3, 3, 3],
        [1, 2, 2],
        [2, 2],
        filters=[4, 8, 16],
        deep_supervision=True,
        deep_supr_num=1,
    )
    spec = read_spec(net, IMAGE)
    assert len(spec.parameters) + len(spec.aliases) + len(spec.buffers) == len(net.state_dict())
    assert spec.aliases and spec.output is not None and "output_block" in spec.output[0]
    assert spec.output[0] != [n for n, m in net.named_modules() if hasattr(m, "weight")][-1]
    values = {name: tensor for name, tensor in net.state_dict().items() if name not in spec.aliases}
    net.load_state_dict(spec.with_aliases(values), strict=True)


def test_shared_module_counts_once() -> None:
    shared = nn.Linear(4, 4)
    spec = read_spec(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2)), torch.zeros(1, 4))
    assert spec.parameters == ("0.bias", "0.weight", "3.bias", "3.weight")
    assert spec.aliases == {"2.weight": "0.weight", "2.bias": "0.bias"} and spec.output == ("3", 0)


def test_frozen_parameters_are_buffers() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].requires_grad_(False)
    spec = read_spec(net, torch.zeros(1, 2))
    assert spec.buffers == ("0.bias", "0.weight") and spec.parameters == ("1.bias", "1.weight")


def test_reading_disturbs_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    random = torch.random.get_rng_state()
    read_spec(net, IMAGE)
    assert net.training and not net[0]._forward_hooks
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("inputs", [()])
def test_without_an_example_the_output_is_unknown(inputs: tuple[torch.Tensor, ...]) -> None:
    assert read_spec(nn.Linear(2, 2), *inputs).output is None


@pytest.mark.parametrize(
    "norm", ["batch", ("instance", {"affine": True}), ("group", {"num_groups": 2})]
)
def test_norms_are_the_tensors_of_normalisation_layers_of_every_kind(norm: object) -> None:
    network = UNet(2, 1, 2, (4, 8), (2,), num_res_units=1, norm=norm)  # type: ignore[arg-type]
    norms = read_spec(network).norms
    in_blocks = {name for name in network.state_dict() if ".N." in name}  # MONAI's name of a norm
    assert norms and set(norms) == in_blocks


def test_norms_of_layer_norms_frozen_ones_and_none() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3))
    network[2].requires_grad_(False)
    spec = read_spec(network)
    assert {"1.bias", "1.weight", "2.weight", "2.running_mean"} < set(spec.norms)
    assert read_spec(UNet(2, 1, 2, (4, 8), (2,), norm="instance")).norms == ()
    assert read_spec(nn.Sequential(nn.Linear(2, 2), nn.RMSNorm(2))).norms == ("1.weight",)
    local = spec.with_local_norms()
    assert local.parameters == ("0.bias", "0.weight")
    assert local.buffers == () and local.local == spec.norms
