# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The transforms that the bundles need: structures, photographs, slices, parts and sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from monai import transforms as monai
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, list_data_collate
from monai.transforms import Compose, Invertd, LoadImaged, Resized, SpatialPadd
from PIL import Image

from monai_fairfl import data
from monai_fairfl.data import (
    LabelStructuresd,
    NestStructuresd,
    NormaliseFieldd,
    OneChanneld,
    OneViewd,
    RandDiscCropd,
    SampleSlicesd,
    SmoothResized,
    normalise_field,
)
from monai_fairfl.errors import ConfigError

STRUCTURES = ["disc", "cup"]
KEYS = ["image", "label"]
MASK = monai.AsDiscrete(threshold=0.5)

CROP = partial(RandDiscCropd, keys=["label"], label_key="label", size=(8, 8))

REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "structure": (LabelStructuresd, {"keys": "x", "structures": ["a"], "values": {"b": 1}}, "'b'"),
    "channel": (OneChanneld, {"keys": "x", "channel": -1}, "-1"),
    "part": (data.KeepPartd, {"keys": "x", "part": "surst"}, "'surst' surest"),
    "threshold above": (NormaliseFieldd, {"keys": "x", "threshold": 1.0}, "threshold 1.0"),
    "threshold below": (NormaliseFieldd, {"keys": "x", "threshold": -0.1}, "threshold -0.1"),
    "no number": (normalise_field, {"image": torch.ones(1, 2, 2), "threshold": np.nan}, "nan"),
    "limit": (NormaliseFieldd, {"keys": "x", "limit": 0.0}, "limit 0.0"),
    "limit of a function": (normalise_field, {"image": torch.ones(1, 2, 2), "limit": -1}, "-1"),
    "chance": (CROP, {"prob": 1.5}, "prob 1.5"),
    "margin below": (CROP, {"margin": (0.5, 2)}, "margin 0.5"),
    "margin downwards": (CROP, {"margin": (2, 1)}, "margin 2"),
    "jitter": (CROP, {"jitter": -1}, "jitter -1"),
    "elsewhere": (CROP, {"elsewhere": 2}, "elsewhere 2"),
    "key of the disc": (CROP, {"keys": ["x"]}, "'label'"),
    "no slices": (SampleSlicesd, {"keys": KEYS, "num_samples": 0}, "num_samples 0"),
    "some slices": (SampleSlicesd, {"keys": KEYS, "num_samples": "some"}, "'some'"),
    "true slices": (SampleSlicesd, {"keys": KEYS, "num_samples": True}, "True"),
    "rate above": (SampleSlicesd, {"keys": KEYS, "empty_rate": 1.0}, "empty_rate 1.0"),
    "rate below": (SampleSlicesd, {"keys": KEYS, "empty_rate": -0.1}, "empty_rate -0.1"),
    "neighbours": (SampleSlicesd, {"keys": KEYS, "neighbours": -1}, "neighbours -1"),
    "key of the gland": (SampleSlicesd, {"keys": KEYS, "label_key": "x"}, "label_key 'x'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_out_of_range_is_refused_with_its_value(name: str) -> None:
    make, arguments, words = REFUSED[name]
    with refused(*words.split(), by=ConfigError):
        make(**arguments)


# Structures


def test_every_coding_gives_the_same_channels() -> None:
    for values, codes in (
        ({"disc": [1, 2], "cup": [2, 2]}, (0, 1, 2)),  # palette
        ({"disc": [0, 200], "cup": [0, 50]}, (255, 128, 0)),  # dark is inside
        ({"disc": [64, 255], "cup": [192, 255]}, (3, 120, 250)),  # JPEG
    ):
        case = {"label": torch.tensor([[codes, codes[::-1]]]), "values": values}
        found = LabelStructuresd("label", STRUCTURES)(case)
        assert found["label"].tolist() == [[[0, 1, 1], [1, 1, 0]], [[0, 0, 1], [1, 0, 0]]]
        assert "values" not in found


def test_a_structure_that_is_not_labelled_is_below_zero_and_the_cases_own_values_come_first() -> (
    None
):
    transform = LabelStructuresd("label", STRUCTURES, values={"disc": [1, 2], "cup": [2, 2]})
    of_case = {"label": torch.tensor([[[0, 255]]]), "values": {"disc": [128, 255]}}
    assert transform(of_case)["label"].tolist() == [[[0, 1]], [[-1, -1]]]
    assert transform({"label": torch.tensor([[[1, 2]]])})["label"].tolist() == [[[1, 1]], [[0, 1]]]
    label = MetaTensor(torch.zeros(1, 2, 2), meta={"filename_or_obj": "elm/7.png"})
    with refused("elm/7.png", "disc", "values"):
        LabelStructuresd("label", STRUCTURES)({"label": label})
    with refused("3 channels"):
        transform({"label": torch.zeros(3, 2, 2)})


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_nested_structures_lie_inside_each_other_and_the_outer_one_is_kept(
    pixels: list[tuple[bool, bool]],
) -> None:
    masks = torch.tensor(pixels, dtype=torch.float32).T.contiguous()
    nested = NestStructuresd("pred")({"pred": masks})["pred"]
    assert torch.equal(nested[0], masks[0]) and torch.equal(nested[1], masks[1] * masks[0])


def test_masks_are_read_as_stored_and_colours_of_print_are_refused(tmp_path: Path) -> None:
    stored = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    palette = Image.fromarray(stored)
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0] + [0] * 759)
    load = Compose([LoadImaged("label", reader="PILReader", converter=data.grey_levels)])
    for picture in (palette, Image.fromarray(stored), Image.fromarray(stored).convert("RGB")):
        picture.save(tmp_path / "mask.png")
        # MONAI reads the width first.
        assert np.array_equal(load({"label": tmp_path / "mask.png"})["label"].numpy().T, stored)
    Image.new("CMYK", (4, 4)).save(tmp_path / "mask.tif")
    with Image.open(tmp_path / "mask.tif") as opened, refused("mask.tif", "CMYK"):
        data.grey_levels(opened)


