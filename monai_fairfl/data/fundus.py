# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fundus photographs: one view of a pair, normalised colours, a smaller size, disc crops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from monai.config import KeysCollection
from monai.networks.layers import gaussian_1d
from monai.transforms import (
    Crop,
    Cropd,
    MapTransform,
    Randomizable,
    Resized,
    generate_spatial_bounding_box,
)
from monai.utils import ensure_tuple_rep
from scipy import sparse
from scipy.ndimage import correlate1d
from torch.nn.functional import interpolate

from monai_fairfl.data.transforms import Case, Data, EachKeyd
from monai_fairfl.errors import ConfigError

# Width / height from which a photograph is taken for a pair of views. Few single views are as wide.
STEREO = 1.8
# Share of the 99th percentile of brightness that is seen in the field of view alone.
LEAST_BRIGHT = 0.15


def is_pair(width: int, height: int) -> bool:
    """Whether a photograph is taken for a pair of views by its shape.

    >>> is_pair(200, 100), is_pair(150, 100)
    (True, False)
    """
    return width >= STEREO * height


class OneViewd(Cropd):
    """Crop a pair of views side by side, as RIM-ONE r3 has them, to the left one.

    A photograph of one view stays as it is. ``Invertd`` undoes this transform like any crop.

    Args:
        keys: keys of images, C x W x H (MONAI reads photographs with the width first).
        stereo: whether the photographs are pairs; ``None``: those are that are at least 1.8 times
            as wide as high. RIM-ONE r3's pairs are 1.5 times as wide as high, like many single
            views, so they need ``True``.

    >>> import torch
    >>> OneViewd("image")({"image": torch.zeros(3, 200, 100)})["image"].shape
    torch.Size([3, 100, 100])
    """

    def __init__(self, keys: KeysCollection, stereo: bool | None = None) -> None:
        super().__init__(keys, Crop())
        self.stereo = stereo

    def __call__(self, data: Data, lazy: bool | None = None) -> Case:
        d = dict(data)
        for key in self.key_iterator(d):
            width, height = d[key].shape[1:]
            stereo = is_pair(width, height) if self.stereo is None else self.stereo
            view = (slice(0, width // 2 if stereo else width), slice(0, height))
            d[key] = self.cropper(d[key], view, lazy)
        return d


class NormaliseFieldd(EachKeyd):
    r"""Normalise each colour of a photograph within the field of view, and make the rest 0.

    .. math:: x'_c = (x_c - \mu_c) / \sigma_c

    with mean and standard deviation of colour c in the field of view. This takes the camera's
    colour cast and exposure away. The field of view is where the brightest colour is above 0.15 of
    its 99th percentile; what surrounds it is black, with a label or a mark. A photograph is
    C x W x H, of any scale from 0, of at most 2**24 pixels.

    >>> import torch
    >>> image = torch.rand(3, 32, 32) + 1
    >>> normalised = NormaliseFieldd("image")({"image": image})["image"]
    >>> bool(normalised.mean().abs() < 1e-5), round(float(normalised.std()), 2)
    (True, 1.0)
    """

    def change(self, image: torch.Tensor) -> torch.Tensor:
        """As :meth:`EachKeyd.change`."""
        return normalise_field(image)


def normalise_field(image: torch.Tensor) -> torch.Tensor:
    """Normalise one photograph, C x W x H, as :class:`NormaliseFieldd` does.

    >>> import torch
    >>> image = torch.zeros(3, 4, 4)
    >>> image[:, 1:3, 1:3] = torch.tensor([[90.0, 110.0], [110.0, 90.0]])
    >>> normalised = normalise_field(image)
    >>> [round(value, 3) for value in normalised[0, 1].tolist()]
    [0.0, -0.866, 0.866, 0.0]
    >>> torch.allclose(normalised, normalise_field(2 * image))  # a longer exposure
    True
    """
    image = image.float()
    brightest = image.amax(0)
    inside = brightest > LEAST_BRIGHT * torch.quantile(brightest, 0.99)
    pixels = image[:, inside] if bool(inside.any()) else image.flatten(1)
    mean, deviation = (of_all[:, None, None] for of_all in (pixels.mean(1), pixels.std(1)))
    normalised = (image - mean) / deviation.clamp(min=1e-6)
    return torch.where(inside, normalised, torch.zeros_like(image))


class RandDiscCropd(Randomizable, MapTransform):
    r"""Crop to a square around the optic disc or take the whole photograph, at the network's size.

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
        ConfigError: the label is none of the keys, or a square would cut the disc.

    >>> import torch
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
        if label_key not in self.keys:  # the label would keep its place
            raise ConfigError(f"label_key={label_key!r} must be one of keys={self.keys}")
        if not 1 <= margin[0] <= margin[1]:
            raise ConfigError(f"margin must be a range (low, high) from 1, got {tuple(margin)}")
        self.label_key = label_key
        self.size = tuple(size)
        self.prob = prob
        self.margin = (margin[0], margin[1])
        self.jitter = jitter

    def __call__(self, data: Data) -> Case:
        d = dict(data)
        # All three are drawn for every photograph, so that draws do not depend on labels.
        takes_square = self.R.random() < self.prob
        margin = self.R.uniform(*self.margin)
        shift = self.R.uniform(-self.jitter, self.jitter, 2)
        square = square_around(d[self.label_key][0] > 0.5, margin, shift.tolist())
        columns, rows = square if square and takes_square else (slice(None), slice(None))
        for key in self.key_iterator(d):
            batch = d[key][None, :, columns, rows].float()
            if key == self.label_key:
                d[key] = interpolate(batch, self.size, mode="nearest-exact")[0]
            else:
                d[key] = interpolate(batch, self.size, mode="bilinear", antialias=True)[0]
        return d


def square_around(
    mask: torch.Tensor, margin: float, shift: Sequence[float] = (0.0, 0.0), least_side: int = 1
) -> tuple[slice, slice] | None:
    """The square around what is True in ``mask``, moved and cut so that it lies within the image.

    Args:
        mask: W x H, boolean.
        margin: side of the square over the longer side of the box around the mask.
        shift: of the centre, in longer sides of the box.
        least_side: of the square, in pixels, where the image is as large.

    Returns:
        Columns and rows of the square; ``None`` where nothing is True.

    >>> mask = torch.zeros(10, 10, dtype=torch.bool)
    >>> mask[4:6, 7:9] = True
    >>> square_around(mask, 2.0)
    (slice(3, 7, None), slice(6, 10, None))
    """
    if not mask.any():
        return None
    box = list(zip(*generate_spatial_bounding_box(mask[None])))
    longer_side = max(end - begin for begin, end in box)
    square = []
    for (begin, end), size, axis_shift in zip(box, mask.shape, shift):
        length = min(max(round(margin * longer_side), least_side), size)
        centre = (begin + end) / 2 + axis_shift * longer_side
        start = min(max(round(centre - length / 2), 0), size - length)
        square.append(slice(start, start + length))
    return square[0], square[1]


class SmoothResized(Resized):
    r"""MONAI's ``Resized`` for images of two dimensions, with a faster ``anti_aliasing``.

    Anti-aliasing smooths with a Gaussian of :math:`\sigma = (f - 1) / 2` pixels along an axis that
    becomes f times smaller, then interpolates bilinearly. Both are linear and go axis by axis, so
    that the result is :math:`A X B^T` with a sparse matrix for each axis. Only the pixels of the
    result are smoothed, where MONAI smooths every pixel. Values are MONAI's but for rounding;
    affine, inverse and everything else are MONAI's own.

    Args:
        keys: of images, C x W x H.
        spatial_size: see ``Resized``.
        size_mode: see ``Resized``.
        mode: for each key.
        anti_aliasing: for each key; of no effect where its mode is not ``"bilinear"``.

    >>> import torch
    >>> resize = SmoothResized("image", 32, size_mode="longest")
    >>> resize({"image": torch.ones(3, 640, 480)})["image"].shape
    torch.Size([3, 32, 24])
    """

    def __init__(
        self,
        keys: KeysCollection,
        spatial_size: Sequence[int] | int,
        size_mode: str = "all",
        mode: Sequence[str] | str = "bilinear",
        anti_aliasing: Sequence[bool] | bool = True,
    ) -> None:
        super().__init__(keys, spatial_size, size_mode, mode)
        wanted = ensure_tuple_rep(anti_aliasing, len(self.keys))
        self.smooth = [one and mode == "bilinear" for one, mode in zip(wanted, self.mode)]

    # A lazy ``Compose`` must carry out what is pending: smoothing needs the pixels.
    requires_current_data = True

    def __call__(self, data: Data, lazy: bool | None = None) -> Case:
        d = super().__call__(data, False)
        for key, smooth in self.key_iterator(d, self.smooth):
            size = d[key].shape[1:]
            if smooth and any(new < old for new, old in zip(size, data[key].shape[1:])):
                image = torch.as_tensor(data[key]).numpy().astype(np.float32)
                columns, rows = (_matrix(old, new) for old, new in zip(image.shape[1:], size))
                resized = np.stack([(rows @ (columns @ channel).T).T for channel in image])
                d[key].copy_(torch.from_numpy(resized))
        return d


# Photographs of one camera are of one size.
@lru_cache(maxsize=128)
def _matrix(length: int, size: int) -> sparse.csr_matrix:
    """Smoothing and interpolation of ``length`` pixels to ``size``: (size, length)."""
    # What becomes of each pixel by itself: it lies between two new ones, which share it.
    pixels = torch.eye(length, dtype=torch.float64)[None]
    matrix = interpolate(pixels, size=size, mode="linear")[0].T.numpy()
    if size < length:
        # Smoothing comes first.
        sigma = (length / size - 1) / 2
        kernel = gaussian_1d(torch.tensor(sigma)).double().numpy()
        matrix = correlate1d(matrix, kernel, mode="constant")
    return sparse.csr_matrix(matrix, dtype=np.float32)
