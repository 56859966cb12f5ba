# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What somebody should look at: masks at the border of the field, and volumes unlike the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import Orientation

from monai_fairfl.workflow.cases import Case, CaseOutput, Cases

LEAST_CASES = 5
"""With fewer volumes the median of a batch says little of any of them."""

MOST_DEVIATIONS = 3.5
"""Robust deviations from the median (Iglewicz and Hoaglin, *How to Detect and Handle Outliers*,
1993).
"""

LEAST_FACTOR = 1.5
"""A volume within this factor of the median is not reported, however alike the others are."""

MOST_FACTOR = 3.0
"""One beyond this factor of the median is reported, however unlike the others are."""

DEVIATION_OF_MAD = 1.4826
"""Standard deviations in a median absolute deviation of a normal distribution."""

SIDES_OF_VOLUME = (("right", "left"), ("anterior", "posterior"))
"""The two ends of each in-plane axis, towards left and posterior."""

SIDES_OF_PHOTOGRAPH = (("left", "right"), ("upper", "lower"))


class CheckBorderd(CaseOutput):
    """Notes a mask that touches the border of what the network saw: it may be cut off there.

    Into the case's line of the table go ``flags``, texts. Of a volume the field is the central
    share of each slice, and the stack's first and last slices are borders too.

    Args:
        keys: of the masks, ``(1, x, y[, z])`` on the grid of the image.
        cases: of the run.
        field_of_view: central share of the image in plane, above 0 and up to 1.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> import tempfile
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.zeros(1, 10, 10, 4))
    >>> mask.meta["filename_or_obj"] = "a.nii"
    >>> mask[0, 4:8, 4:6, 1] = 1  # the field is 2 to 8
    >>> cases = Cases([case], tempfile.mkdtemp() + "/volumes.json")
    >>> _ = CheckBorderd("pred", cases, field_of_view=0.6)({"pred": mask})
    >>> print(case.results["flags"][0])
    the mask touches the border of the field (right), the central 60 % of the image: look at it
    """

    def __init__(self, keys: KeysCollection, cases: Cases, field_of_view: float = 1.0):
        super().__init__(keys, cases)
        self.field_of_view = field_of_view

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        inside = (pred > 0).cpu()
        is_volume = inside.ndim == 4
        if is_volume:
            # The field was cut out in this order of the axes.
            inside = Orientation(axcodes="LPS", labels=None)(inside)
        mask = np.asarray(torch.as_tensor(inside)[0])
        flags = list(case.results.get("flags", []))
        if mask.any():
            sides = SIDES_OF_VOLUME if is_volume else SIDES_OF_PHOTOGRAPH
            flags += self._about_field(mask, sides)
        if mask.any() and is_volume and mask.shape[2] > 1:
            flags += _about_stack(mask)
        return {"flags": flags} if flags else {}

    def _about_field(self, mask: np.ndarray, sides: Sequence[tuple[str, str]]) -> list[str]:
        touched = []
        for axis, (low, high) in enumerate(sides):
            first, last = _field(mask.shape[axis], self.field_of_view)
            if mask.take(first, axis).any():
                touched.append(low)
            if mask.take(last, axis).any():
                touched.append(high)
        if not touched:
            return []
        where = ", ".join(touched)
        field = f"the image ({where})"
        if self.field_of_view < 1:
            share = 100 * self.field_of_view
            field = f"the field ({where}), the central {share:.0f} % of the image"
        return [f"the mask touches the border of {field}: look at it"]


def _field(side: int, share: float) -> tuple[int, int]:
    """First and last index of the central share of an axis, as of MONAI's ``CenterScaleCrop``."""
    size = math.ceil(side * share)
    first = max(side // 2 - size // 2, 0)
    return first, min(first + size, side) - 1


def _about_stack(mask: np.ndarray) -> list[str]:
    ends = []
    if mask[..., 0].any():
        ends.append("lowest")
    if mask[..., -1].any():
        ends.append("highest")
    if not ends:
        return []
    return [
        f"the mask reaches the {' and the '.join(ends)} slice: the images may end within the organ"
    ]


def flag_volumes(cases: Sequence[Case]) -> str:
    """Note the cases whose volumes are unlike those of the batch.

    The model's recipe does not hold the volumes of its training: they are the hospitals' own. So
    each is compared with the median of the batch, by its logarithm. Volumes are products of three
    lengths, so half and twice the median are as unlike. Reported is what is more than
    :data:`MOST_DEVIATIONS` robust standard deviations away; what is within :data:`LEAST_FACTOR` of
    the median never is, and what is beyond :data:`MOST_FACTOR` always is.

    Args:
        cases: of the run; those without a mask are left out.

    Returns:
        A sentence: with what the volumes were compared.

    >>> def measured(name, millilitres):
    ...     return Case(name, "", results={"millilitres": millilitres, "voxel_size_mm": [1, 1, 3]})
    >>> volumes = [30.0, 34.0, 41.0, 38.0, 2.0]
    >>> cases = [measured(str(number), volume) for number, volume in enumerate(volumes)]
    >>> flag_volumes(cases)
    'Volumes are compared with the median of this batch, 34.0 ml.'
    >>> [case.name for case in cases if "flags" in case.results]
    ['4']
    >>> cases[4].results["flags"]
    ['2.0 ml is far below the median of this batch, 34.0 ml: look at it']
    """
    # A skipped DICOM series has results, too, such as its description, but no size.
    with_size = [case for case in cases if {"millilitres", "share"} & case.results.keys()]
    in_millilitres = all(has_real_spacing(case.results) for case in with_size)
    name = "millilitres" if in_millilitres else "share"
    measured = [case for case in with_size if case.results.get(name)]
    if len(measured) < LEAST_CASES:
        return (
            f"Volumes are not compared: that takes {LEAST_CASES} masks or more, here are "
            f"{len(measured)}."
        )
    sizes = [float(case.results[name]) for case in measured]
    middle = median(sizes)
    distances = [math.log(size / middle) for size in sizes]
    deviation = DEVIATION_OF_MAD * median([abs(distance) for distance in distances])
    limit = max(MOST_DEVIATIONS * deviation, math.log(LEAST_FACTOR))
    limit = min(limit, math.log(MOST_FACTOR))
    for case, size, distance in zip(measured, sizes, distances):
        if abs(distance) > limit:
            direction = "below" if distance < 0 else "above"
            text = (
                f"{size_words(size, in_millilitres)} is far {direction} the median of this batch, "
                f"{size_words(middle, in_millilitres)}: look at it"
            )
            case.results["flags"] = [*case.results.get("flags", []), text]
    compared = "Volumes" if in_millilitres else "Sizes"
    middle_words = size_words(middle, in_millilitres)
    return f"{compared} are compared with the median of this batch, {middle_words}."


def has_real_spacing(results: Mapping[str, Any]) -> bool:
    """Whether a case's voxels have a size in mm: 1 x 1 x 1 is what files without one say.

    >>> has_real_spacing({"voxel_size_mm": [0.6, 0.6, 3.0]})
    True
    >>> has_real_spacing({"voxel_size_mm": [1.0, 1.0, 1.0]}), has_real_spacing({})
    (False, False)
    """
    spacing = results.get("voxel_size_mm")
    return spacing is not None and any(side != 1 for side in spacing)


def size_words(size: float, in_millilitres: bool) -> str:
    """A volume in ml, or a share of the image in per cent.

    >>> size_words(41.26, True), size_words(0.0123, False)
    ('41.3 ml', '1.23 %')
    """
    if in_millilitres:
        return f"{size:.1f} ml"
    return f"{100 * size:.2f} %"
