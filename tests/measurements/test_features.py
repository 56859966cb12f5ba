# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_evaluators import cases_of, evaluator_of
from monai.engines import SupervisedEvaluator
from monai.inferers import Inferer, SimpleInferer, SliceInferer
from monai.networks.nets import DynUNet, UNet
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements import features
from monai_fairfl.measurements.features import (
    features_of,
    network_inputs,
    paired_features,
    scored_layers,
)


def engine_of(volumes: list[torch.Tensor], inferer: Inferer) -> SupervisedEvaluator:
    return evaluator_of(nn.Identity(), cases_of(volumes), inferer=inferer)


def numbered(slices: int, first: int = 0, size: int = 4) -> torch.Tensor:
    """A volume (1, size, size, slices) whose slice i is filled with first + i."""
    return torch.arange(first, first + slices).float().expand(1, size, size, slices)


def noisy(network: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """The network's weights with noise; its counters as they are."""
    torch.manual_seed(seed)
    weights = {}
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            weights[name] = tensor + 0.1 * torch.rand_like(tensor)
        else:
            weights[name] = tensor.clone()
    return weights


def by_layer(*arguments: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """layer -> both models' features, of all pieces together."""
    together: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for layer, u, v in paired_features(*arguments):
        if layer in together:
            previous_u, previous_v = together[layer]
            u = torch.cat([previous_u, u], 1)
            v = torch.cat([previous_v, v], 1)
        together[layer] = (u, v)
    return together


@pytest.mark.parametrize("floats", [300, 10**6])
def test_features_of_one_model_are_those_of_a_pair(
    floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "FLOATS", floats)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(0), nn.ReLU())
    first, second = noisy(network, 1), noisy(network, 2)
    own = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    images = torch.randn(9, 1, 8, 8)
    layers = ("0", "1", "2")
    passes = []
    network.register_forward_pre_hook(lambda network, images: passes.append(len(images[0])))
    pairs = by_layer(network, first, second, images, layers)
    passes_of_pair = len(passes)
    passes.clear()

    for position, weights in enumerate((first, second)):
        pieces: dict[str, list[torch.Tensor]] = {}
        for layer, piece in features_of(network, weights, images, layers):
            pieces.setdefault(layer, []).append(piece)
        assert set(pieces) == set(pairs) == {"0", "1", "2"}
        for layer, parts in pieces.items():
            assert torch.equal(torch.cat(parts, 1), pairs[layer][position])
    if floats == 300:
        assert len(pieces["0"]) > 1 and len(passes) < 0.6 * passes_of_pair
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, own[name])


def test_inputs_are_the_slices_that_the_bundles_inferer_cuts() -> None:
    inferer = SliceInferer(roi_size=(4, 4), sw_batch_size=3, spatial_dim=2)
    images = network_inputs(engine_of([numbered(5), numbered(4, 5)], inferer))
    assert images.shape == (9, 1, 4, 4)
    assert sorted(images[:, 0, 0, 0].tolist()) == list(range(9))


@pytest.mark.parametrize(("slices", "most"), [(9, 4), (100, 10), (1000, 64), (64, 64)])
def test_a_sample_is_evenly_spaced_bounded_and_the_same_each_time(slices: int, most: int) -> None:
    inferer = SliceInferer(roi_size=(4, 4), sw_batch_size=7, spatial_dim=2)
    engine = engine_of([numbered(slices)], inferer)
    chosen = network_inputs(engine, most)[:, 0, 0, 0]
    steps = chosen.diff()
    assert len(chosen) == most and chosen[0] == 0 and chosen[-1] >= slices * 0.85
    assert steps.min() > 0 and steps.max() <= 3 * max(1, slices / most)
    assert torch.equal(chosen, network_inputs(engine, most)[:, 0, 0, 0])


@pytest.mark.parametrize("most", [0, -1])
def test_no_image_at_all_cannot_be_asked_for(most: int) -> None:
    engine = engine_of([torch.zeros(1, 4, 4)], SimpleInferer())
    with pytest.raises(ConfigError, match=f"most must be at least 1 image, got {most}"):
        network_inputs(engine, most)


