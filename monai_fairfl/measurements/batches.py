# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes a data loader give the same batches again: the same order and the same random crops."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from monai.transforms import Randomizable
from torch.utils.data import Dataset

from monai_fairfl.utils.random_state import own_random_state

# Where MONAI's datasets hold the transforms that they apply.
TRANSFORM_ATTRIBUTES = ("transform", "patch_func", "patch_transform")

# Where datasets hold others: torch's Subset, torch's ConcatDataset, MONAI's datasets.
INNER_DATASETS = ("dataset", "datasets", "data")


@contextmanager
def same_batches(loader: Any, seed: int = 0) -> Iterator[Any]:
    """Inside, ``loader`` gives the same batches every time.

    Order and random transforms follow from ``seed``. The transforms are copied, so that the
    datasets' own go on afterwards as if nothing had happened, and so does the loader's generator.
    Workers that outlive an epoch (``persistent_workers``) have a random state of their own and
    cannot be repeated.
    """
    with own_random_state(seed), ExitStack() as stack:
        for dataset, attribute, transform in list(_transforms_of(loader)):
            setattr(dataset, attribute, copy.deepcopy(transform))
            stack.callback(setattr, dataset, attribute, transform)
        for generator in _generators_of(loader):
            stack.callback(generator.set_state, generator.get_state())
        seed_loader(loader, seed)
        yield loader


def seed_loader(loader: Any, seed: int) -> None:
    """Seed every part of ``loader`` that has a random state of its own.

    These are the transforms of its datasets, its generator and that of its sampler.
    """
    for _, _, transform in _transforms_of(loader):
        if isinstance(transform, Randomizable):
            transform.set_random_state(seed)
    for generator in _generators_of(loader):
        generator.manual_seed(seed)


def _transforms_of(loader: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields (dataset, attribute, transform) of ``loader``'s dataset and of those inside it."""
    yield from _transforms_in(getattr(loader, "dataset", None))


def _transforms_in(dataset: Any) -> Iterator[tuple[Any, str, Any]]:
    """As :func:`_transforms_of`, of one dataset; of anything else, such as a case, nothing."""
    if not isinstance(dataset, Dataset):
        return
    for attribute in TRANSFORM_ATTRIBUTES:
        if hasattr(dataset, attribute):
            yield dataset, attribute, getattr(dataset, attribute)
    for attribute in INNER_DATASETS:
        inner = getattr(dataset, attribute, None)
        for one in inner if isinstance(inner, (list, tuple)) else [inner]:
            yield from _transforms_in(one)


def _generators_of(loader: Any) -> list[torch.Generator]:
    generators = []
    for holder in (loader, getattr(loader, "sampler", None)):
        generator = getattr(holder, "generator", None)
        if generator is not None:
            generators.append(generator)
    return generators
