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

import numpy as np
import torch
from monai.config import USE_COMPILED
from monai.data import MetaTensor, get_track_meta, set_track_meta
from monai.transforms import (
    Compose,
    RandAffined,
    RandHistogramShiftd,
    RandomizableTrait,
    ReduceTrait,
    Transform,
)
from monai.transforms.utils import create_grid
from torch.nn import functional

# What torch's grid_sample interpolates, and how it continues an image.
MODES = {"bilinear", "nearest", "bicubic"}
PADDING_MODES = {"zeros", "border", "reflection"}

MANY_POINTS = 32
"""Control points of a histogram from which a search is faster than comparing with each."""


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

    >>> from monai.transforms import Compose
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
            start = max(start, first_random)
            with _untracked():
                if threading or lazy or self.lazy or not self._has_single_steps(start, end):
                    input_ = super().__call__(input_, start, end, threading, lazy)
                else:
                    input_ = self._carried_out(input_, start, end)
        return input_

    def _has_single_steps(self, start: int, end: int) -> bool:
        """Whether each of these transforms acts on one item at a time, and at once."""
        for transform in self.transforms[start:end]:
            if isinstance(transform, (Compose, ReduceTrait)) or getattr(transform, "lazy", False):
                return False
        return True

    def _carried_out(self, data: Any, start: int, end: int) -> Any:
        """What MONAI's ``Compose`` makes; for every transform it looks for work put off before."""
        for transform in self.transforms[start:end]:
            try:
                if isinstance(data, (list, tuple)):
                    data = [transform(item) for item in data]
                else:
                    data = transform(data)
            except Exception as error:
                raise RuntimeError(f"applying transform {transform}") from error
        return data


def _is_random(transform: Any) -> bool:
    """Whether a transform may be random; a plain callable may."""
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)


class UntrackedRandAffined(RandAffined):
    """MONAI's ``RandAffined``, faster where nobody tracks where voxels lie.

    Values and random draws are the same to the bit. MONAI's takes three quarters of its time, for a
    slice of 128 x 128, to find out where the voxels of the result would lie, and does twice what
    image and label have in common. Where metadata are tracked, or what it is asked for is more than
    interpolation by torch, it is MONAI's.

    Args:
        arguments: of ``RandAffined``.

    >>> import torch
    >>> from monai.data import MetaTensor
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
        # For others, such as the padding "constant", MONAI takes SciPy.
        if not MODES.issuperset(self.mode) or not PADDING_MODES.issuperset(self.padding_mode):
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
        grid = self._moved(self._coordinates)
        points = torch.empty((len(size), *size), dtype=torch.float64)
        # Torch has the last axis first.
        for place, axis in enumerate(reversed(range(len(size)))):
            points[place] = grid[axis]
            points[place] *= 2.0 / max(2, size[axis])
        return points.movedim(0, -1)[None]

    def _moved(self, coordinates: torch.Tensor) -> torch.Tensor:
        """``coordinates`` after a random affine transform, as by ``RandAffineGrid``.

        In two dimensions without shear the matrix is made with a third of its steps.
        """
        grid: Any = self.rand_affine.rand_affine_grid
        grid.randomize()
        per_axis = (len(grid.translate_params), len(grid.scale_params))
        if len(coordinates) != 3 or grid.shear_params or not set(per_axis) <= {0, 2}:
            moved: torch.Tensor = grid(grid=coordinates, randomize=False)
            return moved
        affine = torch.eye(3)
        if grid.rotate_params:
            affine = affine @ _rotation(grid.rotate_params[0])
        if grid.translate_params:
            rows, columns = grid.translate_params
            affine = affine @ torch.tensor([[1.0, 0.0, rows], [0.0, 1.0, columns], [0.0, 0.0, 1.0]])
        if grid.scale_params:
            affine = affine @ torch.diag(torch.tensor([*grid.scale_params, 1.0]))
        affine = affine.to(coordinates.dtype)
        return (affine @ coordinates.flatten(1)).view(coordinates.shape)


class UntrackedRandHistogramShiftd(RandHistogramShiftd):
    """MONAI's ``RandHistogramShiftd``, faster where nobody tracks where voxels lie.

    It takes the same arguments. Values and random draws are the same to the bit. Where metadata are
    tracked it is MONAI's.

    >>> import torch
    >>> shift = UntrackedRandHistogramShiftd(["image"], prob=1.0)
    >>> shift.set_random_state(0)({"image": torch.rand(1, 8, 8)})["image"].shape
    torch.Size([1, 8, 8])
    """

    def __call__(self, data: Mapping[Hashable, Any]) -> dict:
        images = [data[key] for key in self.key_iterator(data)]
        if get_track_meta() or not all(_is_plain_image(image) for image in images):
            return super().__call__(dict(data))

        # The draws of RandHistogramShiftd, in their order: whether, then how.
        self.randomize(None)
        result = dict(data)
        if not self._do_transform or not images:
            return result
        self.shifter.randomize(None)
        for key in self.key_iterator(data):
            result[key] = self._shifted(data[key])
        return result

    def _shifted(self, image: torch.Tensor) -> torch.Tensor:
        """``image`` after the drawn curve, linear between its control points."""
        lowest, highest = torch.aminmax(image)
        extent = highest - lowest
        places = _scaled(self.shifter.reference_control_points, extent, lowest)
        values = _scaled(self.shifter.floating_control_points, extent, lowest)
        has_range = bool(extent > 0) and bool(extent.isfinite())
        if not has_range or len(places) > MANY_POINTS:
            # MONAI's decides what becomes of one value everywhere, or of what is no number.
            by_monai: Any = self.shifter(image, randomize=False)
            return by_monai

        slopes = (values[1:] - values[:-1]) / (places[1:] - places[:-1])
        offsets = values[:-1] - slopes * places[:-1]
        flat = image.reshape(-1)
        piece = _number_below(flat, places[1:-1])
        shifted = slopes.index_select(0, piece).mul_(flat).add_(offsets.index_select(0, piece))
        # By rounding the last place may lie below the highest value.
        shifted.masked_fill_(flat > places[-1], float(values[-1]))
        return shifted.view(image.shape)


def _number_below(values: torch.Tensor, borders: torch.Tensor) -> torch.Tensor:
    """How many of a few borders lie below each value.

    A search for each value, as torch's and NumPy's, takes ten times as long.
    """
    numbers = values.numpy()
    below = np.zeros(len(numbers), dtype=np.uint8)
    for border in borders.numpy():
        below += (numbers > border).view(np.uint8)
    return torch.from_numpy(below).int()


def _scaled(points: Any, extent: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
    """Control points, which lie between 0 and 1, on the scale of an image."""
    return torch.as_tensor(points).to(lowest.dtype) * extent + lowest


def _is_plain_image(image: Any) -> bool:
    """Whether this is an untracked image of the processor's."""
    if not isinstance(image, torch.Tensor) or isinstance(image, MetaTensor):
        return False
    return image.device.type == "cpu" and image.dtype in (torch.float32, torch.float64)


def _rotation(angle: float) -> torch.Tensor:
    """The matrix of a rotation in the plane, in homogeneous coordinates; sine and cosine float32.

    Args:
        angle: in radians.
    """
    radians = torch.tensor(angle, dtype=torch.float32)
    sine = float(torch.sin(radians))
    cosine = float(torch.cos(radians))
    return torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


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
