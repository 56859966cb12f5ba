# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which pixel values of a site's masks are which structure: given, or found in the masks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Real

from monai_fairfl.data.file_facts import HIGHEST_CLASS, FileFacts, label_facts
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.data.layouts.image_files import WORKERS
from monai_fairfl.errors import DataError

Values = dict[str, list[int]]
"""Structure -> lowest and highest pixel value that belongs to it, both included."""

# DoFE's masks are bright outside. These are the published upper bounds of cup and rim.
DOFE_CUP = 50
DOFE_RIM = 200
# An inner structure whose box is larger than this times the outer one's is nested the other way.
MOST_EXTENT_RATIO = 1.5


def with_values(
    parts: Mapping[str, list[CaseFiles]],
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]] | None,
    site: str,
) -> dict[str, list[CaseFiles]]:
    """Give each case the pixel values of its structures.

    Args:
        parts: the cases of a data list; some may have values.
        structures: names, the outermost first; empty: cases need no values.
        values: given by hand; ``None``: found in the masks of the cases that have none.
        site: for errors.

    Raises:
        DataError: a case has other values than those given, or the masks' values cannot be
            distinguished.
    """
    cases = all_cases(parts)
    labels = [case["label"] for case in cases if "values" not in case]
    given: Values = {}
    if values:
        given = check_values(values, structures, site)
        for case in cases:
            if case.get("values", given) != given:
                raise DataError(
                    f"{site} has {case['values']} for {case['label']}, not {given}. Delete it, or"
                    " give no values."
                )
    elif structures and labels:
        given = values_of_files(labels, structures, site)
    if not given:
        return dict(parts)
    completed: dict[str, list[CaseFiles]] = {}
    for part, members in parts.items():
        completed[part] = [{**case, "values": case.get("values", given)} for case in members]
    return completed


def check_stored_values(
    parts: Mapping[str, Sequence[CaseFiles]], structures: Sequence[str], file: str
) -> None:
    """Refuse a data list whose masks were coded in another way after it was written.

    A training would find its structures nowhere.

    Args:
        parts: the cases of the list.
        structures: names, the outermost first.
        file: the list, for errors.

    Raises:
        DataError: the values of a case are not those of the masks.
    """
    cases = [case for case in all_cases(parts) if "values" in case]
    if not cases:
        return
    found = values_of_files([case["label"] for case in cases], structures, file)
    for case in cases:
        stored = {name: case["values"][name] for name in structures if name in case["values"]}
        if stored != found:
            raise DataError(
                f"{file} has {case['values']} for {case['label']}, but in the masks {found} is"
                " found now. Delete it to have it rebuilt, with another split if cases came or"
                " went; else write what is found into it. If what it has is right, give"
                f" values={case['values']} by hand."
            )


def values_of_files(files: Sequence[str], structures: Sequence[str], site: str) -> Values:
    """Read all masks of a site, a few at a time, and find the :func:`values_of_masks`."""
    with ThreadPoolExecutor(WORKERS) as pool:
        masks = list(pool.map(label_facts, files))
    for mask in masks:
        if mask.problem:
            raise DataError(f"{site}: {mask.problem}. {_by_hand(structures)}")
    return values_of_masks(masks, structures, site)


