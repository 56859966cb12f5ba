# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which pixel values of a site's masks are which structure, read from the masks themselves.

Sites code the same structures differently: 0 and 255, 0 to 2 in a palette, dark on white, with the
noise of JPEG.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.ndimage import distance_transform_edt, maximum_filter, minimum_filter

from monai_fairfl.data.layouts.image_files import WORKERS, grey, is_nifti, read
from monai_fairfl.errors import DataError

Values = dict[str, list[int]]
"""Structure -> lowest and highest pixel value that belongs to it, both included."""

INDICES = 32  # values below are numbers of classes, and exact; above they are grey levels
RINGING = 16  # grey levels that JPEG moves a pixel
LEAST = 0.05  # share of the foreground that a level of a noisy mask has; what lies on blurred edges has less
PEAKED = 0.35  # share of its neighbourhood that lies at the level itself; on edges and in photographs it is less
STRAY = 0.3  # share of the foreground that may lie between the levels; of a photograph it is more
GRID = 256  # pixels a side on which depths are measured
DOFE = (50, 200)  # where masks are bright outside: the published upper bounds of cup and rim


@dataclass(frozen=True)
class Coding:
    """How one mask is coded.

    Args:
        file: the mask.
        levels: values that its pixels gather at, sorted; none where they do not gather at a few.
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
        file: its name; tells pictures from volumes.

    >>> mask = np.zeros((9, 9), np.uint8)
    >>> mask[2:7, 2:7], mask[3:6, 3:6] = 1, 2
    >>> coding_of(mask).levels, coding_of(mask).background, coding_of(mask).depth[2] > coding_of(mask).depth[1]
    ((0, 1, 2), 0, True)
    """
    mask = pixels if is_nifti(file) else grey(pixels)
    if mask is None:
        step = max(1, max(pixels.shape[:2]) // GRID)
        colours = pixels[::step, ::step].reshape(-1, pixels.shape[2])
        return Coding(file, colours=len(np.unique(colours, axis=0)))
    values, counts = _histogram(mask)
    levels = _levels(values, counts)
    if not levels:
        return Coding(file, colours=len(values))
    hidden: tuple[int, ...] = ()
    if len(levels) < len(values):  # noise, or what looks like it
        hidden = _hidden(mask, values, counts, levels)
        levels = levels if hidden else tuple(map(_usual, levels))
    edge = np.concatenate(
        [mask[0].ravel(), mask[-1].ravel(), mask[:, 0].ravel(), mask[:, -1].ravel()]
    )
    background = Counter(_nearest(edge, levels).tolist()).most_common(1)[0][0]
    return Coding(file, levels, background, _depth(mask, levels, background), len(values), hidden)


def _histogram(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if mask.dtype != np.uint8:
        return np.unique(mask, return_counts=True)
    counts = np.bincount(mask.ravel(), minlength=256)  # much faster than sorting millions of pixels
    return counts.nonzero()[0], counts[counts > 0]


def _levels(values: np.ndarray, counts: np.ndarray) -> tuple[int, ...]:
    """The values that pixels gather at; none when they gather nowhere."""
    if (values != np.round(values)).any() or values[0] < 0:
        return ()
    values = values.astype(int)
    if values[-1] < INDICES or (
        len(values) <= 3 and np.diff(values).min(initial=INDICES) >= INDICES
    ):
        return tuple(values.tolist())
    levels = [int(values[counts.argmax()])]
    outside = np.abs(values - levels[0]) > RINGING
    foreground = max(1, counts[outside].sum())
    for value in values[outside][np.argsort(-counts[outside], kind="stable")].tolist():
        around, at = (
            counts[np.abs(values - value) <= width].sum() for width in (RINGING, RINGING // 4)
        )
        enough = around >= LEAST * foreground and at >= PEAKED * around
        if enough and min(abs(value - level) for level in levels) > 3 * RINGING:
            levels.append(value)
    stray = np.abs(values[:, None] - np.array(levels)).min(axis=1) > RINGING
    return tuple(sorted(levels)) if counts[stray].sum() <= STRAY * foreground else ()


def _hidden(
    mask: np.ndarray, values: np.ndarray, counts: np.ndarray, levels: Sequence[int]
) -> tuple[int, ...]:
    """The values that are no levels but fill areas, 3 x 3 pixels and more, with ``LEAST`` of the
    foreground.
    """
    least = LEAST * max(1, counts[np.abs(values - values[counts.argmax()]) > RINGING].sum())
    often = set(values[counts >= least].tolist()).difference(levels)
    if not often:
        return ()
    size = (3, 3, 1)[: mask.ndim]
    flat, areas = _histogram(mask[minimum_filter(mask, size) == maximum_filter(mask, size)])
    return tuple(
        int(value) for value, area in zip(flat.tolist(), areas) if value in often and area >= least
    )


def _usual(level: int) -> int:
    """The grey level in common use that JPEG has moved to ``level``."""
    return next((usual for usual in (0, 128, 255) if abs(level - usual) <= RINGING), level)


def _nearest(pixels: np.ndarray, levels: Sequence[int]) -> np.ndarray:
    bounds = (np.array(levels[1:]) + np.array(levels[:-1])) / 2
    return np.array(levels)[np.digitize(pixels.astype(float), bounds)]


def _depth(mask: np.ndarray, levels: Sequence[int], background: int) -> dict[int, float]:
    """How deep inside the foreground each level lies, on a grid that tells a ring from what it
    surrounds.
    """
    if len(levels) < 3:
        return {level: 0.0 for level in levels if level != background}
    step = max(1, max(mask.shape[:2]) // GRID)
    coarse = np.pad(_nearest(mask[::step, ::step], levels), 1, constant_values=background)
    distance = distance_transform_edt(coarse != background)
    return {
        v: float(distance[coarse == v].mean())
        for v in levels
        if v != background and (coarse == v).any()
    }


def combine(codings: Sequence[Coding], structures: Sequence[str], site: str = "") -> Values:
    """The value map of a site, from the codings of its masks.

    Args:
        codings: of all masks.
        structures: names, the outermost first; each lies inside the one before it.
        site: for errors.

    Returns:
        Structure -> ``[lowest, highest]``; an outer structure includes the inner ones, and one that
        no mask shows is absent.

    Raises:
        DataError: masks that cannot be read so or that disagree; names the file, its values and the
            fix.

    >>> combine([Coding("7.png", (0, 128, 255), 0, {128: 2.0, 255: 9.0})], ["disc", "cup"])
    {'disc': [64, 255], 'cup': [192, 255]}
    """
    most = max(2, len(structures))
    kinds = Counter(coding.foreground for coding in codings if 0 < len(coding.foreground) <= most)
    covered = {kind: sum(n for other, n in kinds.items() if other <= kind) for kind in kinds}
    levels = max(
        kinds, key=lambda kind: (covered[kind], -len(kind), sorted(kind)), default=frozenset()
    )
    ground = Counter(
        coding.background for coding in codings if coding.levels and coding.foreground <= levels
    )
    usual = ground.most_common(1)[0][0] if ground else 0
    nested = [coding for coding in codings if coding.foreground == levels]
    order = sorted(levels, key=lambda level: sum(coding.depth.get(level, 0.0) for coding in nested))
    for coding in codings:
        if problem := _disagrees(coding, order, usual, most):
            hand = ", ".join(f"'{name}': [lowest, highest]" for name in structures)
            raise DataError(
                f"{site}: {coding.file} {problem}. Convert it, or give values={{{hand}}} by hand: the pixel values that"
                " belong to each structure in all masks of the site."
            )
    if not order:
        raise DataError(f"{site}: all masks are empty. Check that the right files were exported.")
    return {
        name: _interval(order[i:], [*order, usual], site)
        for i, name in enumerate(structures[: len(order)])
    }


def _disagrees(coding: Coding, order: Sequence[int], background: int, most: int) -> str:
    """Why a mask is not coded as ``background`` and ``order`` (the outermost level first) say;
    empty when it is.
    """
    usual = f"the other masks have {background} outside and {' around '.join(map(str, order)) or 'nothing'} inside"
    if not coding.levels:
        return f"has {coding.colours} different values that do not gather at a few levels"
    if coding.hidden:
        every, near = sorted({*coding.levels, *coding.hidden}), ", ".join(map(str, coding.hidden))
        return f"has the values {every}, of which {near} could be the noise of JPEG but fill whole areas"
    found = f"has the values {list(coding.levels)}"
    if len(coding.foreground) > most:
        return f"{found}, more than background and {most} nested structures have"
    if coding.background != background:
        return f"{found} with {coding.background} along its border, where {usual}"
    if coding.foreground != set(order[: len(coding.foreground)]):
        return f"{found}, where {usual}"
    depth = [coding.depth.get(level, 0.0) for level in order[: len(coding.foreground)]]
    if any(outer > 1.5 * inner for outer, inner in zip(depth, depth[1:])):
        return f"{found} nested the other way round, where {usual}"
    return ""


def _interval(members: Sequence[int], levels: Sequence[int], site: str) -> list[int]:
    """Closed interval of the pixel values nearest to ``members``."""
    low, high = min(members), max(members)
    outer, *inner, background = levels
    if background > DOFE[1] >= outer > DOFE[0] and all(level <= DOFE[0] for level in inner):
        return [0, DOFE[1] if high == outer else DOFE[0]]
    below, above = [v for v in levels if v < low], [v for v in levels if v > high]
    if set(range(low, high + 1)) & set(levels) - set(members):
        raise DataError(
            f"{site}: masks have {levels[-1]} outside and {' around '.join(map(str, levels[:-1]))} inside, which no"
            " interval separates from the background. Convert the masks."
        )
    top = high if high < INDICES or high > 255 else 255
    return [
        math.ceil((max(below) + low) / 2) if below else 0,
        math.ceil((min(above) + high) / 2) - 1 if above else top,
    ]


def recognise(files: Sequence[str], structures: Sequence[str], site: str = "") -> Values:
    """Read all masks of a site, a few at a time, and :func:`combine` their codings."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return combine(list(pool.map(_coding_in, files)), structures, site)


def _coding_in(file: str) -> Coding:
    """Coding of a mask file, read once a process: the clients of a pool share their files."""
    try:
        state = os.stat(file)
    except OSError:
        return coding_of(read(file), file)  # which says what is wrong with it
    return _coding_of_version(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _coding_of_version(file: str, changed: int, size: int) -> Coding:
    return coding_of(read(file), file)


def check_values(
    values: Mapping[str, Sequence[int]], structures: Sequence[str], site: str = ""
) -> Values:
    """Values given by hand, as they go into a data list.

    Raises:
        DataError: a name that is no structure, or no interval of pixel values.

    >>> check_values({"disc": (1, 2)}, ["disc", "cup"])
    {'disc': [1, 2]}
    """
    for name, bounds in values.items():
        usable = not isinstance(bounds, str) and isinstance(bounds, Sequence) and len(bounds) == 2
        if structures and name not in structures:
            raise DataError(
                f"{site}: values name {name!r}, but the structures are {list(structures)}. Use their names."
            )
        if not usable or not bounds[0] <= bounds[1]:
            raise DataError(
                f"{site}: values of {name!r} are {bounds!r}. Give [lowest, highest], as [128, 255]."
            )
    return {name: [int(bounds[0]), int(bounds[1])] for name, bounds in values.items()}
