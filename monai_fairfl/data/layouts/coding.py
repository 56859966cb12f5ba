# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How one mask is coded: at which values its pixels gather, and which value is the background.

Sites code the same structures differently: 0 and 255, 0 to 2 in a palette, dark on white, with the
noise of JPEG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.ndimage import distance_transform_edt, maximum_filter, minimum_filter

from monai_fairfl.data.layouts.image_files import grey, is_nifti

# Values below are numbers of classes, and exact; values above are grey levels.
INDICES = 32
# Grey levels by which JPEG moves a pixel.
RINGING = 16
# Least share of the foreground that a level of a noisy mask has. What lies on blurred edges has
# less.
LEAST_SHARE = 0.05
# Least share of a level's neighbourhood that lies at the level itself. On edges and in photographs
# it is less.
LEAST_PEAK = 0.35
# Largest share of the foreground that may lie between the levels. In photographs it is more.
MOST_STRAY = 0.3
# Pixels a side on which depths are measured.
GRID = 256
# Grey levels in common use, which JPEG moves a little.
USUAL_LEVELS = (0, 128, 255)


@dataclass(frozen=True)
class Coding:
    """How one mask is coded.

    Args:
        file: the mask.
        levels: values that its pixels gather at, sorted; empty where they do not gather at a few.
        background: the level that dominates its border.
        depth: level -> mean distance of its pixels from the background.
        colours: number of different values.
        hidden: other values that fill areas, as structures do and noise does not.
    """

    file: str
    levels: tuple[int, ...] = ()
    background: int = 0
    depth: Mapping[int, float] = field(default_factory=dict)
    colours: int = 0
    hidden: tuple[int, ...] = ()

    @property
    def foreground(self) -> frozenset[int]:
        """The levels without the background."""
        return frozenset(self.levels) - {self.background}


def coding_of(pixels: np.ndarray, file: str = "") -> Coding:
    """Find the levels of one mask.

    Args:
        pixels: H x W, or H x W x C of a picture, or a volume of a NIfTI file.
        file: its name, which distinguishes pictures from volumes.

    >>> mask = np.zeros((9, 9), np.uint8)
    >>> mask[2:7, 2:7] = 1
    >>> mask[3:6, 3:6] = 2
    >>> coding = coding_of(mask)
    >>> coding.levels, coding.background, coding.depth[2] > coding.depth[1]
    ((0, 1, 2), 0, True)
    """
    mask = pixels if is_nifti(file) else grey(pixels)
    if mask is None:
        return Coding(file, colours=_number_of_colours(pixels))
    values, counts = _histogram(mask)
    levels = _levels(values, counts)
    if not levels:
        return Coding(file, colours=len(values))
    hidden: tuple[int, ...] = ()
    if len(levels) < len(values):
        # The other values are noise, or structures that look like noise.
        hidden = _hidden_values(mask, values, counts, levels)
        if not hidden:
            levels = tuple(_usual_level(level) for level in levels)
    background = _level_of_border(mask, levels)
    depth = _depths(mask, levels, background)
    return Coding(file, levels, background, depth, len(values), hidden)


