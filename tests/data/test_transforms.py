# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The transforms that the bundles need: structures, photographs, slices, parts and sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import refused
from monai import transforms as monai
from monai.data import MetaTensor
from monai.transforms import Compose, Invertd, Resized

from monai_fairfl import data
from monai_fairfl.data import (
    LabelStructuresd,
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


def test_an_argument_out_of_range_is_refused_with_its_value() -> None:
    crop = partial(RandDiscCropd, label_key="label", size=(8, 8))
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: data.KeepPartd("x", part="surst"), "'surst' surest"),
        (lambda: crop(["label"], margin=(0.5, 2)), "margin 0.5"),
        (lambda: crop(["image"]), "label_key 'label'"),
        (lambda: SampleSlicesd(KEYS, num_samples="some"), "'some'"),  # type: ignore[arg-type]
    ]
    for make, words in calls:
        with refused(*words.split(), by=ConfigError):
            make()


# Structures


def test_every_coding_gives_the_same_channels_and_what_nobody_drew_is_below_zero() -> None:
    transform = LabelStructuresd("label", STRUCTURES, values={"disc": [1, 2], "cup": [2, 2]})
    for values, codes in (
        ({}, (0, 1, 2)),  # a palette, by the transform's own values
        ({"disc": [0, 200], "cup": [0, 50]}, (255, 128, 0)),  # dark is inside
        ({"disc": [64, 255], "cup": [192, 255]}, (3, 120, 250)),  # JPEG
    ):
        case = {"label": torch.tensor([[codes, codes[::-1]]]), "values": values}
        found = transform(case)
        assert found["label"].tolist() == [[[0, 1, 1], [1, 1, 0]], [[0, 0, 1], [1, 0, 0]]]
        assert "values" not in found
    of_case = {"label": torch.tensor([[[0, 255]]]), "values": {"disc": [128, 255]}}
    assert transform(of_case)["label"].tolist() == [[[0, 1]], [[-1, -1]]]
    label = MetaTensor(torch.zeros(1, 2, 2), meta={"filename_or_obj": "elm/7.png"})
    with refused("elm/7.png", "disc", "values"):
        LabelStructuresd("label", STRUCTURES)({"label": label})
    masks = torch.tensor([[0.0, 1, 0, 1], [0, 0, 1, 1]])
    nested = data.NestStructuresd("pred")({"pred": masks})["pred"]
    assert nested.tolist() == [[0, 1, 0, 1], [0, 0, 0, 1]]


# Photographs


def there_and_back(image: MetaTensor, *steps: Any) -> torch.Tensor:
    """Where a mask of the whole small photograph lies in the large one."""
    transforms = Compose([*steps, monai.SpatialPadd("image", (16, 16))])
    case = transforms({"image": image}) | {"pred": MetaTensor(torch.ones(1, 16, 16))}
    return Invertd("pred", transforms, orig_keys="image", nearest_interp=True)(case)["pred"]


def test_of_a_stereo_pair_the_left_view_is_taken_and_invertd_puts_it_back() -> None:
    pair = torch.arange(3 * 40 * 20, dtype=torch.float32).reshape(3, 40, 20)
    for width, stereo, view in ((36, None, 18), (35, None, 35), (40, False, 40)):
        found = OneViewd("image", stereo=stereo)({"image": pair[:, :width]})["image"]
        assert torch.equal(found, pair[:, :view])
    steps = [OneViewd("image"), Resized("image", 16, size_mode="longest")]
    back = there_and_back(MetaTensor(pair), *steps)
    assert back.shape == (1, 40, 20) and back[:, :20].all() and not back[:, 20:].any()


