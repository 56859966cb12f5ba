# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.transforms import Compose, Flipd, Invertd, Resized, SpatialPadd

from monai_fairfl.data import SmoothResized


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=2),
    st.lists(st.integers(1, 40), min_size=2, max_size=2),
)
def test_values_and_affine_are_monais_own(shape: Sequence[int], size: Sequence[int]) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    image = MetaTensor(
        torch.rand(2, *shape, generator=generator), affine=torch.diag(torch.tensor([2.0, 3, 1, 1]))
    )
    theirs = Resized("image", size, mode="bilinear", anti_aliasing=True)({"image": image})["image"]
    ours = SmoothResized("image", size)({"image": image})["image"]
    torch.testing.assert_close(ours.as_tensor(), theirs.as_tensor(), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.affine, theirs.affine)


def test_a_camera_s_photograph_keeps_its_detail_and_its_label_is_monais() -> None:
    photograph, label = torch.rand(3, 1200, 900), (torch.rand(1, 1200, 900) > 0.5).float()
    settings = {
        "mode": ["bilinear", "nearest"],
        "anti_aliasing": [True, False],
        "size_mode": "longest",
    }
    theirs, ours = (
        kind(["image", "label"], 256, **settings)({"image": photograph, "label": label})
        for kind in (Resized, SmoothResized)
    )
    torch.testing.assert_close(ours["image"], theirs["image"], rtol=0, atol=1e-4)
    assert torch.equal(ours["label"], theirs["label"]) and photograph.shape == (3, 1200, 900)


def test_a_mask_goes_back_to_the_photographs_own_pixels() -> None:
    transforms = Compose(
        [SmoothResized("image", 16, size_mode="longest"), SpatialPadd("image", (16, 16))]
    )
    case = transforms({"image": MetaTensor(torch.rand(3, 40, 20))})
    case["pred"] = MetaTensor(torch.ones(1, 16, 16))
    back = Invertd("pred", transforms, orig_keys="image", nearest_interp=True)(case)["pred"]
    assert back.shape == (1, 40, 20) and back.all()


@pytest.mark.parametrize("size", [(16, 12), (70, 61)])
def test_what_does_not_shrink_is_monais_to_the_bit(size: Sequence[int]) -> None:
    image = torch.rand(3, 16, 12)
    theirs = Resized("image", size, mode="bilinear", anti_aliasing=True)({"image": image})["image"]
    assert torch.equal(SmoothResized("image", size)({"image": image})["image"], theirs)


def test_a_lazy_compose_carries_out_what_is_pending_first() -> None:
    image = MetaTensor(torch.rand(3, 40, 20))
    transforms = [Flipd("image", 0, lazy=True), SmoothResized("image", (10, 5))]
    eager, lazy = (
        Compose(transforms, lazy=lazy)({"image": image})["image"] for lazy in (False, True)
    )
    torch.testing.assert_close(lazy.as_tensor(), eager.as_tensor())


def test_another_mode_cannot_be_smoothed() -> None:
    with pytest.raises(ValueError, match="needs mode 'bilinear', got 'nearest'"):
        SmoothResized(["image", "label"], 16, mode=["bilinear", "nearest"])
