# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from monai_fairfl.data import SampleSlicesd
from monai_fairfl.errors import ConfigError
from monai_fairfl.inferers import (
    CoarseToFineInferer,
    HardwarePrecisionInferer,
    MirroredInferer,
    NeighbourSliceInferer,
)

SLICES: dict[str, Any] = {"roi_size": (4, 4), "spatial_dim": 2, "sw_batch_size": 3}
DEPTH = 7


def images() -> torch.Tensor:
    return torch.rand((1, 1, 4, 4, DEPTH), generator=torch.Generator().manual_seed(0))


def middle_of_three(slices: torch.Tensor) -> torch.Tensor:
    return slices[:, 1:2]


def test_the_network_sees_at_inference_what_it_was_trained_with():
    volume = images()[0]
    sampler = SampleSlicesd(["image", "label"], "label", DEPTH, empty_rate=0.0, neighbours=1)
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
    both = MirroredInferer(NeighbourSliceInferer(neighbours=1, **SLICES))(images(), lower)
    assert torch.equal(both, once)


def test_smoothing_averages_each_slice_with_those_beside_it():
    logits = images()
    smoothed = NeighbourSliceInferer(smoothing=0.5, **SLICES)(logits, nn.Identity())
    inner = 0.25 * logits[..., :-2] + 0.5 * logits[..., 1:-1] + 0.25 * logits[..., 2:]
    torch.testing.assert_close(smoothed[..., 1:-1], inner)
    torch.testing.assert_close(smoothed[..., 0], 0.75 * logits[..., 0] + 0.25 * logits[..., 1])


@pytest.mark.parametrize("in_hardware", [True, False])
def test_the_forward_pass_is_short_where_the_hardware_is_and_weights_and_gradients_never(
    in_hardware, monkeypatch
):
    monkeypatch.setattr("monai_fairfl.inferers.has_bfloat16", lambda device: in_hardware)
    torch.manual_seed(0)
    network = nn.Conv2d(1, 2, 3)
    seen = []
    network.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    inferer = HardwarePrecisionInferer()
    output = inferer(images()[..., 0], network)
    assert f"torch.{inferer.precision}" == str(seen[0])  # as the ledger records it
    output.sum().backward()
    assert seen == [torch.bfloat16 if in_hardware else torch.float32]
    assert output.dtype == torch.float32
    assert network.weight.grad is not None and network.weight.grad.dtype == torch.float32
    torch.testing.assert_close(output, network(images()[..., 0]), atol=0.02, rtol=0.02)


# A disc that the network is sure of, and a larger lesion that it takes for a disc.
DISC = (slice(10, 20), slice(40, 50))
LESION = (slice(30, 50), slice(12, 32))


def photograph() -> torch.Tensor:
    image = torch.zeros(1, 1, 64, 64)
    image[0, 0][DISC] = 1.0
    image[0, 0][LESION] = 0.8
    return image


def brightness(views: torch.Tensor) -> torch.Tensor:
    """A network whose logits are highest where a view is brightest."""
    return 10 * views - 5


def looks(**settings: Any) -> torch.Tensor:
    """What is found in the photograph, as a mask (W, H)."""
    inferer = CoarseToFineInferer((32, 32), **settings)
    return (inferer(photograph(), brightness) > 0)[0, 0]


def test_a_further_look_at_the_surest_part_does_not_lose_a_disc_to_a_larger_lesion():
    largest = looks(part="largest")
    assert largest[LESION].all() and not largest[DISC].any()

    surest = looks(part="surest")
    disc = torch.zeros(64, 64, dtype=torch.bool)
    disc[DISC] = True
    assert torch.equal(surest, disc)


def test_every_look_at_a_photograph_is_averaged_with_its_mirror_image():
    def left_half(views: torch.Tensor) -> torch.Tensor:
        """Finds the left half of whatever it sees."""
        logits = torch.full_like(views, -4.0)
        logits[:, :, : views.shape[2] // 2] = 8.0
        return logits

    image = torch.zeros(1, 1, 32, 32)
    once = CoarseToFineInferer((32, 32), passes=1)(image, left_half)
    both = CoarseToFineInferer((32, 32), passes=1, mirror_axes=[0])(image, left_half)
    assert torch.equal(both, (once + once.flip(2)) / 2)
    across = CoarseToFineInferer((32, 32), passes=1, mirror_axes=[1])(image, left_half)
    assert torch.equal(across, once)


def test_of_several_first_looks_the_most_certain_end_is_kept():
    lesion = (slice(44, 54), slice(6, 16))
    disc = (slice(8, 16), slice(48, 56))
    image = torch.zeros(1, 1, 64, 64)
    image[0, 0][lesion] = 0.8
    image[0, 0][disc] = 1.0

    def surest_of_lesions(views: torch.Tensor) -> torch.Tensor:
        """A network whose logits are highest in a lesion, of which it sees no border."""
        blurred = avg_pool2d(((views - 0.8).abs() < 0.1).float(), 9, stride=1, padding=4)
        return torch.maximum(14 * blurred - 4, torch.where(views > 0.9, 9.0, -9.0))

    found = {}
    for scales in ((), (0.5,)):
        inferer = CoarseToFineInferer((64, 64), part="surest", scales=scales)
        found[scales] = (inferer(image, surest_of_lesions) > 0)[0, 0]
    assert found[()][lesion].any() and not found[()][disc].any()
    assert found[0.5,][disc].all() and not found[0.5,][lesion].any()


def test_what_is_out_of_range_is_refused():
    for arguments in ({"neighbours": -1}, {"smoothing": -0.5}):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            NeighbourSliceInferer(**SLICES, **arguments)
    with pytest.raises(ConfigError, match="part"):
        CoarseToFineInferer((32, 32), part="smallest")
