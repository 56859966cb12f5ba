# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which pixel values of a site's masks are which structure, read from the masks themselves."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from numbers import Real

from monai_fairfl.data.layouts.coding import INDICES, Coding, coding_of
from monai_fairfl.data.layouts.image_files import WORKERS, read
from monai_fairfl.errors import DataError

Values = dict[str, list[int]]
"""Structure -> lowest and highest pixel value that belongs to it, both included."""

# DoFE's masks are bright outside. These are the published upper bounds of cup and rim.
DOFE_CUP = 50
DOFE_RIM = 200
# An outer structure that lies deeper than this times the inner one is nested the other way round.
MOST_DEPTH_RATIO = 1.5


def recognise(files: Sequence[str], structures: Sequence[str], site: str = "") -> Values:
    """Read all masks of a site, a few at a time, and :func:`combine` their codings."""
    with ThreadPoolExecutor(WORKERS) as pool:
        codings = list(pool.map(_coding_in, files))
    return combine(codings, structures, site)


def _coding_in(file: str) -> Coding:
    """Coding of a mask file, read once a process: the clients of a pool share their files."""
    try:
        state = os.stat(file)
    except OSError:
        # Reading the file raises the error that names it.
        return coding_of(read(file), file)
    return _coding_of_version(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _coding_of_version(file: str, changed: int, size: int) -> Coding:
    return coding_of(read(file), file)


def combine(codings: Sequence[Coding], structures: Sequence[str], site: str = "") -> Values:
    """Make the value map of a site from the codings of its masks.

    Args:
        codings: of all masks.
        structures: names, the outermost first; each lies inside the one before it.
        site: for errors.

    Returns:
        Structure -> ``[lowest, highest]``; an outer structure includes the inner ones, and one that
        no mask shows is absent.

    Raises:
        DataError: masks that cannot be read so or that disagree; the error names the file, its
            values and the fix.

    >>> combine([Coding("7.png", (0, 128, 255), 0, {128: 2.0, 255: 9.0})], ["disc", "cup"])
    {'disc': [64, 255], 'cup': [192, 255]}
    """
    most_levels = max(2, len(structures))
    levels = _levels_of_most_masks(codings, most_levels)
    background = _background_of_most_masks(codings, levels)
    outermost_first = _from_outside_to_inside(codings, levels)
    for coding in codings:
        disagreement = _disagreement(coding, outermost_first, background, most_levels)
        if disagreement:
            example = ", ".join(f"'{name}': [lowest, highest]" for name in structures)
            raise DataError(
                f"{site}: {coding.file} {disagreement}. Convert it, or give values={{{example}}} by"
                " hand: the pixel values that belong to each structure in all masks of the site."
            )
    if not outermost_first:
        raise DataError(f"{site}: all masks are empty. Check that the right files were exported.")
    values = {}
    for position, name in enumerate(structures[: len(outermost_first)]):
        members = outermost_first[position:]
        values[name] = _interval(members, outermost_first, background, site)
    return values


def _levels_of_most_masks(codings: Sequence[Coding], most_levels: int) -> frozenset[int]:
    """The set of foreground levels that covers the levels of most masks.

    Among sets that cover as many masks, the smaller one is taken.
    """
    masks_with: Counter[frozenset[int]] = Counter()
    for coding in codings:
        if 0 < len(coding.foreground) <= most_levels:
            masks_with[coding.foreground] += 1

    def preference(levels: frozenset[int]) -> tuple[int, int, list[int]]:
        covered = sum(count for other, count in masks_with.items() if other <= levels)
        return covered, -len(levels), sorted(levels)

    return max(masks_with, key=preference, default=frozenset())


def _background_of_most_masks(codings: Sequence[Coding], levels: frozenset[int]) -> int:
    masks_with: Counter[int] = Counter()
    for coding in codings:
        if coding.levels and coding.foreground <= levels:
            masks_with[coding.background] += 1
    if not masks_with:
        return 0
    return masks_with.most_common(1)[0][0]


def _from_outside_to_inside(codings: Sequence[Coding], levels: frozenset[int]) -> list[int]:
    """The levels by their depth in the masks that show all of them."""
    complete = [coding for coding in codings if coding.foreground == levels]
    return sorted(
        levels, key=lambda level: sum(coding.depth.get(level, 0.0) for coding in complete)
    )


def _disagreement(
    coding: Coding, outermost_first: Sequence[int], background: int, most_levels: int
) -> str:
    """Why a mask is not coded as the others are; empty when it is.

    Args:
        coding: of the mask.
        outermost_first: foreground levels of the other masks.
        background: of the other masks.
        most_levels: number of foreground levels that a mask may have.
    """
    if not coding.levels:
        return f"has {coding.colours} different values that do not gather at a few levels"
    if coding.hidden:
        every_value = sorted({*coding.levels, *coding.hidden})
        hidden = ", ".join(str(value) for value in coding.hidden)
        return (
            f"has the values {every_value}, of which {hidden} could be the noise of JPEG but fill"
            " whole areas"
        )
    found = f"has the values {list(coding.levels)}"
    if len(coding.foreground) > most_levels:
        return f"{found}, more than background and {most_levels} nested structures have"
    inside = " around ".join(str(level) for level in outermost_first) or "nothing"
    others = f"the other masks have {background} outside and {inside} inside"
    if coding.background != background:
        return f"{found} with {coding.background} along its border, where {others}"
    # A mask may lack inner structures, not outer ones.
    expected = outermost_first[: len(coding.foreground)]
    if coding.foreground != set(expected):
        return f"{found}, where {others}"
    depths = [coding.depth.get(level, 0.0) for level in expected]
    for outer, inner in zip(depths, depths[1:]):
        if outer > MOST_DEPTH_RATIO * inner:
            return f"{found} nested the other way round, where {others}"
    return ""


def _interval(
    members: Sequence[int], outermost_first: Sequence[int], background: int, site: str
) -> list[int]:
    """Closed interval of the pixel values that are nearest to ``members``."""
    low = min(members)
    high = max(members)
    outer = outermost_first[0]
    inner = outermost_first[1:]
    is_dofe = background > DOFE_RIM >= outer > DOFE_CUP
    is_dofe = is_dofe and all(level <= DOFE_CUP for level in inner)
    if is_dofe and high == outer:
        return [0, DOFE_RIM]
    if is_dofe:
        return [0, DOFE_CUP]

    others = {*outermost_first, background} - set(members)
    if any(low <= level <= high for level in others):
        inside = " around ".join(str(level) for level in outermost_first)
        raise DataError(
            f"{site}: masks have {background} outside and {inside} inside, which no interval"
            " separates from the background. Convert the masks."
        )
    # Half-way to the nearest level below, or from 0.
    lower_bound = 0
    below = [level for level in others if level < low]
    if below:
        lower_bound = math.ceil((max(below) + low) / 2)
    # Half-way to the nearest level above, or up to the highest grey level.
    upper_bound = 255 if INDICES <= high <= 255 else high
    above = [level for level in others if level > high]
    if above:
        upper_bound = math.ceil((min(above) + high) / 2) - 1
    return [lower_bound, upper_bound]


def check_values(
    values: Mapping[str, Sequence[int]], structures: Sequence[str], site: str = ""
) -> Values:
    """Check values given by hand, and convert them to what a data list stores.

    Raises:
        DataError: a name that is no structure, or no interval of whole pixel values.

    >>> check_values({"disc": (1, 2)}, ["disc", "cup"])
    {'disc': [1, 2]}
    """
    checked = {}
    for name, bounds in values.items():
        if structures and name not in structures:
            raise DataError(
                f"{site}: values name {name!r}, but the structures are {list(structures)}. Use"
                " their names."
            )
        if not _is_interval(bounds):
            raise DataError(
                f"{site}: values of {name!r} are {bounds!r}. Give [lowest, highest], whole numbers"
                " such as [128, 255]."
            )
        checked[name] = [int(bounds[0]), int(bounds[1])]
    return checked


def _is_interval(bounds: object) -> bool:
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        return False
    # A half would be cut off: from 0.5 on would be from 0 on, with the background.
    if not all(isinstance(bound, Real) and bound % 1 == 0 for bound in bounds):
        return False
    return bool(bounds[0] <= bounds[1])
