# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from monai_fairfl.data import SampleSlicesd
from monai_fairfl.errors import ConfigError
from monai_fairfl.inferers import BFloat16Inferer, MirroredSliceInferer, NeighbourSliceInferer

SLICES: dict[str, Any] = {"roi_size": (4, 4), "spatial_dim": 2, "sw_batch_size": 3}
DEPTH = 7


def images() -> torch.Tensor:
    return torch.rand((1, 1, 4, 4, DEPTH), generator=torch.Generator().manual_seed(0))


def middle_of_three(slices: torch.Tensor) -> torch.Tensor:
    return slices[:, 1:2]


def test_the_network_sees_at_inference_what_it_was_trained_with():
    volume = images()[0]
    sampler = SampleSlicesd(["image", "label"], empty_rate=0.0, neighbours=1)
    trained = {}
    for item in sampler({"image": volume, "label": torch.ones_like(volume)}):
        trained[float(item["image"][1, 0, 0])] = item["image"]
    seen = []

    def network(slices: torch.Tensor) -> torch.Tensor:
        seen.extend(slices)
        return middle_of_three(slices)

    output = NeighbourSliceInferer(neighbours=1, **SLICES)(images(), network)
    assert torch.equal(output, images())
    assert len(seen) == len(trained) == DEPTH
    for slices in seen:
        assert torch.equal(slices, trained[float(slices[1, 0, 0])])


def test_mirrored_neighbours_are_those_of_the_same_side():
    def lower(slices: torch.Tensor) -> torch.Tensor:
        return slices[:, :1]

    once = NeighbourSliceInferer(neighbours=1, **SLICES)(images(), lower)
    both = MirroredSliceInferer(neighbours=1, **SLICES)(images(), lower)
    assert torch.equal(both, once)


def test_smoothing_averages_each_slice_with_those_beside_it():
    logits = images()
    smoothed = NeighbourSliceInferer(smoothing=0.5, **SLICES)(logits, nn.Identity())
    inner = 0.25 * logits[..., :-2] + 0.5 * logits[..., 1:-1] + 0.25 * logits[..., 2:]
    torch.testing.assert_close(smoothed[..., 1:-1], inner)
    torch.testing.assert_close(smoothed[..., 0], 0.75 * logits[..., 0] + 0.25 * logits[..., 1])


def test_slices_go_alone_unless_neighbours_are_asked_for():
    straight = MirroredSliceInferer(**SLICES)(images(), nn.Identity())
    assert torch.equal(straight, images())


@pytest.mark.parametrize("arguments", [{"neighbours": -1}, {"smoothing": -0.5}], ids=str)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        MirroredSliceInferer(**SLICES, **arguments)


def test_the_forward_pass_is_short_and_weights_and_gradients_are_not():
    torch.manual_seed(0)
    network = nn.Conv2d(1, 2, 3)
    seen = []
    network.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    output = BFloat16Inferer()(images()[..., 0], network)
    output.sum().backward()
    assert seen == [torch.bfloat16] and output.dtype == torch.float32
    assert network.weight.grad is not None and network.weight.grad.dtype == torch.float32
    torch.testing.assert_close(output, network(images()[..., 0]), atol=0.02, rtol=0.02)
