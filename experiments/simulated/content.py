# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a label holds: one number of a case, by which a pool of cases is ranked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from monai.data import MetaTensor, PILReader
from monai.transforms import LoadImage

from monai_fairfl.data.image_files import is_nifti
from monai_fairfl.data.transforms import grey_levels
from monai_fairfl.errors import DataError
from monai_fairfl.metrics.segmentation import vertical_cup_to_disc_ratio

Ranges = tuple[tuple[str, float, float], ...]
"""Name, lowest and highest pixel value of each structure."""


def structure_size(case: Mapping[str, Any]) -> float:
    """Size of what is labelled: mm³ of a NIfTI volume, else the share of pixels (0 to 1).

    Photographs carry no pixel size, and cameras differ in resolution, so the number of their pixels
    is no size.

    Args:
        case: the file ``label``; what is labelled has a value within one of the ranges of
            ``values``, or without these a value above 0.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, find_cases, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(48, 48, 8), cases=1)
    >>> 1000 < structure_size(find_cases(f"{root}/alder")[0]) < 200000
    True
    """
    return _structure_size(str(case["label"]), _ranges(case))


def cup_to_disc_ratio(case: Mapping[str, Any]) -> float:
    """Vertical cup-to-disc ratio of a fundus label, 0 to 1.

    See :mod:`monai_fairfl.metrics.segmentation`.

    Args:
        case: the file ``label``, and ``values`` with the ranges of ``disc`` and ``cup``.

    Raises:
        DataError: the case has no disc, or its cup is not labelled.

    >>> import tempfile
    >>> import numpy as np
    >>> from PIL import Image
    >>> file = f"{tempfile.mkdtemp()}/eye.png"
    >>> mask = np.array([[0, 1, 0], [0, 2, 0], [0, 1, 0], [0, 1, 0]], np.uint8)
    >>> Image.fromarray(mask).save(file)
    >>> cup_to_disc_ratio({"label": file, "values": {"disc": [1, 2], "cup": [2, 2]}})
    0.25
    """
    return _cup_to_disc_ratio(str(case["label"]), _ranges(case))


def _ranges(case: Mapping[str, Any]) -> Ranges:
    """The values of a case in a form that a cache takes."""
    values = case.get("values") or {}
    return tuple((name, float(low), float(high)) for name, (low, high) in values.items())


# The results are cached, because every client of a federation in one process asks for the same
# labels.
@cache
def _structure_size(file: str, ranges: Ranges) -> float:
    label = _read(file)
    inside = [(label >= low) & (label <= high) for _, low, high in ranges]
    if not inside:
        inside = [label > 0]
    is_labelled = torch.stack(inside).any(0)
    if is_nifti(file):
        return float(is_labelled.sum() * label.pixdim.prod())
    return float(is_labelled.float().mean())


@cache
def _cup_to_disc_ratio(file: str, ranges: Ranges) -> float:
    label = _read(file)
    intervals = {name: (low, high) for name, low, high in ranges}
    ratio = math.nan
    if "disc" in intervals and "cup" in intervals:
        masks = []
        for name in ("disc", "cup"):
            low, high = intervals[name]
            masks.append((label >= low) & (label <= high))
        ratio = vertical_cup_to_disc_ratio(torch.stack(masks).float())
    if math.isnan(ratio):
        raise DataError(
            f"{file} has no disc, or its cup is not labelled: leave its site out, or rank by"
            " structure_size."
        )
    return ratio


def _read(file: str) -> MetaTensor:
    reader = None if is_nifti(file) else PILReader(converter=grey_levels)
    label: MetaTensor = LoadImage(reader=reader, image_only=True)(file)
    return label
