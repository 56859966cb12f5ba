# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Structures of label images, and the transforms of fundus photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.transforms import Compose, EnsureChannelFirstd, Invertd, LoadImaged, Resized, SpatialPadd
from PIL import Image

from monai_fairfl.data import (
    LabelStructuresd,
    NestStructuresd,
    NormaliseFieldd,
    OneViewd,
    RandDiscCropd,
    grey_levels,
)
from monai_fairfl.data.fundus import normalise_field, square_around
from monai_fairfl.data.layouts.image_files import grey, read
from monai_fairfl.errors import ConfigError, DataError

STRUCTURES = ["disc", "cup"]


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"disc": [1, 2], "cup": [2, 2]}, (0, 1, 2)),  # palette
        ({"disc": [0, 200], "cup": [0, 50]}, (255, 128, 0)),  # dark is inside
        ({"disc": [64, 255], "cup": [192, 255]}, (3, 120, 250)),  # JPEG
    ],
)
def test_every_coding_gives_the_same_channels(
    values: dict[str, list[int]], codes: tuple[int, int, int]
) -> None:
    label = torch.tensor([[codes, codes[::-1]]])
    found = LabelStructuresd("label", STRUCTURES)({"label": label, "values": values})["label"]
    assert found.tolist() == [[[0, 1, 1], [1, 1, 0]], [[0, 0, 1], [1, 0, 0]]]


def test_a_structure_that_is_not_labelled_is_below_zero_and_the_cases_own_values_come_first() -> (
    None
):
    transform = LabelStructuresd("label", STRUCTURES, values={"disc": [1, 2], "cup": [2, 2]})
    label = torch.tensor([[[0, 255]]])
    assert transform({"label": label, "values": {"disc": [128, 255]}})["label"].tolist() == [
        [[0, 1]],
        [[-1, -1]],
    ]
    assert transform({"label": torch.tensor([[[1, 2]]])})["label"].tolist() == [[[1, 1]], [[0, 1]]]


def test_labels_without_values_and_unknown_structures_are_refused() -> None:
    with pytest.raises(DataError, match="which pixel values are"):
        LabelStructuresd("label", STRUCTURES)({"label": torch.zeros(1, 2, 2)})
    with pytest.raises(DataError, match="3 channels"):
        LabelStructuresd("label", STRUCTURES, {"disc": [1, 1]})({"label": torch.zeros(3, 2, 2)})
    with pytest.raises(ConfigError, match="'dics'"):
        LabelStructuresd("label", STRUCTURES, {"dics": [1, 1]})


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_nested_structures_lie_inside_each_other_and_the_outer_one_is_kept(
    pixels: list[tuple[bool, bool]],
) -> None:
    masks = torch.tensor(pixels, dtype=torch.float32).T.contiguous()
    nested = NestStructuresd("pred")({"pred": masks})["pred"]
    assert torch.equal(nested[0], masks[0]) and torch.equal(nested[1], masks[1] * masks[0])


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_masks_of_every_mode_are_read_as_stored(mode: str, tmp_path: Path) -> None:
    stored = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    image = Image.fromarray(stored)
    if mode == "P":
        image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0] + [0] * 759)
    Image.Image.save(image.convert("RGB") if mode == "RGB" else image, tmp_path / "mask.png")
    load = LoadImaged("label", reader="PILReader", converter=grey_levels)
    found = Compose([load, EnsureChannelFirstd("label")])({"label": tmp_path / "mask.png"})
    assert np.array_equal(found["label"][0].numpy().T, stored)  # MONAI reads the width first


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16", "I;16B", "F"])
def test_training_reads_a_mask_as_the_check_does(mode: str, tmp_path: Path) -> None:
    stored = np.array([[0, 1, 0], [1, 1, 0]], np.uint8)
    if mode.startswith("I;16"):
        wide = (stored * np.uint16(1000)).astype(">u2" if mode.endswith("B") else "<u2")
        image = Image.frombytes(mode, (3, 2), wide.tobytes())
    else:
        deep = {"1": stored > 0, "I": stored * np.int32(70000), "F": stored * np.float32(1000)}
        image = Image.fromarray(deep.get(mode, stored))
        image = image if mode in deep else image.convert(mode)
    image.save(tmp_path / "mask.tif")
    with Image.open(tmp_path / "mask.tif") as opened:
        assert opened.mode == mode
    load = LoadImaged("label", reader="PILReader", converter=grey_levels)
    found = load({"label": str(tmp_path / "mask.tif")})["label"].numpy().T
    checked = grey(read(tmp_path / "mask.tif"))
    assert checked is not None and checked.dtype.isnative  # torch takes no other
    assert np.array_equal(found, checked) and np.array_equal(found > 0, stored > 0)


