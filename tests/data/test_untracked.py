# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation without tracking gives the same values, and leaves MONAI's switch as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor, get_track_meta, set_track_meta
from monai.transforms import (
    Compose,
    RandAffined,
    RandFlip,
    RandGaussianNoise,
    RandHistogramShiftd,
    ScaleIntensity,
)

from monai_fairfl.data import (
    CLINICS,
    UntrackedCompose,
    UntrackedRandAffined,
    UntrackedRandHistogramShiftd,
    write_clinics,
)

BUNDLES = Path(__file__).parents[2] / "bundles"


def images(item: Any) -> list[torch.Tensor]:
    """Of all samples of one item, which is a list of them where slices are drawn."""
    samples = item if isinstance(item, list) else [item]
    found = []
    for sample in samples:
        found += [sample["image"], sample["label"]]
    return found


def training_set(bundle: Path, site: Path, **overrides: Any) -> Any:
    """The bundle's dataset of training images."""
    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "train.json"))
    settings = {
        "dataset_dir": str(site),
        "bundle_root": str(bundle),
        "size": [32, 32],
        "datalist_file": None,
    }
    parser.update(settings | overrides)
    return parser.get_parsed_content("train#dataset")


def training_images(
    bundle: Path, site: Path, cache_rate: float, **overrides: str
) -> list[torch.Tensor]:
    dataset = training_set(bundle, site, cache_rate=cache_rate, **overrides)
    dataset.transform.set_random_state(3)
    found = []
    for index in range(len(dataset)):
        found += images(dataset[index])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cache_rate", [0.0, 1.0])