def test_a_channel_that_an_image_does_not_have_is_refused_with_its_file() -> None:
    image = MetaTensor(torch.zeros(2, 4, 4, 4), meta={"filename_or_obj": "Task05/a.nii.gz"})
    assert OneChanneld("image", channel=1)({"image": image})["image"].shape == (1, 4, 4, 4)
    assert OneChanneld("image", channel=2)({"image": image[:1]})["image"].shape == (1, 4, 4, 4)
    with refused("Task05/a.nii.gz", "2 channels", "number 2"):
        OneChanneld("image", channel=2)({"image": image})


# Photographs


def test_of_a_stereo_pair_the_left_view_is_taken_and_invertd_puts_it_back() -> None:
    pair = torch.arange(3 * 40 * 20, dtype=torch.float32).reshape(3, 40, 20)
    assert torch.equal(OneViewd("image")({"image": pair})["image"], pair[:, :20])
    for width, stereo, expected in (
        (36, None, 18),
        (35, None, 35),
        (30, True, 15),
        (40, False, 40),
    ):
        view = OneViewd("image", stereo=stereo)({"image": pair[:, :width]})["image"]
        assert torch.equal(view, pair[:, :expected])
    sizes = [Resized("image", 16, size_mode="longest"), SpatialPadd("image", (16, 16))]
    transforms = Compose([OneViewd("image"), *sizes])
    case = transforms({"image": MetaTensor(pair)})
    case["pred"] = MetaTensor(torch.ones(1, 16, 16))
    back = Invertd("pred", transforms, orig_keys="image", nearest_interp=True)(case)["pred"]
    assert back.shape == (1, 40, 20) and back[:, :20].all() and not back[:, 20:].any()