def test_images_of_another_shape_are_left_out_and_none_at_all_is_an_error() -> None:
    engine = engine_of(
        [torch.zeros(1, 4, 4), torch.ones(1, 6, 6), torch.ones(1, 4, 4)], SimpleInferer()
    )
    assert network_inputs(engine)[:, 0, 0, 0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="data list is empty"):
        network_inputs(engine_of([], SimpleInferer()))


@pytest.mark.parametrize("res_units", [0, 2])
def test_every_parameter_owning_leaf_of_a_unet_is_scored_by_name(res_units: int) -> None:
    network = UNet(2, 1, 2, (4, 8, 8), (2, 2), num_res_units=res_units, norm="batch")
    layers = scored_layers(network)
    assert set(layers) == {name.rpartition(".")[0] for name, _ in network.named_parameters()}
    found = by_layer(
        network, network.state_dict(), noisy(network, 1), torch.randn(5, 1, 16, 16), layers
    )
    assert set(found) == set(layers)
    assert all(
        torch.isfinite(u).all() and u.shape == v.shape and not torch.equal(u, v)
        for u, v in found.values()
    )


def test_pieces_put_together_are_the_features_of_one_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = UNet(2, 1, 2, (4, 8), (2,), num_res_units=1)
    other, images, layers = noisy(network, 1), torch.randn(11, 1, 8, 8), scored_layers(network)
    whole = by_layer(network, network.state_dict(), other, images, layers)
    # 100 columns at a time: the larger layers come in pieces.
    monkeypatch.setattr(features, "FLOATS", 11 * 100)
    count = sum(1 for _ in paired_features(network, network.state_dict(), other, images, layers))
    pieced = by_layer(network, network.state_dict(), other, images, layers)
    assert count > len(layers)
    outputs: dict[str, torch.Tensor] = {}
    for layer in layers:
        network.get_submodule(layer).register_forward_hook(
            lambda m, i, o, layer=layer: outputs.update({layer: o})
        )
    with torch.no_grad():
        network.eval()(images)
    for layer in layers:
        assert torch.allclose(whole[layer][0], outputs[layer].flatten(1), atol=1e-6)
        assert all(torch.equal(a, b) for a, b in zip(whole[layer], pieced[layer], strict=True))


def test_the_network_keeps_its_weights_mode_and_hooks() -> None:
    network = UNet(2, 1, 2, (4, 8), (2,), norm="batch").train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    by_layer(
        network,
        noisy(network, 1),
        noisy(network, 2),
        torch.randn(3, 1, 8, 8),
        scored_layers(network),
    )
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert network.training and not any(module._forward_hooks for module in network.modules())


def test_dynunets_shared_modules_are_found_once_under_their_first_name() -> None:
    network = DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], deep_supervision=True, deep_supr_num=1)
    layers = scored_layers(network)
    found = by_layer(
        network, network.state_dict(), noisy(network, 1), torch.randn(4, 1, 16, 16), layers
    )
    assert set(found) == set(layers) and not any(
        layer.startswith("skip_layers") for layer in layers
    )


class Odd(nn.Module):
    """A network whose modules are used in unusual ways.

    One is called twice, one is never called, one gives an output without images; and the container
    has a parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(3, 3)
        self.never = nn.Linear(3, 3)
        self.table = nn.Linear(2, 3)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.gain * self.twice(self.twice(images) + self.table(torch.ones(2)))


def test_last_call_counts_containers_give_their_output_and_the_rest_is_not_yielded() -> None:
    network, images = Odd(), torch.randn(5, 3)
    found = by_layer(
        network, network.state_dict(), network.state_dict(), images, scored_layers(network)
    )
    assert set(found) == {"", "twice"}
    assert torch.allclose(found["twice"][0], network(images) / network.gain)
    assert torch.equal(found[""][0], network(images))


@pytest.mark.slow
def test_a_compiled_network_gives_its_features_too() -> None:
    torch.manual_seed(0)
    network = UNet(2, 1, 1, (4, 8), (2,))
    images = torch.randn(4, 1, 8, 8)
    layers = scored_layers(network)
    expected = dict(features_of(network, network.state_dict(), images, layers))
    network.compile(backend="eager")
    # Compiled before there are hooks, as in a validation.
    with torch.no_grad():
        network.eval()(images[:2])
        network(images)
    found = dict(features_of(network, network.state_dict(), images, layers))
    assert set(found) == set(expected)
    for layer, of_layer in expected.items():
        assert torch.equal(found[layer], of_layer)