def values_of_masks(
    masks: Sequence[FileFacts], structures: Sequence[str], site: str = ""
) -> Values:
    """Make the value map of a site.

    The background is the value along the sides of most masks. The larger the box around a value,
    the further outside is its structure.

    Args:
        masks: all of them, without problems.
        structures: names, the outermost first; each lies inside the one before it.
        site: for errors.

    Returns:
        Structure -> ``[lowest, highest]``; an outer structure includes the inner ones, and one that
        no mask shows is absent.

    Raises:
        DataError: masks that cannot be read so or that disagree; the error names the file, its
            values and the fix.

    >>> mask = FileFacts("7.png", labels=(0, 128, 255), extents={0: 99, 128: 50, 255: 9})
    >>> values_of_masks([mask], ["disc", "cup"])
    {'disc': [64, 255], 'cup': [192, 255]}
    """
    most_levels = max(2, len(structures))
    masks_with = Counter(_foreground(mask) for mask in masks)

    # The values that cover those of most masks; of several such sets the smallest.
    def preference(levels: frozenset[int]) -> tuple[int, int, list[int]]:
        covered = sum(count for other, count in masks_with.items() if other and other <= levels)
        return covered, -len(levels), sorted(levels)

    candidates = [levels for levels in masks_with if 0 < len(levels) <= most_levels]
    levels = max(candidates, key=preference, default=frozenset())
    backgrounds = Counter(mask.background for mask in masks if _foreground(mask) <= levels)
    background = backgrounds.most_common(1)[0][0] if backgrounds else 0
    complete = [mask for mask in masks if _foreground(mask) == levels]
    outermost_first = sorted(
        levels, key=lambda level: -sum(mask.extents[level] for mask in complete)
    )
    for mask in masks:
        disagreement = _disagreement(mask, outermost_first, background, most_levels)
        if disagreement:
            raise DataError(
                f"{site}: {mask.path} has the values {list(mask.labels)}{disagreement}."
                f" {_by_hand(structures)}"
            )
    if not outermost_first:
        raise DataError(f"{site}: all masks are empty. Check that the right files were exported.")
    values = {}
    for position, name in enumerate(structures[: len(outermost_first)]):
        members = outermost_first[position:]
        values[name] = _interval(members, outermost_first, background, site)
    return values


def _foreground(mask: FileFacts) -> frozenset[int]:
    return frozenset(mask.labels) - {mask.background}


def _by_hand(structures: Sequence[str]) -> str:
    example = ", ".join(f"'{name}': [lowest, highest]" for name in structures)
    return (
        f"Convert it, or give values={{{example}}} by hand: the pixel values that belong to each"
        " structure in all masks of the site."
    )


def _disagreement(
    mask: FileFacts, outermost_first: Sequence[int], background: int, most_levels: int
) -> str:
    """Why a mask is not coded as the others are; empty when it is.

    Args:
        mask: one of the site's.
        outermost_first: foreground levels of the other masks.
        background: of the other masks.
        most_levels: number of foreground levels that a mask may have.
    """
    foreground = _foreground(mask)
    if len(foreground) > most_levels:
        return f", more than background and {most_levels} nested structures have"
    inside = " around ".join(str(level) for level in outermost_first) or "nothing"
    others = f"where the other masks have {background} outside and {inside} inside"
    if mask.background != background:
        return f" with {mask.background} along its border, {others}"
    # A mask may lack inner structures, not outer ones.
    expected = outermost_first[: len(foreground)]
    if foreground != set(expected):
        return f", {others}"
    extents = [mask.extents[level] for level in expected]
    for outer, inner in zip(extents, extents[1:]):
        if inner > MOST_EXTENT_RATIO * outer:
            return f" nested the other way round, {others}"
    return ""


def _interval(
    members: Sequence[int], outermost_first: Sequence[int], background: int, site: str
) -> list[int]:
    """Closed interval of the pixel values that are nearest to ``members``."""
    low = min(members)
    high = max(members)
    outer = outermost_first[0]
    if background > DOFE_RIM >= outer > DOFE_CUP >= max(outermost_first[1:], default=0):
        return [0, DOFE_RIM if high == outer else DOFE_CUP]

    others = {*outermost_first, background} - set(members)
    if any(low <= level <= high for level in others):
        inside = " around ".join(str(level) for level in outermost_first)
        raise DataError(
            f"{site}: masks have {background} outside and {inside} inside, which no interval"
            " separates from the background. Convert the masks."
        )
    # Half-way to the nearest levels below and above, or from 0, or up to the highest grey level.
    highest = 255 if HIGHEST_CLASS < high <= 255 else high
    below = [math.ceil((level + low) / 2) for level in others if level < low]
    above = [math.ceil((level + high) / 2) - 1 for level in others if level > high]
    return [max(below, default=0), min(above, default=highest)]


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
