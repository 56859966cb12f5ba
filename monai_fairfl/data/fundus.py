# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fundus photographs: one view of a stereo pair, colours without the camera's cast, crops around
the optic disc.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from monai.config import KeysCollection
from monai.transforms import Crop, Cropd, MapTransform, Randomizable
from torch.nn.functional import interpolate

from monai_fairfl.errors import ConfigError

STEREO = 1.8  # width / height from which a photograph is taken for a pair of views; few single views are as wide


def is_pair(width: int, height: int) -> bool:
    """Whether a photograph is taken for a pair of views where nobody says it.

    >>> is_pair(200, 100), is_pair(150, 100)
    (True, False)
    """
    return width >= STEREO * height


class OneViewd(Cropd):
    """The left one of a pair of views side by side, as RIM-ONE r3 has them; a photograph of one
    view is kept.

    Undone by ``Invertd`` like any crop.

    Args:
        keys: keys of images, C x W x H (MONAI reads photographs with the width first).
        stereo: whether the photographs are pairs; ``None``: those are that are at least 1.8 times
            as wide as high. RIM-ONE r3's, 1.5 times as wide as high like many single views, need to
            be told.
        allow_missing_keys: as MONAI's.

    >>> OneViewd("image")({"image": torch.zeros(3, 200, 100)})["image"].shape
    torch.Size([3, 100, 100])
    """

    def __init__(
        self, keys: KeysCollection, stereo: bool | None = None, allow_missing_keys: bool = False
    ) -> None:
        super().__init__(keys, cropper=_LeftHalf(stereo), allow_missing_keys=allow_missing_keys)


class _LeftHalf(Crop):
    def __init__(self, stereo: bool | None) -> None:
        super().__init__()
        self.stereo = stereo

    def __call__(
        self, img: torch.Tensor, slices: Any = None, lazy: bool | None = None
    ) -> torch.Tensor:
        width, height = img.shape[1:]
        pair = is_pair(width, height) if self.stereo is None else self.stereo
        half = slice(0, width // 2 if pair else width)
        return super().__call__(img, (half, slice(0, height)), lazy)


class NormaliseFieldd(MapTransform):
    """Zero mean and unit variance of each colour within the field of view, 0 outside: no colour
    cast, no exposure.

    The field of view is where the brightest colour is above ``threshold`` times its 99th
    percentile; what surrounds it, black with a label or a mark, says nothing.

    Args:
        keys: keys of photographs, C x W x H, any scale from 0.
        threshold: share of the 99th percentile, in [0, 1).

    >>> image = torch.rand(3, 32, 32) + 1
    >>> normalised = NormaliseFieldd("image")({"image": image})["image"]
    >>> bool(normalised.mean().abs() < 1e-5), round(float(normalised.std()), 2)
    (True, 1.0)
    """

    def __init__(self, keys: KeysCollection, threshold: float = 0.15) -> None:
        super().__init__(keys)
        if not 0 <= threshold < 1:
            raise ConfigError(f"NormaliseFieldd: threshold must be in [0, 1), got {threshold}")
        self.threshold = threshold

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        found = dict(data)
        for key in self.key_iterator(found):
            found[key] = normalise_field(found[key], self.threshold)
        return found


def normalise_field(image: torch.Tensor, threshold: float = 0.15) -> torch.Tensor:
    """One photograph as :class:`NormaliseFieldd` normalises it; C x W x H."""
    image = image.float()
    brightest = image.amax(0)
    inside = brightest > threshold * torch.quantile(brightest, 0.99)
    pixels = image[:, inside] if bool(inside.any()) else image.flatten(1)
    mean, deviation = pixels.mean(1)[:, None, None], pixels.std(1)[:, None, None]
    return torch.where(inside, (image - mean) / deviation.clamp(min=1e-6), torch.zeros_like(image))


class RandDiscCropd(Randomizable, MapTransform):
    r"""A square around the optic disc, or the whole photograph, resized to what the network sees.

    One network then learns both: to find the disc in a whole photograph, and to outline it from
    near (:class:`~monai_fairfl.inferers.CoarseToFineInferer`). The square has the side
    :math:`m \max(w, h)` of the disc's box, m uniform in ``margin``, its centre moved by up to
    ``jitter`` disc sizes. A label without a disc gives the whole photograph.

    Args:
        keys: keys of images and labels, C x W x H, all of one W and H.
        label_key: the one of ``keys`` whose first channel is the disc.
        size: W x H of the result.
        prob: chance of the square; else the whole.
        margin: range of m, from 1.
        jitter: of the centre, in disc sizes.

    Raises:
        ConfigError: when an argument is out of range.

    >>> label = torch.zeros(1, 64, 64)
    >>> label[:, 20:30, 40:50] = 1
    >>> found = RandDiscCropd(["label"], "label", (32, 32), prob=1.0)({"label": label})["label"]
    >>> found.shape, bool(found.mean() > 0.1)
    (torch.Size([1, 32, 32]), True)
    """

    def __init__(
        self,
        keys: KeysCollection,
        label_key: str,
        size: Sequence[int],
        prob: float = 0.6,
        margin: Sequence[float] = (1.3, 2.6),
        jitter: float = 0.2,
    ) -> None:
        MapTransform.__init__(self, keys)
        if (
            not 0 <= prob <= 1
            or not 1 <= margin[0] <= margin[1]
            or jitter < 0
            or label_key not in self.keys
        ):
            raise ConfigError(
                f"RandDiscCropd: prob in [0, 1], margin from 1 up, jitter at least 0 and label_key one of keys are "
                f"needed, got {prob}, {tuple(margin)}, {jitter}, {label_key!r}"
            )
        self.label_key, self.size, self.prob = label_key, tuple(size), prob
        self.margin, self.jitter = tuple(margin), jitter

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        found = dict(data)
        near, scale = self.R.random() < self.prob, self.R.uniform(self.margin[0], self.margin[1])
        shift = self.R.uniform(-self.jitter, self.jitter, 2)
        box = square_around(found[self.label_key][0] > 0.5, scale, shift.tolist()) if near else None
        for key in self.key_iterator(found):
            part = found[key] if box is None else found[key][:, box[0], box[1]]
            how = (
                {"mode": "nearest-exact"}
                if key == self.label_key
                else {"mode": "bilinear", "antialias": True}
            )
            found[key] = interpolate(part[None].float(), self.size, **how)[0]
        return found


def square_around(
    mask: torch.Tensor, margin: float, shift: Sequence[float] = (0.0, 0.0)
) -> tuple[slice, slice] | None:
    """The square around what is True in ``mask``, moved and cut so that it lies within the image;
    ``None`` for nothing.

    Args:
        mask: W x H, boolean.
        margin: side of the square over the longer side of the box around the mask.
        shift: of the centre, in longer sides of the box.

    >>> mask = torch.zeros(10, 10, dtype=torch.bool)
    >>> mask[4:6, 7:9] = True
    >>> square_around(mask, 2.0)
    (slice(3, 7, None), slice(6, 10, None))
    """
    places = [torch.nonzero(mask.any(1 - axis)).flatten() for axis in (0, 1)]
    if not len(places[0]):
        return None
    ends = [(int(place[0]), int(place[-1]) + 1) for place in places]
    longer = max(end - begin for begin, end in ends)
    side = [min(max(round(margin * longer), 1), size) for size in mask.shape]
    slices = []
    for (begin, end), length, size, moved in zip(ends, side, mask.shape, shift):
        start = round((begin + end) / 2 + moved * longer - length / 2)
        start = min(max(start, 0), size - length)
        slices.append(slice(start, start + length))
    return slices[0], slices[1]
