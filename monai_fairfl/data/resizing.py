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
    that the result is :math:`A X B^T` with a sparse matrix for each axis. Only the pixels of the
    result are smoothed, where MONAI smooths every pixel. Values are MONAI's but for rounding;
    affine, inverse and everything else are MONAI's own.

    Args:
        keys: of images, C x W x H.
        spatial_size: see ``Resized``.
        size_mode: see ``Resized``.
        mode: for each key; ``"bilinear"`` where it is smoothed.
        anti_aliasing: for each key.

    Raises:
        ValueError: for ``anti_aliasing`` with another mode.

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
        self.smooth = ensure_tuple_rep(anti_aliasing, len(self.keys))
        for key_mode, smooth in zip(self.mode, self.smooth, strict=True):
            if smooth and key_mode != "bilinear":
                raise ValueError(
                    f"SmoothResized: anti_aliasing needs mode 'bilinear', got {key_mode!r}"
                )

    @property
    def requires_current_data(self) -> bool:
        """Whether a lazy ``Compose`` must carry out what is pending: smoothing needs the pixels."""
        return True

    def __call__(
        self, data: Mapping[Hashable, Any], lazy: bool | None = None
    ) -> dict[Hashable, Any]:
        d = super().__call__(data, False)
        for key, smooth in self.key_iterator(d, self.smooth):
            size = d[key].shape[1:]
            previous_size = data[key].shape[1:]
            if smooth and _is_smaller(size, previous_size):
                image = torch.as_tensor(data[key]).numpy()
                d[key].copy_(torch.from_numpy(_resized(image, size)))
        return d


def _is_smaller(size: Sequence[int], previous_size: Sequence[int]) -> bool:
    """Whether at least one axis becomes smaller."""
    return any(new < previous for new, previous in zip(size, previous_size, strict=True))


def _resized(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """An image, C x W x H, in another size; float32."""
    columns = _matrix(image.shape[1], size[0])
    rows = _matrix(image.shape[2], size[1])
    channels = []
    for channel in image:
        narrowed = columns @ channel.astype(np.float32)
        channels.append((rows @ narrowed.T).T)
    return np.stack(channels)


# Photographs of one camera are of one size.
@lru_cache(maxsize=128)
def _matrix(length: int, size: int) -> sparse.csr_matrix:
    """Smoothing and interpolation of ``length`` pixels to ``size``: (size, length)."""
    # Linear interpolation: each new pixel lies between two pixels, which have its two weights.
    index = torch.arange(length, dtype=torch.float64)[None, None]
    position = interpolate(index, size=size, mode="linear")[0, 0].numpy()
    left = np.minimum(position.astype(int), max(length - 2, 0))
    right = np.minimum(left + 1, length - 1)
    weights = np.concatenate([1 - (position - left), position - left])
    rows = np.tile(np.arange(size), 2)
    columns = np.concatenate([left, right])
    matrix = sparse.csr_matrix((weights, (rows, columns)), shape=(size, length))
    if size < length:
        # Smoothing comes first: a band matrix with the Gaussian on its diagonals.
        sigma = (length / size - 1) / 2
        kernel = gaussian_1d(torch.tensor(sigma)).double().numpy()
        offsets = np.arange(len(kernel)) - len(kernel) // 2
        inside = abs(offsets) < length
        smoothing = sparse.diags(kernel[inside], offsets[inside], shape=(length, length))
        matrix = matrix @ smoothing
    return sparse.csr_matrix(matrix, dtype=np.float32)