def test_a_photograph_is_normalised_in_its_field_of_view() -> None:
    image = torch.rand(3, 24, 24) * 100 + 100
    image[:, :4] = 2  # black surroundings
    usual = NormaliseFieldd("image")({"image": image})["image"]
    assert not usual[:, :4].any()
    inside = usual[:, 4:].flatten(1)
    torch.testing.assert_close(inside.mean(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inside.std(1), torch.ones(3), atol=1e-3, rtol=0)
    # The field of view is above a share of the 99th percentile.
    image = torch.full((3, 20, 20), 100.0)
    image[0] += torch.arange(400.0).view(20, 20) / 400
    image[:, 0, 0], image[:, 0, 1], image[:, 19, 19] = 15.2, 15.1, 1e4
    found = normalise_field(image)
    assert found[0, 0, 0] != 0 and not found[:, 0, 1].any()
    assert torch.isfinite(normalise_field(torch.zeros(3, 8, 8))).all()


@pytest.mark.parametrize("margin, x, y", [(2.0, 30, 16), (3.3, 14, 7), (9.0, 3, 2)])
def test_the_square_lies_in_the_photograph_and_around_the_disc(
    margin: float, x: int, y: int
) -> None:
    # The disc, then the column and the row of each pixel.
    label = torch.zeros(3, 40, 24)
    label[0, x : x + 10, y : y + 8] = 1
    label[1], label[2] = torch.arange(40)[:, None], torch.arange(24)
    crop = RandDiscCropd(["label"], "label", (48, 48), 1.0, (margin, margin), jitter=0)
    found = crop({"label": label})["label"]
    # Labels are repeated to the larger size: each pixel of the square is there.
    for channel, size in ((1, 40), (2, 24)):
        places = found[channel].unique()
        assert places.tolist() == list(range(int(places[0]), int(places[-1]) + 1))
        assert len(places) == min(round(margin * 10), size)
    inside = found[1:, found[0] > 0]
    assert inside[0].unique().tolist() == list(range(x, x + 10))
    assert inside[1].unique().tolist() == list(range(y, y + 8))


def test_crops_are_the_same_for_image_and_label_and_repeat_with_the_seed() -> None:
    label = torch.zeros(2, 96, 96)
    label[0, 60:76, 20:36], label[1] = 1, -1
    case = {"image": label[:1] * 5, "label": label}
    near = RandDiscCropd(KEYS, "label", (32, 32), prob=1.0, margin=(2, 2), jitter=0)
    found = near(case)
    assert float((found["image"][0] / 5 - found["label"][0]).abs().mean()) < 0.05
    assert found["label"].unique().tolist() == [-1, 0, 1]
    whole = RandDiscCropd(KEYS, "label", (96, 96), prob=0.0)(case)
    torch.testing.assert_close(whole["label"], label)
    assert near({**case, "label": label * 0})["label"].shape == (2, 32, 32)

    def drawn() -> list[float]:
        crop = RandDiscCropd(["label"], "label", (32, 32), margin=(1, 3)).set_random_state(3)
        return [float(crop({"label": label})["label"][0].mean()) for _ in range(20)]

    assert drawn() == drawn() and 5 < sum(share > 0.05 for share in drawn()) < 20


@pytest.mark.parametrize("shape, size", [((70, 41), (13, 40)), ((1, 9), (5, 2))])
def test_a_smaller_photograph_is_monais_with_its_affine(shape: Any, size: Any) -> None:
    image = MetaTensor(torch.rand(2, *shape), affine=torch.diag(torch.tensor([2.0, 3, 1, 1])))
    theirs = Resized("image", size, mode="bilinear", anti_aliasing=True)({"image": image})["image"]
    ours = SmoothResized("image", size)({"image": image})["image"]
    torch.testing.assert_close(ours.as_tensor(), theirs.as_tensor(), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.affine, theirs.affine)


def test_a_label_is_resized_as_monai_does_and_goes_back_to_the_photographs_pixels() -> None:
    case = {"image": torch.rand(3, 120, 90), "label": (torch.rand(1, 120, 90) > 0.5).float()}
    modes = ["bilinear", "nearest"]
    theirs = Resized(KEYS, (26, 20), mode=modes, anti_aliasing=[True, False])(case)
    # Labels are never smoothed.
    ours = SmoothResized(KEYS, (26, 20), mode=modes)(case)
    assert torch.equal(ours["label"], theirs["label"])
    back = there_and_back(MetaTensor(torch.rand(3, 40, 20)), SmoothResized("image", 16, "longest"))
    assert back.shape == (1, 40, 20) and back.all()
    # What a lazy Compose has put off comes first.
    image = MetaTensor(torch.rand(3, 40, 20))
    steps = [monai.Flipd("image", 0, lazy=True), SmoothResized("image", (10, 5))]
    eager, lazy = (Compose(steps, lazy=lazy)({"image": image})["image"] for lazy in (False, True))
    torch.testing.assert_close(lazy.as_tensor(), eager.as_tensor())


# The kept part of a prediction


def kept(probabilities: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """The mask of the last channel."""
    found = data.KeepPartd("pred", **arguments)({"pred": probabilities})["pred"]
    assert torch.equal(found[:-1], probabilities[:-1])
    return found[-1] >= 0.5


def test_the_largest_part_is_monais_and_the_surest_holds_the_highest_value() -> None:
    for seed in range(3):
        coarse = 0.54 * torch.rand(1, 1, 6, 6, 4, generator=torch.Generator().manual_seed(seed))
        probabilities = torch.nn.functional.interpolate(coarse, (24, 24, 8))[0]
        theirs = monai.KeepLargestConnectedComponent()(probabilities >= 0.5)[0]
        assert torch.equal(kept(probabilities), theirs) and 0 < theirs.sum()
    wrong = torch.zeros(2, 16, 16, 6)
    wrong[1, 1:9, 1:9], wrong[1, 11:14, 11:14] = 0.98, 0.7
    wrong[1, 12, 12, 3] = 0.99
    assert torch.equal(kept(wrong, part="surest"), (wrong[1] > 0) & (wrong[1] != 0.98))
    rows = torch.tensor([[[0.5, 0.8, 0.1, 0.55]]])
    assert not kept(rows / 2, part="surest").any()


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


def test_slices_are_drawn_once_before_any_comes_again() -> None:
    sampler = SampleSlicesd(KEYS, num_samples=25, empty_rate=0.0).set_random_state(0)
    counts = np.bincount(numbers(sampler(volume())), minlength=20)
    assert set(counts[:10]) == {2, 3} and not counts[10:].any()
    sampler = SampleSlicesd(KEYS, num_samples=900, empty_rate=0.4).set_random_state(0)
    assert np.mean([n >= 10 for n in numbers(sampler(volume()))]) == pytest.approx(0.4, abs=0.05)
    # Of one kind alone, the other gives none.
    for gland, empty in ((0, 20), (8, 0)):
        sampler = SampleSlicesd(KEYS, num_samples=6, empty_rate=0.5).set_random_state(1)
        assert len({*numbers(sampler(volume(gland, empty)))}) == 6


def test_image_label_and_neighbours_belong_together_and_own_their_memory() -> None:
    data = volume()
    for neighbours in (0, 2):
        sampler = SampleSlicesd(KEYS, num_samples=30, empty_rate=0.3, neighbours=neighbours)
        items = sampler.set_random_state(0)(data)
        assert set(numbers(items, neighbours)) >= {0, 9}
        for item, middle in zip(items, numbers(items, neighbours), strict=True):
            beside = range(middle - neighbours, middle + neighbours + 1)
            assert item["image"][:, 0, 0].tolist() == [min(max(n, 0), 19) for n in beside]
            assert item["label"].shape == (1, 4, 5) and item["case"] == "Case00"
            assert (item["label"] == (middle + 1 if middle < 10 else 0)).all()
            assert type(item["image"]) is torch.Tensor
            item["image"].fill_(-1.0)
    assert (data["image"] >= 0).all()


def test_the_seed_decides_the_draw_and_other_shapes_are_explained() -> None:
    def draw(seed: int, neighbours: int = 0) -> list[list[int]]:
        sampler = SampleSlicesd(KEYS, num_samples=6, empty_rate=0.3, neighbours=neighbours)
        chain = Compose([sampler]).set_random_state(seed)
        return [numbers(chain(volume()), neighbours) for _ in range(3)]

    assert draw(3) == draw(3) == draw(3, neighbours=1) != draw(4)
    whole = volume()
    with refused("'image'", "(1, 4, 5, 5)"):
        SampleSlicesd(KEYS)({**whole, "image": whole["image"][..., :5]})
    with refused("(4, 5, 20)", "EnsureChannelFirstd"):
        SampleSlicesd(KEYS)({key: whole[key][0] for key in KEYS})
    # One channel of an image, too, is named where it has no such one.
    image = MetaTensor(torch.zeros(2, 4, 4), meta={"filename_or_obj": "Task05/a.nii.gz"})
    assert OneChanneld("image", channel=1)({"image": image})["image"].shape == (1, 4, 4)
    assert OneChanneld("image", channel=2)({"image": image[:1]})["image"].shape == (1, 4, 4)
    with refused("Task05/a.nii.gz", "2 channels", "number 2"):
        OneChanneld("image", channel=2)({"image": image})