@settings(max_examples=40)
@given(st.floats(0.3, 3), st.floats(0, 40), st.integers(0, 1000))
def test_cast_and_exposure_do_not_change_a_normalised_photograph(
    gain: float, offset: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(3, 24, 24, generator=generator) * 100 + 100
    image[:, :4] = 2  # black surroundings
    camera = torch.where(image > 2, gain * image + offset, image)
    usual = NormaliseFieldd("image")({"image": image})["image"]
    found = NormaliseFieldd("image")({"image": camera})["image"]
    torch.testing.assert_close(found, usual, atol=1e-3, rtol=1e-3)
    assert not usual[:, :4].any()
    inside = usual[:, 4:].flatten(1)
    torch.testing.assert_close(inside.mean(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inside.std(1), torch.ones(3), atol=1e-3, rtol=0)
    limited = normalise_field(image, limit=2.0)
    torch.testing.assert_close(limited, 2 * torch.tanh(usual / 2))


def test_the_field_of_view_is_above_a_share_of_the_99th_percentile() -> None:
    image = torch.full((3, 20, 20), 100.0)
    image[0] += torch.arange(400.0).view(20, 20) / 400
    image[:, 0, 0], image[:, 0, 1], image[:, 19, 19] = 15.2, 15.1, 1e4
    found = normalise_field(image)
    assert found[0, 0, 0] != 0 and not found[:, 0, 1].any()
    assert torch.isfinite(normalise_field(torch.zeros(3, 8, 8))).all()


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


def labelled(width: int, height: int, columns: slice, rows: slice) -> torch.Tensor:
    """A label: the disc, then the column and the row of each pixel."""
    label = torch.stack(
        [
            torch.zeros(width, height),
            *torch.meshgrid(torch.arange(float(width)), torch.arange(float(height)), indexing="ij"),
        ]
    )
    label[0, columns, rows] = 1
    return label


@settings(max_examples=60)
@given(
    st.integers(5, 40),
    st.integers(5, 40),
    st.integers(1, 12),
    st.integers(1, 12),
    st.floats(1, 4),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 1.0]),
    st.randoms(use_true_random=False),
)
def test_the_square_lies_in_the_photograph_and_around_the_disc(
    width: int,
    height: int,
    wide: int,
    high: int,
    margin: float,
    jitter: float,
    elsewhere: float,
    draw: random.Random,
) -> None:
    wide, high = min(wide, width), min(high, height)
    x, y = draw.randint(0, width - wide), draw.randint(0, height - high)
    label = labelled(width, height, slice(x, x + wide), slice(y, y + high))
    transform = RandDiscCropd(
        ["label"], "label", (48, 48), 1.0, (margin, margin), jitter, elsewhere
    ).set_random_state(draw.randint(0, 99))
    found = transform({"label": label})["label"]
    # Labels are repeated to the larger size: each pixel of the square is there.
    for channel, size in ((1, width), (2, height)):
        places = found[channel].unique()
        assert places.tolist() == list(range(int(places[0]), int(places[-1]) + 1))
        assert len(places) == min(max(round(margin * max(wide, high)), 1), size)
    if not jitter and not elsewhere:
        inside = torch.stack([found[1], found[2]])[:, found[0] > 0]
        assert inside[0].unique().tolist() == list(range(x, x + wide))
        assert inside[1].unique().tolist() == list(range(y, y + high))


