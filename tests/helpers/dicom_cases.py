# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A small volume for DICOM series, and the cases that inference finds in a folder."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np

from monai_fairfl.workflow import Case, Cases, find_images

# Slices, rows, columns.
VOLUME = np.random.default_rng(0).integers(-200, 3000, (6, 10, 14)).astype(np.int16)
# Columns, rows, slices: as an image of VOLUME is loaded.
VOXELS = VOLUME.transpose(2, 1, 0)


def found(folder: Path, **settings: str) -> Cases:
    return find_images(folder, folder.parent / "out" / "volumes.json", **settings)


def only(cases: Cases) -> Case:
    (case,) = cases
    return case


def loaded(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels and affine of an image."""
    image = nib.Nifti1Image.from_filename(path)
    return np.asanyarray(image.dataobj), image.affine


def save_nifti(path: Path) -> None:
    """Write the volume as NIfTI."""
    nib.save(nib.Nifti1Image(VOLUME.astype(np.float32), np.eye(4)), path)
