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
COLOURS = ((255, 210, 0), (0, 220, 255), (255, 80, 200))  # of the labels 1, 2 and 3
WHITE = (255, 255, 255)
BLACK = (0, 0, 0)


def overlay(image: MetaTensor, mask: MetaTensor, most: int = 9, title: str = "") -> np.ndarray:
    """Draw the outline of each label of a mask, in a colour of its own, on the image.

    The image is a photograph or a volume. Of a volume, up to ``most`` axial slices with mask are
    shown from feet to head, each with its number; the patient's left is on the right, as
    radiologists look at it.

    Args:
        image: (1, x, y, z) volume, or (1 or 3, x, y) photograph with values from 0 to 255.
        mask: (1, x, y[, z]) on the same grid: 0 background, and up to three labels, 1 to 3.
        most: slices in the picture.
        title: such as the case's name, in the upper left corner.

    Returns:
        (height, width, 3), unsigned 8-bit, the longer side of about 960 pixels.

    >>> from monai.data import MetaTensor
    >>> import torch
    >>> disc = torch.zeros(1, 32, 32)
    >>> disc[0, 8:24, 8:24] = 1
    >>> overlay(MetaTensor(torch.zeros(3, 32, 32)), MetaTensor(disc)).shape
    (960, 960, 3)
    """
    if image.ndim == 4:
        to_axial = Orientation(axcodes="LPS", labels=None)
        volume = to_axial(image)
        gland = to_axial(mask)
        spacing = affine_to_spacing(volume.affine)[:2].tolist()  # type: ignore[attr-defined]
    else:
        volume = image[..., None]
        gland = mask[..., None]
        spacing = [1.0, 1.0]
    values = _as_bytes(volume.cpu().numpy())
    labels = gland[0].cpu().numpy().astype(int)
    num_slices = values.shape[-1]

    # As many columns as rows, or one more, fill the picture's longer side.
    shown = _shown_slices(labels, most)
    columns = int(np.ceil(np.sqrt(shown.size)))
    rows = int(np.ceil(shown.size / columns))
    size = _size_of_tile(np.array(values.shape[1:3]) * spacing, columns)

    tiles = [_outlined(values[..., index], labels[..., index], size) for index in shown]
    if num_slices == 1:
        return _with_text(tiles[0], title) if title else tiles[0]
    numbered: list[np.ndarray] = []
    for tile, index in zip(tiles, shown):
        text = f"{index + 1} of {num_slices}"
        if title and not numbered:
            text = f"{title}, {text}"
        numbered.append(_with_text(tile, text))
    return montage(np.stack(numbered), grid_shape=(rows, columns), fill=BLACK, channel_axis=-1)


def _as_bytes(image: np.ndarray) -> np.ndarray:
    """Turn the values into grey levels.

    Photographs stay as they are; other images have their 0.5 and 99.5 percentiles as black and
    white.
    """
    is_photograph = len(image) == 3 and 0 <= image.min() and image.max() <= 255
    if image.dtype == np.uint8 or is_photograph:
        return image.astype(np.uint8)
    low, high = np.percentile(image, [0.5, 99.5])
    scaled = (image - low) / max(high - low, 1e-12)
    return (np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def _shown_slices(mask: np.ndarray, most: int) -> np.ndarray:
    """Choose up to ``most`` of the slices with mask, evenly spread; of all where none has mask."""
    candidates = np.flatnonzero(mask.any(axis=(0, 1)))
    if not candidates.size:
        candidates = np.arange(mask.shape[-1])
    number = min(most, candidates.size)
    places = np.linspace(0, candidates.size - 1, number).round().astype(int)
    return candidates[np.unique(places)]


def _size_of_tile(extent: np.ndarray, columns: int) -> tuple[int, int]:
    """Compute width and height of one slice in pixels, in the proportions of its ``extent``."""
    pixels = (extent * SIDE / columns / extent.max()).round().astype(int)
    width, height = np.maximum(1, pixels).tolist()
    return width, height


def _outlined(image: np.ndarray, mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Draw the outlines of its labels on a slice.

    Args:
        image: (1 or 3, columns, rows), unsigned 8-bit.
        mask: (columns, rows), labels.
        size: width and height of the picture.

    Returns:
        (height, width, 3).
    """
    rgb = image.transpose(2, 1, 0).repeat(3 // len(image), axis=2)
    resized = Image.fromarray(rgb).resize(size, Image.Resampling.BILINEAR)
    picture = np.asarray(resized).copy()
    resized_mask = Image.fromarray(mask.T.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    labels = np.asarray(resized_mask)
    for label, colour in enumerate(COLOURS, start=1):
        # With the labels above: where one lies within another, its outline is drawn on the other's.
        outline = find_boundaries(labels >= label, mode="thick")
        picture[outline] = colour
    return picture


def _with_text(picture: np.ndarray, text: str) -> np.ndarray:
    drawn = Image.fromarray(picture)
    ImageDraw.Draw(drawn).text((5, 5), text, fill=WHITE)
    return np.asarray(drawn)
