# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Everything about a site's files that would stop a training later, found before it begins."""

from __future__ import annotations

import os
import warnings
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from monai_fairfl.data.datalist import Case, find_cases
from monai_fairfl.errors import DataError

__all__ = ["check_cases"]

AFFINE_TOLERANCE = 1e-2  # mm: a converter's rounding of a header is smaller, half a voxel is much larger


def _check_file(kind: str, path: str) -> tuple[Any, np.ndarray, list[str]]:
    """Header, values and problems of one file; None instead when it cannot be compared with its partner."""
    try:
        nifti = nib.load(path)
        values = np.asanyarray(nifti.dataobj)  # type: ignore[attr-defined]
    except (OSError, EOFError, ValueError, zlib.error, ImageFileError, HeaderDataError) as error:
        return None, np.empty(0), [f"{path} cannot be read as NIfTI ({error}); copy it again from its source"]
    if values.ndim != 3 or values.dtype.kind not in "biuf":
        found = f"{values.ndim}D with shape {values.shape} and type {values.dtype}"
        return None, values, [f"{path} is {found}; store one 3D volume of real numbers"]
    infinite = int(values.size - np.isfinite(values).sum())
    if infinite:
        return nifti, values, [f"{path} has {infinite} values that are not finite; convert it again"]
    if kind == "label":
        wrong = np.unique(values[(values < 0) | (values != np.round(values))])
        if wrong.size:
            return nifti, values, [f"{path} has label values such as {wrong[0]:g}; labels are whole numbers from 0"]
    return nifti, values, []


def _check_case(case: Case) -> tuple[list[str], dict[str, Any]]:
    """Problems of one case, or its line of the summary."""
    image, values, problems = _check_file("image", case["image"])
    label, mask, more = _check_file("label", case["label"])
    problems = problems + more
    if image is not None and label is not None:
        if values.shape != mask.shape:
            problems.append(f"{case['label']} has shape {mask.shape} but its image {values.shape}; resample the label")
        gap = float(np.abs(image.affine - label.affine).max())
        if not gap <= AFFINE_TOLERANCE:
            problems.append(
                f"{case['label']} and its image have affines up to {gap:.4g} apart (allowed: {AFFINE_TOLERANCE});"
                " check that the label belongs to this image, then give it the image's header"
            )
    if problems or image is None:
        return problems, {}
    return [], {
        "image": Path(case["image"]).name,
        "shape": list(values.shape),
        "spacing": [round(float(size), 4) for size in image.header.get_zooms()[:3]],
        "labels": np.unique(mask).astype(int).tolist(),
        "gland_slices": int((mask > 0).any(axis=(0, 1)).sum()),
    }


def check_cases(site_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Read every file of a site and report all that would stop a training later.

    Every file must be readable to its end and 3D, an image and its label of one shape and with affines that agree
    within 0.01 mm in every entry; images finite, labels whole numbers from 0. A case with an empty label is a warning;
    a site where all are empty is an error.

    Args:
        site_dir: folder of the site, see :func:`find_cases`.

    Returns:
        For JSON: ``site``, ``num_cases``, ``labels`` (values found), ``gland_slices`` (slices with a label above 0) and
        ``cases`` with ``image``, ``shape`` (voxels), ``spacing`` (mm), ``labels`` and ``gland_slices`` of each.

    Raises:
        DataError: with every problem of the site in one text.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> summary = check_cases(f"{root}/alder")
    >>> summary["num_cases"], summary["labels"]
    (2, [0, 1])
    """
    site_dir = Path(site_dir)
    results = [_check_case(case) for case in find_cases(site_dir)]
    problems = [problem for found, _ in results for problem in found]
    lines = [line for _, line in results if line]
    empty = [line["image"] for line in lines if not line["gland_slices"]]
    if lines and len(empty) == len(results):
        problems.append(f"all {len(empty)} labels are empty; check that the right label files were exported")
    if problems:
        raise DataError(f"{site_dir}: {len(problems)} problem(s)\n" + "\n".join(f"- {problem}" for problem in problems))
    for name in empty:
        warnings.warn(f"{site_dir / name}: its label is empty; the case is kept", stacklevel=2)
    labels = sorted({value for line in lines for value in line["labels"]})
    slices = sum(line["gland_slices"] for line in lines)
    return {"site": site_dir.name, "num_cases": len(lines), "labels": labels, "gland_slices": slices, "cases": lines}
