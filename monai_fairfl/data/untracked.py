# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation without the bookkeeping of where voxels lie.

Training does not need it, and for small images it takes longer than the augmentation itself.
"""

from __future__ import annotations

import threading as threads
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from monai.config import USE_COMPILED
from monai.data import MetaTensor, get_track_meta, set_track_meta
from monai.transforms import Compose, RandAffined, RandomizableTrait, Transform
from monai.transforms.utils import create_grid
from torch.nn import functional


class UntrackedCompose(Compose):
    """MONAI's ``Compose`` that makes plain tensors from its first random transform on.

    MONAI's transforms store every image's affine and history in a ``MetaTensor``. A network that is
    trained needs neither, and at 64 x 64 storing them takes longer than the augmentation itself.
    Values and random draws are the same to the bit. The transforms before the first random one,
    whose results a cache holds, are tracked as ever. Do not use it for images whose transforms are
    to be inverted.

    MONAI's switch (``set_track_meta``) is one for the whole process, so it is used in the main
    thread alone: where clients or loaders share a process in threads, everything stays tracked,
    slower and otherwise the same.

    Args:
        transforms: as of ``Compose``; resampling is not lazy.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> from monai.transforms import RandFlip, ScaleIntensity
    >>> transforms = [ScaleIntensity(), RandFlip(prob=1.0)]
    >>> image = torch.rand(1, 8, 8)
    >>> isinstance(Compose(transforms)(image), MetaTensor)
    True
    >>> isinstance(UntrackedCompose(transforms)(image), MetaTensor)
    False
    """

    def __init__(
        self, transforms: Sequence[Callable[..., Any]] | Callable[..., Any] | None = None
    ) -> None:
        super().__init__(transforms)

    def __call__(
        self,
        input_: Any,
        start: int = 0,
        end: int | None = None,
        threading: bool = False,
        lazy: bool | None = None,
    ) -> Any:
        """Carry out the transforms from ``start`` up to ``end``.

        Datasets split by these what they cache from what is random.
        """
        if end is None:
            end = len(self.transforms)
        first_random = self.get_index_of_first(_is_random)
        if first_random is None:
            first_random = len(self.transforms)
        if start < first_random:
            input_ = super().__call__(input_, start, min(first_random, end), threading, lazy)
        if end > first_random:
            with _untracked():
                input_ = super().__call__(input_, max(start, first_random), end, threading, lazy)
        return input_


class UntrackedRandAffined(RandAffined):
    """MONAI's ``RandAffined``, faster where nobody tracks where voxels lie.

    Values and random draws are the same to the bit. MONAI's takes three quarters of its time, for a
    slice of 128 x 128, to find out where the voxels of the result would lie, and does twice what
    image and label have in common. Where metadata are tracked, or what it is asked for is more than
    interpolation by torch, it is MONAI's.

    Args:
        arguments: of ``RandAffined``.

    >>> turn = UntrackedRandAffined(["image"], prob=1.0, rotate_range=0.3, mode="bilinear")
    >>> turned = turn.set_random_state(0)({"image": MetaTensor(torch.rand(1, 8, 8))})
    >>> isinstance(turned["image"], MetaTensor)
    True
    """

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        # The voxels' coordinates, of images of one size.
        self._coordinates = torch.empty(0)

    def __call__(self, data: Mapping[Hashable, Any], lazy: bool | None = None) -> dict:
        images = [data[key] for key in self.key_iterator(data)]
        if not self._is_plain(images, lazy):
            transformed: dict = super().__call__(data, lazy)
            return transformed

        # The draws of RandAffined, in their order: whether, then how.
        is_transformed = self.R.rand() < self.prob
        self.rand_affine.randomize()
        result = dict(data)
        if not is_transformed:
            for key in self.key_iterator(data):
                result[key] = data[key].float()
            return result

        points = self._points(images[0])
        for key, mode, padding_mode in self.key_iterator(data, self.mode, self.padding_mode):
            # RandAffined draws again for every key, and does not use it.
            self.rand_affine.randomize()
            sampled = functional.grid_sample(
                data[key].double()[None], points, mode, padding_mode, align_corners=False
            )
            result[key] = sampled[0].float()
        return result

    def _is_plain(self, images: Sequence[Any], lazy: bool | None) -> bool:
        """Whether these are untracked images of one size, to be interpolated by torch."""
        if get_track_meta() or lazy or self.lazy or USE_COMPILED or not images:
            return False
        if self.rand_affine.spatial_size is not None:
            return False
        if not all(isinstance(mode, str) for mode in (*self.mode, *self.padding_mode)):
            return False
        for image in images:
            if not isinstance(image, torch.Tensor) or isinstance(image, MetaTensor):
                return False
            if image.shape[1:] != images[0].shape[1:] or image.device.type != "cpu":
                return False
        return True

    def _points(self, image: torch.Tensor) -> torch.Tensor:
        """Where each voxel of the result comes from, in torch's coordinates from -1 to 1."""
        size = image.shape[1:]
        if self._coordinates.shape[1:] != size:
            self._coordinates = torch.as_tensor(create_grid(tuple(size), backend="torch")).float()
        grid = self.rand_affine.rand_affine_grid(grid=self._coordinates)
        # Torch has the last axis first.
        axes = list(reversed(range(len(size))))
        points = grid[axes].movedim(0, -1).double()
        for place, axis in enumerate(axes):
            points[..., place] *= 2.0 / max(2, size[axis])
        return points[None]


def _is_random(transform: Any) -> bool:
    """Whether a transform may be random; a plain callable may."""
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)


@contextmanager
def _untracked() -> Iterator[None]:
    """Switch MONAI's tracking off, in the main thread alone."""
    if threads.current_thread() is not threads.main_thread():
        yield
        return
    was_tracked = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(was_tracked)