def test_crops_are_the_same_for_image_and_label_and_repeat_with_the_seed() -> None:
    label = torch.zeros(2, 96, 96)
    label[0, 60:76, 20:36], label[1] = 1, -1
    case = {"image": label[:1].repeat(3, 1, 1) * 5, "label": label}
    transform = RandDiscCropd(KEYS, "label", (32, 32), prob=1.0, margin=(2, 2), jitter=0)
    found = transform(case)
    assert found["image"].shape == (3, 32, 32) and found["label"].unique().tolist() == [-1, 0, 1]
    assert float(found["label"][0].mean()) == pytest.approx(0.25, abs=0.01)  # half of the side
    assert float((found["image"][0] / 5 - found["label"][0]).abs().mean()) < 0.05
    whole = RandDiscCropd(KEYS, "label", (96, 96), prob=0.0)(case)
    torch.testing.assert_close(whole["label"], label)
    empty = {"image": case["image"], "label": torch.zeros(2, 96, 96)}
    assert transform(empty)["label"].shape == (2, 32, 32)

    def drawn(elsewhere: float, label: torch.Tensor = label) -> list[torch.Tensor]:
        crop = RandDiscCropd(["label"], "label", (32, 32), margin=(1, 3), elsewhere=elsewhere)
        crop.set_random_state(3)
        return [crop({"label": label})["label"] for _ in range(20)]

    assert all(torch.equal(one, two) for one, two in zip(drawn(0), drawn(0), strict=True))
    assert 5 < sum(float(one[0].mean()) > 0.05 for one in drawn(0)) < 20  # squares, and wholes
    assert (
        sum(float(one[0].max()) == 0 for one in drawn(1))
        > 5
        > sum(float(one[0].max()) == 0 for one in drawn(0))
    )


@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=2),
    st.lists(st.integers(1, 40), min_size=2, max_size=2),
)
def test_a_smaller_photograph_is_monais_with_its_affine(shape: list[int], size: list[int]) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    affine = torch.diag(torch.tensor([2.0, 3, 1, 1]))
    image = MetaTensor(torch.rand(2, *shape, generator=generator), affine=affine)
    theirs = Resized("image", size, mode="bilinear", anti_aliasing=True)({"image": image})["image"]
    ours = SmoothResized("image", size)({"image": image})["image"]
    torch.testing.assert_close(ours.as_tensor(), theirs.as_tensor(), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.affine, theirs.affine)
    if all(new >= old for new, old in zip(size, shape, strict=True)):
        assert torch.equal(ours.as_tensor(), theirs.as_tensor())


def test_a_label_is_resized_as_monai_does_and_goes_back_to_the_photographs_pixels() -> None:
    case = {"image": torch.rand(3, 120, 90), "label": (torch.rand(1, 120, 90) > 0.5).float()}
    options = {
        "mode": ["bilinear", "nearest"],
        "anti_aliasing": [True, False],
        "size_mode": "longest",
    }
    theirs, ours = (kind(KEYS, 26, **options)(case) for kind in (Resized, SmoothResized))
    torch.testing.assert_close(ours["image"], theirs["image"], rtol=0, atol=1e-4)
    assert torch.equal(ours["label"], theirs["label"])
    sizes = [SmoothResized("image", 16, size_mode="longest"), SpatialPadd("image", (16, 16))]
    transforms = Compose(sizes)
    small = transforms({"image": MetaTensor(torch.rand(3, 40, 20))})
    small["pred"] = MetaTensor(torch.ones(1, 16, 16))
    back = Invertd("pred", transforms, orig_keys="image", nearest_interp=True)(small)["pred"]
    assert back.shape == (1, 40, 20) and back.all()
    # What a lazy Compose has put off comes first.
    image = MetaTensor(torch.rand(3, 40, 20))
    steps = [monai.Flipd("image", 0, lazy=True), SmoothResized("image", (10, 5))]
    eager, lazy = (Compose(steps, lazy=lazy)({"image": image})["image"] for lazy in (False, True))
    torch.testing.assert_close(lazy.as_tensor(), eager.as_tensor())
    with refused("nearest", by=ValueError):
        SmoothResized(KEYS, 16, mode=["bilinear", "nearest"])


# The kept part of a prediction


