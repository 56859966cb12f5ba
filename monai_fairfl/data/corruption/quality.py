# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Poor images: noise and motion blur of five severities."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.config import KeysCollection
from monai.transforms import MapTransform
from monai.utils import convert_to_dst_type
from scipy.signal import oaconvolve

from monai_fairfl.data.corruption.case import array_of, file_of, generator_of, name_of
from monai_fairfl.errors import ConfigError

NOISE_STD = (0.0, 0.08, 0.12, 0.18, 0.26, 0.38)  # by severity; share of the intensity range
BLUR_LENGTH = (
    0.0,
    0.03,
    0.05,
    0.075,
    0.105,
    0.135,
)  # by severity; share of the image's shorter side
PERCENTILES = (0.5, 99.5)


def motion_kernel(length: float, angle: float) -> np.ndarray:
    """Point spread of a straight, even motion: a line of ``length`` pixels through the centre, of
    sum 1.

    Args:
        length: in pixels.
        angle: of the line with the last axis, in radians.

    Returns:
        A square kernel of odd size, at least ``length`` wide; points between pixels are shared out
        bilinearly.

    >>> motion_kernel(4, 0.0)[2].round(3).tolist()
    [0.125, 0.25, 0.25, 0.25, 0.125]
    """
    half, points = int(np.ceil(length / 2)), 16 * int(np.ceil(length) + 1)
    along = ((np.arange(points) + 0.5) / points - 0.5) * length
    grid = np.arange(-half, half + 1)
    rows, columns = (
        np.maximum(0, 1 - np.abs(along[:, None] * part - grid))
        for part in (np.sin(angle), np.cos(angle))
    )
    kernel: np.ndarray = rows.T @ columns / points
    return kernel


class CorruptQualityd(MapTransform):
    """Give every image the poor quality of a bad scanner or camera: FedISM's quality shift (Wu et
    al., IJCAI 2024).

    ``gaussian_noise``: x' = clip(x + sigma (high - low) n, min, max), n ~ N(0, 1) for every voxel
    and channel; sigma = 0.08, 0.12, 0.18, 0.26, 0.38 for severity 1 to 5, as in FedISM, whose
    experiments use severity 3, and ImageNet-C (Hendrycks and Dietterich, ICLR 2019). low and high
    are the image's own percentiles 0.5 and 99.5, min and max its extremes. So it makes no
    difference whether images were normalised before: a x + b becomes a x' + b.

    ``motion_blur``: every image plane is averaged along a line of L pixels in one direction of the
    case, drawn from all with equal probability; edges are continued. L = 0.03, 0.05, 0.075, 0.105,
    0.135 of the plane's shorter side: lines of the same standard deviation as ImageNet-C's kernels
    at 224 pixels (radius, sigma = (10, 3), (15, 5), (15, 8), (15, 12), (20, 15)), which FedISM's
    code prepares. Those reach to one side only and would move the image by up to 11 pixels against
    its label; a centred line does not.

    Args:
        keys: keys of the images, C x H x W (grey or colour) or C x H x W x D.
        kind: ``"gaussian_noise"`` or ``"motion_blur"``.
        severity: 1 to 5; 0 leaves images as they are.
        seed: with the case's file, or the image's content if it knows no file, it decides noise and
            direction.
        intensity_range: ``(low, high)`` for noise, also the limits of clipping, instead of each
            image's own. For photographs in 0 to 1, ``(0, 1)`` is FedISM's definition to the letter.
        allow_missing_keys: whether keys may be absent.

    Returns (of a call):
        The data with float32 images; metadata is kept.

    Raises:
        ConfigError: an argument is out of range.
        DataError: an image has another number of axes.

    >>> image = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(1, 64, 64)
    >>> noisy = CorruptQualityd("image", severity=1)({"image": image})["image"]
    >>> print((noisy - image)[:, 20:44].std().round(2))
    0.08
    >>> bool((CorruptQualityd("image", severity=1)({"image": image})["image"] == noisy).all())
    True
    """

    def __init__(
        self,
        keys: KeysCollection,
        kind: str = "gaussian_noise",
        severity: int = 3,
        seed: int = 0,
        intensity_range: Sequence[float] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        if kind not in ("gaussian_noise", "motion_blur"):
            raise ConfigError(f"kind={kind!r}: give gaussian_noise or motion_blur.")
        if severity not in range(len(NOISE_STD)):
            raise ConfigError(
                f"severity={severity!r}: give a whole number from 0 (no change) to 5."
            )
        if intensity_range is not None and not (
            len(intensity_range) == 2 and intensity_range[0] < intensity_range[1]
        ):
            raise ConfigError(
                f"intensity_range={intensity_range}: give (low, high) with low below high."
            )
        self.kind, self.severity, self.seed, self.intensity_range = (
            kind,
            int(severity),
            seed,
            intensity_range,
        )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d) if self.severity else ():
            image = array_of(key, d[key], np.float64)
            file = file_of(d[key])
            identity = (
                hashlib.sha256(image.tobytes()).hexdigest() if file is None else name_of(file)
            )
            damage = self._noise if self.kind == "gaussian_noise" else self._blur
            damaged = damage(image, generator_of(self.seed, identity))
            d[key] = convert_to_dst_type(damaged, d[key], dtype=np.float32)[0]
        return d

    def _noise(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = self.intensity_range or np.percentile(image, PERCENTILES)
        limits = self.intensity_range or (image.min(), image.max())
        std = NOISE_STD[self.severity] * (high - low)
        return np.clip(image + std * rng.standard_normal(image.shape), *limits)

    def _blur(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        kernel = motion_kernel(
            BLUR_LENGTH[self.severity] * min(image.shape[1:3]), rng.uniform(0, np.pi)
        )
        pad = len(kernel) // 2
        padded = np.pad(image, [(0, 0), (pad, pad), (pad, pad), (0, 0)][: image.ndim], mode="edge")
        kernel = kernel.reshape(1, *kernel.shape, *[1] * (image.ndim - 3))
        blurred: np.ndarray = oaconvolve(padded, kernel, mode="valid", axes=(1, 2))
        return blurred
