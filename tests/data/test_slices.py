# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, list_data_collate
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, RandFlipd, ScaleIntensityd

from monai_fairfl.data import SITES, OneChanneld, SampleSlicesd, find_cases, write_sites
from monai_fairfl.errors import ConfigError, DataError

KEYS = ["image", "label"]


def volume(gland: int = 10, empty: int = 10) -> dict[str, Any]:
    """A volume whose slice d is filled with d, with gland in the first slices."""
    depth = gland + empty
    image = torch.arange(depth, dtype=torch.float32).expand(1, 4, 5, depth).clone()
    label = torch.where(image < gland, image + 1, 0)
    return {
        "image": MetaTensor(image, affine=torch.eye(4)),
        "label": MetaTensor(label),
        "case": "Case00",
    }


def number(item: dict[str, Any]) -> int:
    return int(item["image"].flatten()[0])


def is_empty(item: dict[str, Any]) -> bool:
    return not bool((item["label"] > 0).any())


def test_a_channel_that_an_image_does_not_have_is_refused_with_its_file():
    image = MetaTensor(torch.zeros(2, 4, 4, 4), meta={"filename_or_obj": "Task05/a.nii.gz"})
    with pytest.raises(
        DataError, match="Task05/a.nii.gz has 2 channels, and none of number 2; mend 'channel'"
    ):
        OneChanneld("image", channel=2)({"image": image})
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        OneChanneld("image", channel=-1)


def test_all_takes_every_slice_with_gland_once_and_no_empty_slice_twice():
    sampler = SampleSlicesd(KEYS, empty_rate=0.3)
    for seed in range(20):
        sampler.set_random_state(seed)
        numbers = [number(item) for item in sampler(volume())]
        assert sorted(n for n in numbers if n < 10) == list(range(10))
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("num_samples", ["all", 12])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_the_share_of_empty_slices_is_the_rate(num_samples, rate):
    sampler = SampleSlicesd(KEYS, num_samples=num_samples, empty_rate=rate).set_random_state(0)
    flags = [is_empty(item) for _ in range(300) for item in sampler(volume(gland=12, empty=20))]
    standard_error = np.sqrt(rate * (1 - rate) / len(flags))
    assert np.mean(flags) == pytest.approx(rate, abs=4 * standard_error)


def test_all_takes_all_empty_slices_when_there_are_too_few():
    assert len(SampleSlicesd(KEYS, empty_rate=0.9)(volume(gland=10, empty=3))) == 13


def test_a_number_draws_without_repeating_while_slices_last():
    sampler = SampleSlicesd(KEYS, num_samples=10, empty_rate=0.0).set_random_state(0)
    assert sorted(number(item) for item in sampler(volume())) == list(range(10))
    sampler = SampleSlicesd(KEYS, num_samples=25, empty_rate=0.0).set_random_state(0)
    counts = np.bincount([number(item) for item in sampler(volume())], minlength=20)
    assert set(counts[:10]) == {2, 3} and not counts[10:].any()


@pytest.mark.parametrize("num_samples, count", [("all", 1), (4, 4)])
def test_a_volume_without_gland_gives_empty_slices_only(num_samples, count):
    items = SampleSlicesd(KEYS, num_samples=num_samples, empty_rate=0.0)(volume(gland=0))
    assert len(items) == count and all(is_empty(item) for item in items)


def test_a_volume_of_gland_only_still_gives_the_number_asked_for():
    items = SampleSlicesd(KEYS, num_samples=6, empty_rate=0.5).set_random_state(1)(
        volume(gland=8, empty=0)
    )
    assert len(items) == 6 and not any(is_empty(item) for item in items)


def test_image_and_label_slices_belong_together_and_other_entries_stay():
    for item in SampleSlicesd(KEYS, empty_rate=0.3).set_random_state(0)(volume()):
        assert item["image"].shape == item["label"].shape == (1, 4, 5)
        expected = number(item) + 1 if number(item) < 10 else 0
        assert (item["label"] == expected).all() and item["case"] == "Case00"
        assert type(item["image"]) is torch.Tensor