def test_the_largest_part_is_that_of_monai_behind_the_threshold() -> None:
    for seed in range(3):
        coarse = 0.54 * torch.rand(1, 1, 6, 6, 4, generator=torch.Generator().manual_seed(seed))
        probabilities = torch.nn.functional.interpolate(coarse, (24, 24, 8))[0]
        kept = MASK(data.KeepPartd("pred")({"pred": probabilities})["pred"])
        assert torch.equal(kept, monai.KeepLargestConnectedComponent()(MASK(probabilities)))
        assert 0 < kept.sum() < MASK(probabilities).sum()


def test_a_larger_wrong_part_does_not_hide_the_organ() -> None:
    probabilities = torch.zeros(1, 16, 16, 6)
    wrong, organ = probabilities[0, 1:9, 1:9], probabilities[0, 11:14, 11:14]
    wrong[:], organ[:] = 0.98, 0.7
    organ[1, 1, 3] = 0.99
    kept = MASK(data.KeepPartd("pred", part="surest")({"pred": probabilities})["pred"])
    assert torch.equal(kept[0] > 0, (probabilities[0] > 0) & (probabilities[0] != 0.98))
    kept = MASK(data.KeepPartd("pred")({"pred": probabilities})["pred"])
    assert torch.equal(kept[0] > 0, probabilities[0] == 0.98)


@pytest.mark.parametrize("part", ["largest", "surest"])
def test_of_two_channels_the_organ_is_the_last_and_nothing_is_kept_of_nothing(part: str) -> None:
    organ = torch.tensor([[0.5, 0.8, 0.1, 0.55]])
    both = torch.stack([1 - organ, organ])
    kept = data.KeepPartd("pred", part=part)({"pred": both})["pred"]
    assert torch.equal(kept[0], both[0]) and (kept[1] > 0).tolist() == [[True, True, False, False]]
    nothing = torch.full((1, 4, 4, 2), 0.2)
    assert not MASK(data.KeepPartd("pred", part=part)({"pred": nothing})["pred"]).any()
    two = torch.stack([torch.tensor([[0.35, 0.2, 0.3]])])
    kept = data.KeepPartd("pred", part=part, threshold=0.3)({"pred": two})["pred"]
    assert (kept > 0).sum() == 1


# Slices


def volume(gland: int = 10, empty: int = 10) -> dict[str, Any]:
    """A volume whose slice d is filled with d, with gland in the first slices."""
    depth = gland + empty
    image = torch.arange(depth, dtype=torch.float32).expand(1, 4, 5, depth).clone()
    label = torch.where(image < gland, image + 1, 0)
    affine = torch.eye(4)
    return {"image": MetaTensor(image, affine=affine), "label": MetaTensor(label), "case": "Case00"}


def numbers(items: list[dict[str, Any]], channel: int = 0) -> list[int]:
    return [int(item["image"][channel].flatten()[0]) for item in items]


def test_all_takes_every_slice_with_gland_once_and_no_empty_slice_twice() -> None:
    sampler = SampleSlicesd(KEYS, empty_rate=0.3)
    for seed in range(20):
        drawn = numbers(sampler.set_random_state(seed)(volume()))
        assert sorted(n for n in drawn if n < 10) == list(range(10)) and len({*drawn}) == len(drawn)
    assert len(SampleSlicesd(KEYS, empty_rate=0.9)(volume(gland=10, empty=3))) == 13


@pytest.mark.parametrize(
    ("num_samples", "rate"), [("all", 0.1), ("all", 0.4), (12, 0.0), (12, 0.4)]
)
def test_the_share_of_empty_slices_is_the_rate(num_samples: Any, rate: float) -> None:
    sampler = SampleSlicesd(KEYS, num_samples=num_samples, empty_rate=rate).set_random_state(0)
    flags = [n >= 12 for _ in range(300) for n in numbers(sampler(volume(gland=12, empty=20)))]
    standard_error = np.sqrt(rate * (1 - rate) / len(flags))
    assert np.mean(flags) == pytest.approx(rate, abs=4 * standard_error)


