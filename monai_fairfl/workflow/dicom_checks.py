# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a DICOM series can be segmented: its kind, its grid, and the places of its slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from monai.utils import optional_import

from monai_fairfl.workflow.dicom_files import (
    GEOMETRY_TAGS,
    OWNER_TAGS,
    HeaderedFile,
    frame_count,
)
from monai_fairfl.workflow.volume_geometry import normal, spacing_problem

EXTRA = "pip install 'monai-fairfl[dicom]'"
FEWEST_SLICES = 3  # below, it is a localiser
MOST_VALUES = 2  # that a message lists


def check_series(
    files: Sequence[HeaderedFile], modality: str
) -> tuple[list[HeaderedFile], str | None]:
    """Sort the files of a series by the order of their slices, and check that they can be used.

    Args:
        files: of the series, in any order.
        modality: that they must have.

    Returns:
        The sorted files, and why they cannot be used, if so.
    """
    headers = [file.header for file in files]
    problem = _kind_problem(headers, modality) or _owner_problem(headers)
    has_frames = frame_count(files[0].header) > 1
    if problem or has_frames:
        return list(files), problem  # the geometry of frames is highdicom's to check
    problem = _grid_problem(files)
    if problem:
        return list(files), problem

    # The place of a slice is its position along the normal of the slices.
    normal_of_slices = normal(np.array(files[0].header.ImageOrientationPatient, dtype=float))
    positions = np.array([file.header.ImagePositionPatient for file in files], dtype=float)
    order = np.argsort(positions @ normal_of_slices, kind="stable")
    in_order = [files[index] for index in order]
    names = [file.path.name for file in in_order]
    return in_order, spacing_problem(positions[order], names)


def _kind_problem(headers: Sequence[Any], modality: str) -> str | None:
    """Return why these are not slices of the wanted kind."""
    modalities = sorted({str(header.get("Modality", "unknown")) for header in headers})
    if modalities != [modality]:
        found = ", ".join(modalities)
        return f"modality {found}, and this model reads {modality}; leave the series out"
    if any("LOCALIZER" in (header.get("ImageType") or ()) for header in headers):
        return "ImageType LOCALIZER; leave the series out"

    slices = sum(frame_count(header) for header in headers)
    if slices > len(headers) > 1:
        return "several files of several frames (NumberOfFrames); keep one of them"
    if slices > len(headers) and not optional_import("highdicom")[1]:
        return f"several frames in one file, which need highdicom to be read; {EXTRA}"
    if slices < FEWEST_SLICES:
        return (
            f"{slices} slice(s), fewer than {FEWEST_SLICES}, as of a localiser; leave the series "
            "out"
        )

    interpretations = {str(header.get("PhotometricInterpretation")) for header in headers}
    others = sorted(interpretations - {"MONOCHROME2"})
    if others:
        return (
            f"PhotometricInterpretation {', '.join(others)}, not MONOCHROME2; leave the series out"
        )
    return None


def _owner_problem(headers: Sequence[Any]) -> str | None:
    """Return why these are images of several patients, studies or frames of reference.

    An anonymiser that gives every series the same UID makes such a series. Values that are empty or
    not there are left out: de-identification removes them.
    """
    for tag in OWNER_TAGS:
        values = sorted({str(header.get(tag) or "") for header in headers} - {""})
        if len(values) < 2:
            continue
        found = f"{len(values)} values of {tag}"
        # A PatientID would name patients in the table and the log.
        if tag != "PatientID":
            more = ["..."] if len(values) > MOST_VALUES else []
            found = f"{found} ({', '.join([*values[:MOST_VALUES], *more])})"
        return (
            f"{found} under one SeriesInstanceUID, so that images of several series would be one "
            "volume; export each series with a SeriesInstanceUID of its own"
        )
    return None


def _grid_problem(files: Sequence[HeaderedFile]) -> str | None:
    """Return why these slices have no common grid in plane."""
    for path, header in files:
        missing = [tag for tag in GEOMETRY_TAGS if header.get(tag) in (None, "")]
        if missing:
            return (
                f"{path.name} lacks {', '.join(missing)}; send the series again, with its geometry"
            )
    headers = [file.header for file in files]
    sizes = {(header.Rows, header.Columns) for header in headers}
    if len(sizes) > 1:
        return "slices of different Rows and Columns; send them as separate series"

    spacings = np.array([header.PixelSpacing for header in headers], dtype=float)
    if not (spacings > 0).all() or not np.allclose(spacings, spacings[0], rtol=1e-3):
        return (
            f"PixelSpacing from {spacings.min():.4g} to {spacings.max():.4g} mm; send one series "
            "per grid"
        )

    orientations = np.array([header.ImageOrientationPatient for header in headers], dtype=float)
    # The normal of two perpendicular unit vectors is a unit vector; not a number is none.
    is_unit = abs(np.linalg.norm(normal(orientations[0])) - 1) < 1e-2
    if not is_unit:
        return (
            f"ImageOrientationPatient {orientations[0].tolist()} are no perpendicular unit "
            "vectors; export it again"
        )
    if not np.allclose(orientations, orientations[0], atol=1e-3):
        return (
            "slices of different ImageOrientationPatient, as of a localiser; send one series per "
            "orientation"
        )
    return None
