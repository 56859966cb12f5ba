# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Loaders whose random state is in different places."""

from __future__ import annotations

from typing import Any

import torch
from helpers.small_trainers import image_batches
from monai.data import DataLoader, Dataset, PatchDataset, ZipDataset, list_data_collate
from monai.transforms import Compose, RandGaussianNoised, RandSpatialCropSamplesd
from torch.utils.data import ConcatDataset, Subset, WeightedRandomSampler


def loaders(kind: str) -> Any:
    """A loader whose random state is where ``kind`` names it.

    It is not only in its dataset's own transform.
    """
    data = [{"image": image} for image in image_batches(2)[0]["image"]]
    noise = Compose([RandGaussianNoised("image", prob=1.0, std=0.5)])
    noisy: Any = Dataset(data, noise)
    if kind == "subset":
        return DataLoader(Subset(noisy, [0, 1, 2]), batch_size=2)
    if kind == "nested":
        return DataLoader(
            Dataset(noisy, Compose([RandGaussianNoised("image", prob=1.0)])), batch_size=2
        )
    if kind == "patches":
        crops = RandSpatialCropSamplesd("image", (4, 4), num_samples=2, random_size=False)
        return DataLoader(
            PatchDataset(data, crops, samples_per_image=2, transform=noise), batch_size=2
        )
    if kind == "concatenated":
        return DataLoader(ConcatDataset([noisy, noisy]), batch_size=2)
    if kind == "worker":
        return DataLoader(noisy, batch_size=2, shuffle=True, num_workers=1)
    if kind == "zipped":
        return DataLoader(ZipDataset([noisy, data]), batch_size=2, collate_fn=_first_of_pairs)
    generator = torch.Generator().manual_seed(3)
    if kind == "sampler":
        return DataLoader(
            noisy, batch_size=2, sampler=WeightedRandomSampler([1.0] * 4, 4, generator=generator)
        )
    return DataLoader(noisy, batch_size=2, shuffle=True, generator=generator)


def _first_of_pairs(pairs: Any) -> Any:
    return list_data_collate([first for first, _ in pairs])


KINDS = ("subset", "nested", "patches", "concatenated", "zipped", "worker", "generator", "sampler")


def images_of(loader: Any) -> torch.Tensor:
    return torch.cat([batch["image"].as_tensor() for batch in loader])