def test_a_number_draws_without_repeating_while_slices_last() -> None:
    sampler = SampleSlicesd(KEYS, num_samples=25, empty_rate=0.0).set_random_state(0)
    counts = np.bincount(numbers(sampler(volume())), minlength=20)
    assert set(counts[:10]) == {2, 3} and not counts[10:].any()
    # Of one kind alone, the other gives none.
    for gland, empty, num_samples, count in ((0, 20, "all", 1), (0, 20, 4, 4), (8, 0, 6, 6)):
        sampler = SampleSlicesd(KEYS, num_samples=num_samples, empty_rate=0.5)
        assert len(sampler.set_random_state(1)(volume(gland, empty))) == count


def test_image_label_and_neighbours_belong_together_and_own_their_memory() -> None:
    data = volume()
    for neighbours in (0, 2):
        sampler = SampleSlicesd(KEYS, empty_rate=0.3, neighbours=neighbours).set_random_state(0)
        items = sampler(data)
        assert set(numbers(items, neighbours)) >= {0, 9}
        for item, middle in zip(items, numbers(items, neighbours), strict=True):
            beside = range(middle - neighbours, middle + neighbours + 1)
            assert item["image"][:, 0, 0].tolist() == [min(max(n, 0), 19) for n in beside]
            assert item["label"].shape == (1, 4, 5) and item["case"] == "Case00"
            assert (item["label"] == (middle + 1 if middle < 10 else 0)).all()
            assert type(item["image"]) is torch.Tensor
            item["image"].fill_(-1.0)
    assert (data["image"] >= 0).all()


def test_the_seed_decides_the_draw_and_neighbours_do_not() -> None:
    def draw(seed: int, neighbours: int = 0) -> list[list[int]]:
        sampler = SampleSlicesd(KEYS, num_samples=6, empty_rate=0.3, neighbours=neighbours)
        chain = Compose([sampler]).set_random_state(seed)
        return [numbers(chain(volume()), neighbours) for _ in range(3)]

    assert draw(3) == draw(3) == draw(3, neighbours=1) != draw(4)


def test_missing_keys_and_other_shapes_are_explained() -> None:
    data = volume()
    for wrong, words in (
        ({**data, "image": data["image"][..., :5]}, ["'image'", "(1, 4, 5, 5)"]),
        ({key: data[key][0] for key in KEYS}, ["(4, 5, 20)", "EnsureChannelFirstd"]),
    ):
        with refused(*words):
            SampleSlicesd(KEYS)(wrong)
    some = SampleSlicesd(KEYS, allow_missing_keys=True)
    with refused("'label'"):
        some({"image": data["image"]})
    [first, *_] = some({"label": np.asarray(data["label"])})
    assert set(first) == {"label"} and isinstance(first["label"], torch.Tensor)


@pytest.mark.parametrize(("dataset", "num_samples"), [(Dataset, "all"), (CacheDataset, 3)])
def test_files_become_batches_of_slices(tmp_path: Path, dataset: Any, num_samples: Any) -> None:
    data.write_sites(tmp_path, sites=data.SITES[:1], size=(24, 20, 8), cases=2)
    load = [LoadImaged(KEYS), monai.EnsureChannelFirstd(KEYS), monai.ScaleIntensityd("image")]
    draw = [
        SampleSlicesd(KEYS, num_samples=num_samples),
        monai.RandFlipd(KEYS, prob=0.5, spatial_axis=0),
    ]
    chain = Compose([*load, *draw]).set_random_state(0)
    cached: dict[str, Any] = {"progress": False} if dataset is CacheDataset else {}
    source = dataset(data.find_cases(tmp_path / "alder"), chain, **cached)
    [batch] = DataLoader(source, batch_size=2, collate_fn=list_data_collate)
    assert batch["image"].shape == batch["label"].shape and batch["image"].shape[1:] == (1, 24, 20)
    assert batch["image"].dtype == torch.float32
    if dataset is CacheDataset:
        assert len(batch["image"]) == 6
        assert source._cache[0]["image"].ndim == 4  # the volume is cached, the draw is not
