# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where NIfTI headers place a volume: their two forms, its plane, and a mask with its forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data.utils import affine_to_spacing

from monai_fairfl.data.image_files import (
    forms_fault,
    has_qform,
    has_sform,
    largest_shift,
)
from monai_fairfl.workflow.volume_geometry import plane_remark

SAME_GRID = 0.1  # mm between the grid of a mask and that of its volume
# The axis of slices is the one of this many times the spacing of the others.
FACTOR_OF_SLICES = 1.5
# Of a header: all that places its volume, with the sizes of its voxels.
FORM_FIELDS = (
    "qform_code",
    "sform_code",
    "quatern_b",
    "quatern_c",
    "quatern_d",
    "qoffset_x",
    "qoffset_y",
    "qoffset_z",
    "srow_x",
    "srow_y",
    "srow_z",
)


def orientation_remarks(path: str | Path) -> list[str]:
    """Return what somebody should know of the orientation of a NIfTI volume.

    Args:
        path: of a volume that can be read.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/a.nii"
    >>> nib.save(nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), file)
    >>> orientation_remarks(file)
    []
    """
    nifti: Any = nib.load(path)
    affine = nifti.affine
    remarks = []
    if not has_sform(nifti) and not has_qform(nifti):
        axes = "".join(nib.aff2axcodes(affine))
        remarks.append(
            f"no orientation stored (sform_code and qform_code are 0); it is taken for {axes}: look"
            " at the overlay, and convert it again with its orientation"
        )
    elif fault := forms_fault(nifti):
        remarks.append(f"it {fault}; the sform is used here: look at the overlay")
    if remark := plane_remark(affine[:3, _stacking_axis(affine)]):
        remarks.append(remark)
    return remarks


def _stacking_axis(affine: np.ndarray) -> int:
    """Return the axis of a volume along which its slices are stacked.

    A header seldom stores it. It is the axis of by far the largest spacing; else the third one, as
    converters from DICOM write it.

    >>> _stacking_axis(np.diag([0.5, 3.0, 0.5, 1.0])), _stacking_axis(np.eye(4))
    (1, 2)
    """
    spacing = affine_to_spacing(affine)
    coarsest = int(spacing.argmax())
    others = np.delete(spacing, coarsest)
    if spacing[coarsest] > FACTOR_OF_SLICES * others.max():
        return coarsest
    return 2


def mask_of_volume(labels: np.ndarray, affine: np.ndarray, volume: str | Path) -> nib.Nifti1Image:
    """Make a mask that every program places on its volume.

    Programs choose between a header's sform and qform by rules of their own. So the mask gets both
    of the volume, with their codes. A mask on another grid gets its own affine as both.

    Args:
        labels: (x, y, z).
        affine: of the mask.
        volume: NIfTI file that was segmented.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/a.nii"
    >>> image = nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4))
    >>> image.set_qform(np.diag([-1, -1, 1, 1]), code=2)
    >>> nib.save(image, file)
    >>> mask = mask_of_volume(np.ones((4, 4, 4)), np.eye(4), file)
    >>> mask.get_qform(coded=True)[1], mask.get_qform().diagonal()
    (2, array([-1., -1.,  1.,  1.]))
    """
    labels = labels.astype(np.uint8)
    mask = nib.Nifti1Image(labels, affine)
    mask.set_sform(affine, code=1)
    mask.set_qform(affine, code=1)
    image: Any = nib.load(volume)
    is_same_grid = (
        image.shape == mask.shape
        and largest_shift(image.affine, affine, mask.shape, SAME_GRID) == 0
    )
    if not is_same_grid:
        return mask

    header = mask.header.copy()
    for field in FORM_FIELDS:
        header[field] = image.header[field]
    # Its first number is the qform's handedness, the next three are the voxel sizes.
    header["pixdim"][:4] = image.header["pixdim"][:4]
    # Without an affine of its own, nibabel writes the header as it is.
    return nib.Nifti1Image(labels, None, header)
