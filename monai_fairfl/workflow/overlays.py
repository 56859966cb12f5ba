# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Outlines of masks on their images: one picture for a quick look."""

from __future__ import annotations

import numpy as np
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing
from monai.transforms import Orientation
from PIL import Image, ImageDraw
from skimage.segmentation import find_boundaries
from skimage.util import montage

SIDE = 960  # pixels of the picture's longer side
COLOURS = ((255, 210, 0), (0, 220, 255), (255, 80, 200))  # of the mask's channels


def _slices(mask: np.ndarray, most: int) -> np.ndarray:
    """Up to ``most`` of the slices with mask, evenly spread; of all slices when the mask is empty."""
    inside = np.flatnonzero(mask.any(axis=(0, 1, 2)))
    inside = inside if inside.size else np.arange(mask.shape[-1])
    return inside[
        np.unique(np.linspace(0, inside.size - 1, min(most, inside.size)).round().astype(int))
    ]


def _outlined(image: np.ndarray, mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A slice (1 or 3, columns, rows) with the outlines of its masks, as picture of ``size``:
    (height, width, 3).
    """
    grey_or_rgb = image.transpose(2, 1, 0).repeat(3 // len(image), axis=2)
    picture = np.asarray(
        Image.fromarray(grey_or_rgb).resize(size, Image.Resampling.BILINEAR)
    ).copy()
    for channel, colour in zip(mask, COLOURS):
        shape = np.asarray(
            Image.fromarray(channel.T.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
        )
        picture[find_boundaries(shape, mode="thick")] = colour
    return picture


def _numbered(picture: np.ndarray, text: str) -> np.ndarray:
    drawn = Image.fromarray(picture)
    ImageDraw.Draw(drawn).text((5, 5), text, fill=(255, 255, 255))
    return np.asarray(drawn)


def _as_bytes(image: np.ndarray) -> np.ndarray:
    """Photographs as they are; other images with their 0.5 and 99.5 percentiles as black and white."""
    if image.dtype == np.uint8 or (len(image) == 3 and 0 <= image.min() and image.max() <= 255):
        return image.astype(np.uint8)
    low, high = np.percentile(image, [0.5, 99.5])
    return (np.clip((image - low) / max(high - low, 1e-12), 0, 1) * 255).astype(np.uint8)


def overlay(image: MetaTensor, mask: MetaTensor, most: int = 9) -> np.ndarray:
    """Draw the outline of each channel of a mask, in a colour of its own, on a photograph or on
    slices of a volume.

    Of a volume, up to ``most`` axial slices with mask from feet to head, each with its number; the
    patient's left is on the right, as radiologists look at it.

    Args:
        image: (1, x, y, z) volume, or (1 or 3, x, y) photograph with values from 0 to 255.
        mask: (channel, x, y[, z]) on the same grid; inside where above 0. Up to three channels.
        most: slices in the picture.

    Returns:
        (height, width, 3), unsigned 8-bit, the longer side of about 960 pixels.

    >>> import torch
    >>> disc = torch.zeros(1, 32, 32)
    >>> disc[0, 8:24, 8:24] = 1
    >>> overlay(MetaTensor(torch.zeros(3, 32, 32)), MetaTensor(disc)).shape
    (960, 960, 3)
    """
    if image.ndim == 4:
        to_axial = Orientation(axcodes="LPS", labels=None)
        volume, gland = to_axial(image), to_axial(mask)
        spacing = affine_to_spacing(volume.affine)[:2].tolist()  # type: ignore[attr-defined]
    else:
        volume, gland, spacing = image[..., None], mask[..., None], [1.0, 1.0]
    values, inside = _as_bytes(volume.cpu().numpy()), (gland > 0).cpu().numpy()
    shown = _slices(inside, most)
    columns = int(np.ceil(np.sqrt(shown.size)))
    extent = np.array(values.shape[1:3]) * spacing
    width, height = np.maximum(
        1, (extent * SIDE / columns / extent.max()).round().astype(int)
    ).tolist()
    tiles = [_outlined(values[..., k], inside[..., k], (width, height)) for k in shown]
    if len(tiles) == 1 and values.shape[-1] == 1:
        return tiles[0]
    total = values.shape[-1]
    numbered = [_numbered(tile, f"{k + 1} of {total}") for k, tile in zip(shown, tiles)]
    rows = -(-len(tiles) // columns)
    return montage(np.stack(numbered), grid_shape=(rows, columns), fill=[0, 0, 0], channel_axis=-1)