@pytest.mark.parametrize("mode", ["CMYK", "LAB"])
def test_masks_in_colours_of_print_are_refused_by_check_and_training(
    mode: str, tmp_path: Path
) -> None:
    Image.new(mode, (4, 4)).save(tmp_path / "mask.tif")
    for reading in (read, lambda file: grey_levels(Image.open(file))):
        with pytest.raises(
            DataError, match=rf"mask.tif has the colours {mode}.*; save it in grey or RGB"
        ):
            reading(tmp_path / "mask.tif")


def test_of_a_stereo_pair_the_left_view_is_taken_and_invertd_puts_it_back() -> None:
    pair = torch.arange(3 * 40 * 20, dtype=torch.float32).reshape(3, 40, 20)

    transforms = Compose(
        [
            OneViewd("image"),
            Resized("image", 16, size_mode="longest"),
            SpatialPadd("image", (16, 16)),
        ]
    )
    assert torch.equal(OneViewd("image")({"image": pair})["image"], pair[:, :20])
    single = pair[:, :30]
    assert OneViewd("image")({"image": single})["image"].shape == single.shape
    assert OneViewd("image", stereo=True)({"image": single})["image"].shape == (3, 15, 20)
    assert OneViewd("image", stereo=False)({"image": pair})["image"].shape == pair.shape
    case = transforms({"image": MetaTensor(pair)})
    case["pred"] = MetaTensor(torch.ones(1, 16, 16))
    back = Invertd("pred", transforms, orig_keys="image", nearest_interp=True)(case)["pred"]
    assert back.shape == (1, 40, 20) and back[:, :20].all() and not back[:, 20:].any()