def _number_of_colours(pixels: np.ndarray) -> int:
    """Number of different colours of a picture, on a grid of its pixels."""
    step = max(1, max(pixels.shape[:2]) // GRID)
    colours = pixels[::step, ::step].reshape(-1, pixels.shape[2])
    return len(np.unique(colours, axis=0))


def _histogram(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values of a mask, sorted, and how many pixels have each."""
    if mask.dtype != np.uint8:
        return np.unique(mask, return_counts=True)
    # Much faster than sorting millions of pixels.
    counts = np.bincount(mask.ravel(), minlength=256)
    return counts.nonzero()[0], counts[counts > 0]


def _levels(values: np.ndarray, counts: np.ndarray) -> tuple[int, ...]:
    """The values that pixels gather at; empty when they gather nowhere."""
    is_whole = values == np.round(values)
    if not is_whole.all() or values[0] < 0:
        return ()
    values = values.astype(int)
    # Numbers of classes, or a few values that no noise of JPEG can have made.
    if values[-1] < INDICES or _are_few_and_far_apart(values):
        return tuple(values.tolist())

    # The most frequent value is a level. Others are added in the order of their frequency.
    levels = [int(values[counts.argmax()])]
    outside = np.abs(values - levels[0]) > RINGING
    foreground = max(1, counts[outside].sum())
    by_frequency = np.argsort(-counts[outside], kind="stable")
    for value in values[outside][by_frequency].tolist():
        distances = np.abs(values - value)
        count_around = counts[distances <= RINGING].sum()
        count_at = counts[distances <= RINGING // 4].sum()
        is_frequent = count_around >= LEAST_SHARE * foreground
        is_peak = count_at >= LEAST_PEAK * count_around
        nearest_level = min(abs(value - level) for level in levels)
        if is_frequent and is_peak and nearest_level > 3 * RINGING:
            levels.append(value)

    # A photograph has too many pixels between its levels.
    distance_to_level = np.abs(values[:, None] - np.array(levels)).min(axis=1)
    stray = counts[distance_to_level > RINGING].sum()
    if stray > MOST_STRAY * foreground:
        return ()
    return tuple(sorted(levels))


def _are_few_and_far_apart(values: np.ndarray) -> bool:
    return len(values) <= 3 and bool(np.diff(values).min(initial=INDICES) >= INDICES)


def _hidden_values(
    mask: np.ndarray, values: np.ndarray, counts: np.ndarray, levels: Sequence[int]
) -> tuple[int, ...]:
    """The values that are no levels but fill areas, as structures do.

    Areas are 3 x 3 pixels and more, with ``LEAST_SHARE`` of the foreground.
    """
    most_frequent = values[counts.argmax()]
    foreground = max(1, counts[np.abs(values - most_frequent) > RINGING].sum())
    least = LEAST_SHARE * foreground
    frequent = set(values[counts >= least].tolist()).difference(levels)
    if not frequent:
        return ()
    # Pixels whose neighbours in the plane all have the same value.
    size = (3, 3, 1)[: mask.ndim]
    is_flat = minimum_filter(mask, size) == maximum_filter(mask, size)
    flat_values, areas = _histogram(mask[is_flat])
    hidden = []
    for value, area in zip(flat_values.tolist(), areas):
        if value in frequent and area >= least:
            hidden.append(int(value))
    return tuple(hidden)


def _usual_level(level: int) -> int:
    """The grey level in common use that JPEG has moved to ``level``."""
    for usual in USUAL_LEVELS:
        if abs(level - usual) <= RINGING:
            return usual
    return level


def _level_of_border(mask: np.ndarray, levels: Sequence[int]) -> int:
    """The level that most pixels of the border are nearest to."""
    sides = (mask[0], mask[-1], mask[:, 0], mask[:, -1])
    border = np.concatenate([side.ravel() for side in sides])
    counts = Counter(_nearest_levels(border, levels).tolist())
    return counts.most_common(1)[0][0]


def _nearest_levels(pixels: np.ndarray, levels: Sequence[int]) -> np.ndarray:
    bounds = (np.array(levels[1:]) + np.array(levels[:-1])) / 2
    return np.array(levels)[np.digitize(pixels.astype(float), bounds)]


def _depths(mask: np.ndarray, levels: Sequence[int], background: int) -> dict[int, float]:
    """How deep inside the foreground each level lies, in pixels of a coarse grid.

    The depth distinguishes a ring from what it surrounds. The image's border is no background: a
    structure that it cuts goes on beyond it, where nobody knows how far.
    """
    foreground = [level for level in levels if level != background]
    if len(levels) < 3:
        return dict.fromkeys(foreground, 0.0)
    step = max(1, max(mask.shape[:2]) // GRID)
    coarse = _nearest_levels(mask[::step, ::step], levels)
    distance = distance_transform_edt(coarse != background)
    depths = {}
    for level in foreground:
        is_level = coarse == level
        if is_level.any():
            depths[level] = float(distance[is_level].mean())
    return depths
