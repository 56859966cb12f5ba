# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation without tracking gives the same values, and leaves MONAI's switch as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT
from monai.bundle import ConfigParser
from monai.data import MetaTensor, get_track_meta, set_track_meta
from monai.transforms import RandFlip

from monai_fairfl import data
from monai_fairfl.data import UntrackedCompose

BUNDLES = ("prostate_mri_segmentation", "fundus_disc_cup_segmentation")


@contextmanager
def tracking(switch: bool) -> Iterator[None]:
    before = get_track_meta()
    set_track_meta(switch)
    try:
        yield
    finally:
        set_track_meta(before)


def training_set(name: str, site: Path, **overrides: Any) -> Any:
    """The bundle's dataset of training images."""
    bundle, parser = CHECKOUT / "bundles" / name, ConfigParser()
    parser.read_config(str(bundle / "configs" / "train.json"))
    settings = {"dataset_dir": str(site), "bundle_root": str(bundle), "size": [32, 32]}
    parser.update({**settings, "datalist_file": None, **overrides})
    return parser.get_parsed_content("train#dataset")


def drawn(dataset: Any) -> list[torch.Tensor]:
    """All samples of the first draw; an item is a list of them where slices are drawn."""
    dataset.transform.set_random_state(3)
    items = [dataset[index] for index in range(len(dataset))]
    samples = sum((item if isinstance(item, list) else [item] for item in items), [])
    return [sample[key] for sample in samples for key in ("image", "label")]


@pytest.mark.parametrize("name", BUNDLES)
def test_both_bundles_train_on_plain_tensors_of_the_same_values(
    name: str, hospitals: Path, tmp_path: Path
) -> None:
    data.write_clinics(tmp_path, clinics=data.CLINICS[:1], size=64, cases=4)
    site = tmp_path / data.CLINICS[0].name if "fundus" in name else hospitals / "birch"
    for cache_rate in (0.0, 1.0):
        plain = training_set(name, site, cache_rate=cache_rate)
        kind = {"train#preprocessing#_target_": "Compose"}
        tracked = drawn(training_set(name, site, cache_rate=cache_rate, **kind))
        assert any(isinstance(image, MetaTensor) for image in tracked)
        found = drawn(plain)
        assert {type(image) for image in found} == {torch.Tensor}
        for one, other in zip(tracked, found, strict=True):
            assert one.dtype == other.dtype and torch.equal(torch.as_tensor(one), other)
            other.fill_(7)
        # What becomes of an epoch's images leaves the cached volumes alone.
        for one, other in zip(tracked, drawn(plain), strict=True):
            assert torch.equal(torch.as_tensor(one), other)


# The switch


def test_the_switch_is_as_before_and_other_threads_leave_it_alone() -> None:
    seen: list[bool] = []

    def look(image: torch.Tensor) -> torch.Tensor:
        seen.append(get_track_meta())
        if image.numel() == 1:
            raise ValueError("a broken image")
        return image

    compose, made = UntrackedCompose([RandFlip(prob=1.0), look]), []
    for before in (True, False):
        with tracking(before):
            with pytest.raises(RuntimeError, match="look"):
                compose(torch.rand(1, 1, 1))
            assert get_track_meta() is before
    worker = threading.Thread(target=lambda: made.append(compose(torch.rand(1, 4, 4))))
    worker.start()
    worker.join()
    assert seen == [False, False, True] and isinstance(made[0], MetaTensor)
