# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Photographs made smaller without aliasing, in a fraction of the time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.networks.layers import gaussian_1d
from monai.transforms import Resized
from monai.utils import ensure_tuple_rep
from scipy import sparse
from torch.nn.functional import interpolate


class SmoothResized(Resized):
    r"""MONAI's ``Resized`` for images of two dimensions, with a faster ``anti_aliasing``.

    Anti-aliasing smooths with a Gaussian of :math:`\sigma = (f - 1) / 2` pixels along an axis that
    becomes f times smaller, then interpolates bilinearly. Both are linear and go axis by axis, so
    that the result is :math:`A X B^T` with a sparse matrix for each axis: what is smoothed is only
    what is kept, where MONAI smooths every pixel. Values are MONAI's but for rounding; affine,
    inverse and everything else are MONAI's own.

    Args:
        keys: of images, C x W x H.
        spatial_size: see ``Resized``.
        size_mode: see ``Resized``.
        mode: for each key; ``"bilinear"`` where it is smoothed.
        anti_aliasing: for each key.

    Raises:
        ValueError: for ``anti_aliasing`` with another mode.

    >>> SmoothResized("image", 32, size_mode="longest")({"image": torch.ones(3, 640, 480)})["image"].shape
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
        self.smooth = ensure_tuple_rep(anti_aliasing, len(self.keys))
        wrong = [
            mode
            for mode, smooth in zip(self.mode, self.smooth, strict=True)
            if smooth and mode != "bilinear"
        ]
        if wrong:
            raise ValueError(
                f"SmoothResized: anti_aliasing needs mode 'bilinear', got {wrong[0]!r}"
            )

    @property
    def requires_current_data(self) -> bool:
        """So that a lazy ``Compose`` carries out what is pending first: smoothing looks at the
        pixels.
        """
        return True

    def __call__(
        self, data: Mapping[Hashable, Any], lazy: bool | None = None
    ) -> dict[Hashable, Any]:
        found = super().__call__(data, False)
        for key, smooth in self.key_iterator(found, self.smooth):
            size = found[key].shape[1:]
            if smooth and any(
                new < old for new, old in zip(size, data[key].shape[1:], strict=True)
            ):
                found[key].copy_(
                    torch.from_numpy(_resized(torch.as_tensor(data[key]).numpy(), size))
                )
        return found


def _resized(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """An image, C x W x H, in another size; float32."""
    first, second = (_matrix(old, new) for old, new in zip(image.shape[1:], size, strict=True))
    return np.stack([(second @ (first @ channel.astype(np.float32)).T).T for channel in image])


@lru_cache(maxsize=128)  # photographs of one camera are of one size
def _matrix(length: int, size: int) -> sparse.csr_matrix:
    """Smoothing and interpolation of ``length`` pixels to ``size``: (size, length)."""
    index = torch.arange(length, dtype=torch.float64)
    place = interpolate(index[None, None], size=size, mode="linear")[
        0, 0
    ].numpy()  # where each new pixel lies
    before = np.minimum(place.astype(int), max(length - 2, 0))
    after = np.minimum(before + 1, length - 1)
    entries = np.concatenate([1 - (place - before), place - before])
    rows = np.tile(np.arange(size), 2)
    matrix = sparse.csr_matrix(
        (entries, (rows, np.concatenate([before, after]))), shape=(size, length)
    )
    if size < length:
        kernel = gaussian_1d(torch.tensor((length / size - 1) / 2)).double().numpy()
        offsets = np.arange(len(kernel)) - len(kernel) // 2
        inside = abs(offsets) < length
        matrix = matrix @ sparse.diags(kernel[inside], offsets[inside], shape=(length, length))
    return sparse.csr_matrix(matrix, dtype=np.float32)
