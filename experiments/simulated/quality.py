# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Poor images: noise and motion blur of five severities."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from monai.config import KeysCollection
from monai.transforms import MapTransform
from monai.utils import convert_to_dst_type
from scipy.signal import oaconvolve

from monai_fairfl.errors import ConfigError

from .case import array_of, file_of, generator_of, name_of

# By severity: standard deviation as a share of the intensity range.
NOISE_STD = (0.0, 0.08, 0.12, 0.18, 0.26, 0.38)
# By severity: length as a share of the image's shorter side.
BLUR_LENGTH = (0.0, 0.03, 0.05, 0.075, 0.105, 0.135)
# Of the image, between which its intensity range lies.
PERCENTILES = (0.5, 99.5)


def motion_kernel(length: float, angle: float) -> np.ndarray:
    """Point spread of a straight, even motion: a line through the centre, with sum 1.

    Args:
        length: of the line, in pixels.
        angle: of the line with the last axis, in radians.

    Returns:
        A square kernel of odd size, at least ``length`` wide. Points of the line that lie between
        pixels are distributed to these bilinearly.

    >>> motion_kernel(4, 0.0)[2].round(3).tolist()
    [0.125, 0.25, 0.25, 0.25, 0.125]
    """
    half = int(np.ceil(length / 2))
    grid = np.arange(-half, half + 1)
    # Many points along the line, 16 to a pixel.
    num_points = 16 * int(np.ceil(length) + 1)
    position = ((np.arange(num_points) + 0.5) / num_points - 0.5) * length
    # Bilinear weights of each point, by rows and by columns.
    row_weights = np.maximum(0, 1 - np.abs(position[:, None] * np.sin(angle) - grid))
    column_weights = np.maximum(0, 1 - np.abs(position[:, None] * np.cos(angle) - grid))
    kernel: np.ndarray = row_weights.T @ column_weights / num_points
    return kernel


class CorruptQualityd(MapTransform):
    r"""Give every image the poor quality of a bad scanner or camera.

    This is FedISM's quality shift (Wu et al., IJCAI 2024), in two kinds.

    ``gaussian_noise``, independent for every voxel and channel:

    .. math:: x' = \mathrm{clip}(x + \sigma (high - low) n, min, max), \qquad n \sim N(0, 1)

    with :math:`\sigma` = 0.08, 0.12, 0.18, 0.26, 0.38 for severity 1 to 5, as in FedISM, whose
    experiments use severity 3, and ImageNet-C (Hendrycks and Dietterich, ICLR 2019). low and high
    are the image's own percentiles 0.5 and 99.5, min and max its extremes. So it makes no
    difference whether images were normalised before: a x + b becomes a x' + b.

    ``motion_blur``: every image plane is averaged along a line of L pixels in one direction of the
    case, drawn from all with equal probability; the values at the edges are continued. L = 0.03,
    0.05, 0.075, 0.105, 0.135 of the plane's shorter side: lines of the same standard deviation as
    ImageNet-C's kernels at 224 pixels (radius, sigma = (10, 3), (15, 5), (15, 8), (15, 12), (20,
    15)), which FedISM's code prepares. Those reach to one side only and would move the image by up
    to 11 pixels against its label; a centred line does not.

    Args:
        keys: keys of the images, C x H x W (grey or colour) or C x H x W x D.
        kind: ``"gaussian_noise"`` or ``"motion_blur"``.
        severity: 1 to 5; 0 leaves images as they are.
        seed: with the case's file, or the image's content if it knows no file, it decides noise and
            direction.
        allow_missing_keys: whether keys may be absent.

    Returns (of a call):
        The data with float32 images, which have their metadata.

    Raises:
        ConfigError: an argument is out of range.
        DataError: an image has another number of axes.

    >>> import numpy as np
    >>> image = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(1, 64, 64)
    >>> corrupt = CorruptQualityd("image", severity=1)
    >>> noisy = corrupt({"image": image})["image"]
    >>> print((noisy - image)[:, 20:44].std().round(2))
    0.08
    >>> bool((corrupt({"image": image})["image"] == noisy).all())
    True
    """

    def __init__(
        self,
        keys: KeysCollection,
        kind: str = "gaussian_noise",
        severity: int = 3,
        seed: int = 0,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        if kind not in ("gaussian_noise", "motion_blur"):
            raise ConfigError(f"kind={kind!r}: give gaussian_noise or motion_blur.")
        if severity not in range(len(NOISE_STD)):
            raise ConfigError(
                f"severity={severity!r}: give a whole number from 0 (no change) to 5."
            )
        self.kind = kind
        self.severity = int(severity)
        self.seed = seed

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        if self.severity == 0:
            return d
        for key in self.key_iterator(d):
            image = array_of(key, d[key], np.float64)
            rng = generator_of(self.seed, _identity_of(d[key], image))
            if self.kind == "gaussian_noise":
                damaged = self._with_noise(image, rng)
            else:
                damaged = self._blurred(image, rng)
            d[key] = convert_to_dst_type(damaged, d[key], dtype=np.float32)[0]
        return d

    def _with_noise(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = np.percentile(image, PERCENTILES)
        std = NOISE_STD[self.severity] * (high - low)
        noise = rng.standard_normal(image.shape)
        return np.clip(image + std * noise, image.min(), image.max())

    def _blurred(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shorter_side = min(image.shape[1:3])
        angle = rng.uniform(0, np.pi)
        kernel = motion_kernel(BLUR_LENGTH[self.severity] * shorter_side, angle)
        # Edges are continued by half a kernel in the plane, not across channels and slices.
        reach = len(kernel) // 2
        padding = [(0, 0), (reach, reach), (reach, reach), (0, 0)]
        padded = np.pad(image, padding[: image.ndim], mode="edge")
        # One channel, the plane, and one slice of volumes.
        kernel = kernel[None]
        if image.ndim == 4:
            kernel = kernel[..., None]
        blurred: np.ndarray = oaconvolve(padded, kernel, mode="valid", axes=(1, 2))
        return blurred


def _identity_of(value: Any, voxels: np.ndarray) -> str:
    """What seeds the damage of an image: its file, or its content if it knows no file."""
    file = file_of(value)
    if file is None:
        return hashlib.sha256(voxels.tobytes()).hexdigest()
    return name_of(file)