@pytest.mark.slow
@given(st.floats(0.3, 3), st.floats(0, 40), st.integers(0, 1000))
def test_cast_and_exposure_do_not_change_a_normalised_photograph(
    gain: float, offset: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(3, 24, 24, generator=generator) * 100 + 100
    image[:, :4] = 2  # black surroundings
    camera = torch.where(image > 2, gain * image + offset, image)
    usual = NormaliseFieldd("image")({"image": image})["image"]
    torch.testing.assert_close(
        NormaliseFieldd("image")({"image": camera})["image"], usual, atol=1e-3, rtol=1e-3
    )
    assert not usual[:, :4].any()
    inside = usual[:, 4:].flatten(1)
    torch.testing.assert_close(inside.mean(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inside.std(1), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.long
@pytest.mark.slow
def test_a_photograph_of_more_pixels_than_torch_takes_is_normalised_as_a_small_one() -> None:
    small = torch.rand(1, 41, 41, generator=torch.Generator().manual_seed(0)) + 1
    small[:, :4] = 0.01  # black surroundings
    large = MetaTensor(small.repeat(1, 100, 100))
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(large, 0.99)
    found = normalise_field(large)[:, :41, :41]
    torch.testing.assert_close(torch.as_tensor(found), normalise_field(small), atol=2e-3, rtol=0)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, 2.0, float("nan")])
def test_a_threshold_that_no_pixel_could_pass_is_refused_by_the_function_too(
    threshold: float,
) -> None:
    with pytest.raises(ConfigError, match=r"^normalise_field: threshold must be in \[0, 1\), got"):
        normalise_field(torch.rand(3, 8, 8), threshold)
    with pytest.raises(ConfigError, match=r"^NormaliseFieldd: threshold must be in \[0, 1\), got"):
        NormaliseFieldd("image", threshold)


def test_a_black_photograph_stays_finite() -> None:
    assert torch.isfinite(NormaliseFieldd("image")({"image": torch.zeros(3, 8, 8)})["image"]).all()


@pytest.mark.slow
@given(
    st.integers(5, 40),
    st.integers(5, 40),
    st.integers(1, 12),
    st.integers(1, 12),
    st.floats(1, 4),
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.randoms(use_true_random=False),
)
def test_the_square_lies_in_the_image_and_around_the_disc(  # type: ignore[no-untyped-def]
    width, height, wide, high, margin, dx, dy, random
) -> None:
    wide, high = min(wide, width), min(high, height)
    x, y = random.randint(0, width - wide), random.randint(0, height - high)
    mask = torch.zeros(width, height, dtype=torch.bool)
    mask[x : x + wide, y : y + high] = True
    found = square_around(mask, margin, (dx, dy))
    assert found is not None
    for part, size in zip(found, mask.shape, strict=True):
        assert 0 <= part.start < part.stop <= size
        assert part.stop - part.start == min(max(round(margin * max(wide, high)), 1), size)
    centred = square_around(mask, margin)
    assert centred is not None and mask[centred].sum() == mask.sum()


def test_crops_are_of_the_disc_the_same_for_image_and_label_and_repeat_with_the_seed() -> None:
    label = torch.zeros(2, 96, 96)
    label[0, 60:76, 20:36], label[1] = 1, -1
    case = {"image": label[:1].repeat(3, 1, 1) * 5, "label": label}
    transform = RandDiscCropd(
        ["image", "label"], "label", (32, 32), prob=1.0, margin=(2, 2), jitter=0
    )
    found = transform(case)
    assert found["image"].shape == (3, 32, 32) and found["label"].unique().tolist() == [-1, 0, 1]
    assert float(found["label"][0].mean()) == pytest.approx(0.25, abs=0.01)  # half of the side
    assert float((found["image"][0] / 5 - found["label"][0]).abs().mean()) < 0.05
    whole = RandDiscCropd(["image", "label"], "label", (96, 96), prob=0.0)(case)
    torch.testing.assert_close(whole["label"], label)
    empty = {"image": case["image"], "label": torch.zeros(2, 96, 96)}
    assert transform(empty)["label"].shape == (2, 32, 32)
    one, two = (
        RandDiscCropd(["label"], "label", (32, 32)).set_random_state(3)({"label": label})
        for _ in range(2)
    )
    assert torch.equal(one["label"], two["label"])


def test_a_square_elsewhere_has_the_same_side_and_seldom_a_disc() -> None:
    label = torch.zeros(1, 96, 96)
    label[0, 60:76, 20:36] = 1
    ramp = torch.arange(96.0).view(1, 96, 1).expand(1, 96, 96)
    transform = RandDiscCropd(
        ["image", "label"], "label", (32, 32), prob=1.0, margin=(2, 2), elsewhere=1.0
    ).set_random_state(0)
    found = [transform({"image": ramp, "label": label}) for _ in range(20)]
    assert {round(float(one["image"].max() - one["image"].min())) for one in found} == {31}
    assert len({float(one["image"].min()) for one in found}) > 10
    assert sum(float(one["label"].max()) == 0 for one in found) > 5


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_nothing_is_within_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="limit"):
        NormaliseFieldd("image", limit=limit)


@pytest.mark.parametrize(
    "wrong",
    [{"prob": 1.5}, {"margin": (0.5, 2)}, {"jitter": -1}, {"elsewhere": 2}, {"label_key": "x"}],
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="RandDiscCropd"):
        RandDiscCropd(**{"keys": ["label"], "label_key": "label", "size": (8, 8), **wrong})  # type: ignore[arg-type]