@pytest.mark.parametrize("name", ["prostate_mri_segmentation", "fundus_disc_cup_segmentation"])
def test_both_bundles_train_on_plain_tensors_of_the_same_values(
    name: str, cache_rate: float, hospitals: Path, tmp_path: Path
) -> None:
    site = hospitals / "birch"
    if name.startswith("fundus"):
        write_clinics(tmp_path, clinics=CLINICS[:1], size=64, cases=4)
        site = tmp_path / CLINICS[0].name
    plain = training_images(BUNDLES / name, site, cache_rate)
    tracked = training_images(
        BUNDLES / name, site, cache_rate, **{"train#preprocessing#_target_": "Compose"}
    )
    assert len(tracked) == len(plain) > 0 and any(
        isinstance(image, MetaTensor) for image in tracked
    )
    assert {type(image) for image in plain} == {torch.Tensor}
    for one, other in zip(tracked, plain):
        assert one.dtype == other.dtype and torch.equal(torch.as_tensor(one), other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prostate_mri_segmentation", "fundus_disc_cup_segmentation"])
def test_what_becomes_of_an_epochs_images_leaves_the_cached_volumes_alone(
    name: str, hospitals: Path, tmp_path: Path
) -> None:
    site = hospitals / "birch"
    if name.startswith("fundus"):
        write_clinics(tmp_path, clinics=CLINICS[:1], size=64, cases=4)
        site = tmp_path / CLINICS[0].name
    dataset = training_set(BUNDLES / name, site, augmentation=[])
    epochs = []
    for _ in range(2):
        dataset.transform.set_random_state(3)
        epochs.append([image.clone() for image in images(dataset[0])])
        for image in images(dataset[0]):
            image.fill_(7)
    for first, second in zip(*epochs, strict=True):
        assert torch.equal(first, second) and not (first == 7).all()


def test_what_a_cache_keeps_is_tracked_and_the_rest_is_not() -> None:
    compose = UntrackedCompose([ScaleIntensity(), RandFlip(prob=1.0), RandGaussianNoise(prob=1.0)])
    image = MetaTensor(torch.rand(1, 8, 8), affine=2 * torch.eye(4))
    cached = compose(image, end=1)
    assert isinstance(cached, MetaTensor) and np.allclose(cached.affine, 2 * np.eye(4))
    assert not isinstance(compose(cached, start=1), MetaTensor)
    assert isinstance(UntrackedCompose([ScaleIntensity()])(image), MetaTensor)


@pytest.mark.parametrize("before", [True, False])
def test_the_switch_is_as_before_also_after_an_error(before: bool) -> None:
    def fail(image: torch.Tensor) -> torch.Tensor:
        assert not get_track_meta()
        raise ValueError("a broken image")

    set_track_meta(before)
    try:
        with pytest.raises(RuntimeError, match="fail"):
            UntrackedCompose([RandFlip(prob=1.0), fail])(torch.rand(1, 4, 4))
        assert get_track_meta() is before
    finally:
        set_track_meta(True)


def test_another_thread_never_touches_the_switch_of_the_process() -> None:
    seen: list[bool] = []

    def look(image: torch.Tensor) -> torch.Tensor:
        seen.append(get_track_meta())
        return image

    compose = UntrackedCompose([RandFlip(prob=1.0), look])
    made: list[Any] = []
    worker = threading.Thread(target=lambda: made.append(compose(torch.rand(1, 4, 4))))
    worker.start()
    worker.join()
    compose(torch.rand(1, 4, 4))
    assert seen == [True, False] and isinstance(made[0], MetaTensor)


def test_a_plain_compose_is_what_it_stands_for() -> None:
    transforms = [ScaleIntensity(), RandFlip(prob=0.5), RandGaussianNoise(prob=0.5)]
    image = torch.rand(1, 6, 6)
    for seed in range(5):
        one, other = (
            kind(transforms).set_random_state(seed)(image) for kind in (Compose, UntrackedCompose)
        )
        assert torch.equal(one.as_tensor(), other)


AFFINE = {
    "keys": ["image", "label"],
    "prob": 0.8,
    "rotate_range": 0.35,
    "translate_range": [3.0, 2.0],
    "scale_range": [0.3, [-0.1, 0.2]],
    "shear_range": 0.1,
    "mode": ["bilinear", "nearest"],
    "padding_mode": "border",
}


@contextmanager
def tracking(switch: bool) -> Iterator[None]:
    before = get_track_meta()
    set_track_meta(switch)
    try:
        yield
    finally:
        set_track_meta(before)


@pytest.mark.parametrize("size", [(16, 16), (15, 24), (8, 10, 12)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shear_range": None},
        {"shear_range": None, "scale_range": [0.3]},
        {"shear_range": None, "translate_range": None},
        {"shear_range": None, "rotate_range": None, "scale_range": None},
    ],
)
def test_an_untracked_affine_transform_is_monais_to_the_bit(
    size: tuple[int, ...], changes: Any
) -> None:
    arguments = {**AFFINE, "keys": ["image", "label", "more"], **changes}
    arguments["mode"] = ["bilinear", "nearest", "bilinear"]
    monais = RandAffined(**arguments).set_random_state(5)  # type: ignore[arg-type]
    ours = UntrackedRandAffined(**arguments).set_random_state(5)
    generator = torch.Generator().manual_seed(0)
    moved = 0
    with tracking(False):
        # The draws of each call follow those of the call before.
        for _ in range(25):
            image = torch.randn(2, *size, generator=generator)
            data = {"image": image, "label": image > 0, "more": image.double(), "case": "a"}
            expected, found = monais(data), ours(data)
            moved += not torch.equal(found["image"], image)
            assert set(found) == set(data) and found["case"] == "a"
            for key in ("image", "label", "more"):
                assert found[key].dtype == expected[key].dtype == torch.float32
                assert torch.equal(found[key], expected[key])
    assert 10 < moved < 25


@pytest.mark.parametrize(
    ("tracked", "given", "changes"),
    [
        (True, MetaTensor, {}),
        (True, torch.as_tensor, {}),
        (False, MetaTensor, {}),
        (False, np.asarray, {}),
        (False, torch.as_tensor, {"spatial_size": (9, 9)}),
        (False, torch.as_tensor, {"mode": 1, "padding_mode": "nearest"}),
        (False, torch.as_tensor, {"mode": "nearest", "padding_mode": "constant"}),
        (False, torch.as_tensor, {"mode": "linear"}),
    ],
)
def test_any_other_affine_transform_is_monais(tracked: bool, given: Any, changes: Any) -> None:
    arguments = {**AFFINE, "prob": 1.0, **changes}
    image = given(torch.rand(1, 12, 12))
    results = []
    for kind in (RandAffined, UntrackedRandAffined):
        with tracking(tracked):
            transform = kind(**arguments).set_random_state(1)
            results.append(transform({"image": image, "label": image})["image"])
    monais, ours = results
    assert type(monais) is type(ours) and torch.equal(monais, ours)
    if tracked:
        assert torch.equal(monais.affine, ours.affine)
        assert monais.applied_operations and ours.applied_operations


@pytest.mark.parametrize("size", [(1, 40, 40), (3, 16, 15), (1, 8, 10, 12)])
@pytest.mark.parametrize("points", [3, [4, 8], [30, 36]])
def test_an_untracked_shift_of_the_histogram_is_monais_to_the_bit(
    size: tuple[int, ...], points: Any
) -> None:
    arguments: Any = {"keys": ["image", "more"], "prob": 0.8, "num_control_points": points}
    monais = RandHistogramShiftd(**arguments).set_random_state(5)
    ours = UntrackedRandHistogramShiftd(**arguments).set_random_state(5)
    generator = torch.Generator().manual_seed(0)
    shifted = 0
    with tracking(False):
        # The draws of each call follow those of the call before.
        for call in range(40):
            image = torch.randn(size, generator=generator) * 3.0 ** (call - 20) + call
            data = {"image": image, "more": image.double(), "case": "a"}
            expected, found = monais(data), ours(data)
            shifted += not torch.equal(found["image"], image)
            assert set(found) == set(data) and found["case"] == "a"
            for key in ("image", "more"):
                assert found[key].dtype == expected[key].dtype == data[key].dtype
                # A range that is lost in rounding has no curve: NaN in both.
                assert torch.equal(found[key].nan_to_num(7), expected[key].nan_to_num(7))
    assert 20 < shifted < 40


@pytest.mark.filterwarnings("ignore:The image's intensity is a single value")
@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
def test_an_image_without_a_range_is_shifted_as_monai_does(value: float) -> None:
    image = torch.full((1, 6, 6), 0.5)
    image[0, 0, 0] = value
    results = []
    for kind in (RandHistogramShiftd, UntrackedRandHistogramShiftd):
        with tracking(False):
            shift = kind("image", prob=1.0).set_random_state(1)
            results.append(shift({"image": image})["image"])
    assert torch.equal(results[0].nan_to_num(7), results[1].nan_to_num(7))


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("given", [MetaTensor, torch.as_tensor])
def test_a_tracked_shift_of_the_histogram_is_monais(tracked: bool, given: Any) -> None:
    image = given(torch.rand(1, 12, 12))
    results = []
    for kind in (RandHistogramShiftd, UntrackedRandHistogramShiftd):
        with tracking(tracked):
            shift = kind("image", prob=1.0).set_random_state(1)
            results.append(shift({"image": image})["image"])
    monais, ours = results
    assert type(monais) is type(ours) and torch.equal(monais, ours)