def test_slices_own_their_memory_and_leave_the_volume_alone():
    data = volume()
    item = SampleSlicesd(KEYS)(data)[0]
    item["image"].fill_(-1.0)
    assert (data["image"] >= 0).all()


def test_neighbours_come_as_channels_of_the_image_and_not_of_the_label():
    sampler = SampleSlicesd(KEYS, empty_rate=0.3, neighbours=2).set_random_state(0)
    last = 19
    drawn = set()
    for item in sampler(volume()):
        assert item["image"].shape == (5, 4, 5) and item["label"].shape == (1, 4, 5)
        middle = int(item["image"][2].flatten()[0])
        expected = [min(max(middle + offset, 0), last) for offset in (-2, -1, 0, 1, 2)]
        assert item["image"][:, 0, 0].tolist() == expected
        assert (item["label"] == (middle + 1 if middle < 10 else 0)).all()
        drawn.add(middle)
    assert 0 in drawn


def test_neighbours_change_no_draw():
    def draw(neighbours: int) -> list[int]:
        sampler = SampleSlicesd(KEYS, num_samples=6, empty_rate=0.3, neighbours=neighbours)
        items = sampler.set_random_state(5)(volume())
        return [int(item["image"][neighbours].flatten()[0]) for item in items]

    assert draw(0) == draw(1)


def test_the_seed_decides_the_draw_through_compose():
    def draw(seed: int) -> list[int]:
        chain = Compose([SampleSlicesd(KEYS, num_samples=6, empty_rate=0.3)]).set_random_state(seed)
        return [number(item) for _ in range(3) for item in chain(volume())]

    assert draw(3) == draw(3) != draw(4)


def test_numpy_volumes_work_too():
    data = {key: np.asarray(value) for key, value in volume().items() if key != "case"}
    assert isinstance(SampleSlicesd(KEYS)(data)[0]["image"], torch.Tensor)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_samples": 0},
        {"num_samples": "some"},
        {"empty_rate": 1.0},
        {"empty_rate": -0.1},
        {"label_key": "mask"},
        {"neighbours": -1},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        SampleSlicesd(KEYS, **arguments)


def test_missing_keys_and_other_shapes_are_explained():
    data = volume()
    with pytest.raises(DataError, match="'image' has shape"):
        SampleSlicesd(KEYS)({**data, "image": data["image"][..., :5]})
    with pytest.raises(DataError, match="no 'label'"):
        SampleSlicesd(KEYS, allow_missing_keys=True)({"image": data["image"]})
    with pytest.raises(DataError, match="EnsureChannelFirstd"):
        SampleSlicesd(KEYS)({key: data[key][0] for key in KEYS})
    assert set(SampleSlicesd(KEYS, allow_missing_keys=True)({"label": data["label"]})[0]) == {
        "label"
    }


@pytest.mark.parametrize("dataset", [Dataset, CacheDataset], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("num_samples", ["all", 3])
def test_files_become_batches_of_slices(tmp_path, dataset, num_samples):
    write_sites(tmp_path, sites=SITES[:1], size=(24, 20, 8), cases=2)
    load = [LoadImaged(KEYS), EnsureChannelFirstd(KEYS), ScaleIntensityd("image")]
    chain = Compose(
        [
            *load,
            SampleSlicesd(KEYS, num_samples=num_samples),
            RandFlipd(KEYS, prob=0.5, spatial_axis=0),
        ]
    )
    chain.set_random_state(0)
    cached: dict[str, Any] = {"progress": False} if dataset is CacheDataset else {}
    source = dataset(find_cases(tmp_path / "alder"), chain, **cached)
    (batch,) = DataLoader(source, batch_size=2, collate_fn=list_data_collate)
    assert batch["image"].shape == batch["label"].shape and batch["image"].shape[1:] == (1, 24, 20)
    assert batch["image"].dtype == torch.float32
    if num_samples == 3:
        assert len(batch["image"]) == 6
    if dataset is CacheDataset:
        assert source._cache[0]["image"].ndim == 4  # the volume is cached, the draw is not
