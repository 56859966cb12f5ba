# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether the slices of a series make a volume, and where that volume lies in the patient."""

from __future__ import annotations

import numpy as np

TOLERANCE = 0.05  # of a step between slices: rounded headers stay below, a wrong step does not
SAME_POSITION = 0.01  # mm
PLANES = ("sagittal", "coronal")  # of slices that are stacked along the first or the second axis
DICOM_TO_NIFTI = np.diag([-1.0, -1.0, 1.0, 1.0])


def normal(orientation: np.ndarray) -> np.ndarray:
    """Return the direction in which the slices of an ImageOrientationPatient are stacked.

    (column, row, slice) is then a right-handed system (DICOM PS3.3 C.7.6.2.1.1).

    Args:
        orientation: six direction cosines: of a row, then of a column.

    >>> normal(np.array([1.0, 0, 0, 0, 1, 0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return np.cross(orientation[:3], orientation[3:])


def stack_affine(
    orientation: np.ndarray,
    pixel_spacing: np.ndarray,
    positions: np.ndarray,
) -> np.ndarray:
    """Return where the voxels of a stack of slices lie: NIfTI's affine, in mm.

    It takes voxels (column, row, slice) to the patient's right, anterior and superior. In plane it
    is the equation of DICOM PS3.3 C.7.6.2.1.1; from slice to slice it is the mean step.

    Args:
        orientation: ImageOrientationPatient, six direction cosines.
        pixel_spacing: PixelSpacing: between rows, then between columns.
        positions: ImagePositionPatient of the slices in order, (n, 3), two or more.

    >>> positions = np.outer([0.0, 3, 6], [0, 0, 1])
    >>> stack_affine(np.array([1.0, 0, 0, 0, 1, 0]), np.array([0.75, 0.5]), positions).diagonal()
    array([-0.5 , -0.75,  3.  ,  1.  ])
    """
    affine = np.eye(4)
    affine[:3, 0] = orientation[:3] * pixel_spacing[1]
    affine[:3, 1] = orientation[3:] * pixel_spacing[0]
    affine[:3, 2] = (positions[-1] - positions[0]) / (len(positions) - 1)
    affine[:3, 3] = positions[0]
    # DICOM's axes point to left and posterior, NIfTI's to right and anterior.
    return DICOM_TO_NIFTI @ affine


def plane_remark(stacking_direction: np.ndarray) -> str:
    """Return a remark on slices that are not axial; empty for axial ones.

    Slices that are tilted by more than 45 degrees count as those of the plane that is nearer.

    Args:
        stacking_direction: from slice to slice, in axes of the patient, of any length.

    >>> plane_remark(np.array([0.0, 0.5, 3.0]))
    ''
    >>> plane_remark(np.array([0.0, 3.0, 0.5]))[:14]
    'coronal slices'
    """
    axis = int(np.abs(stacking_direction).argmax())
    if axis >= len(PLANES):
        return ""
    return f"{PLANES[axis]} slices, and the network was trained on axial ones; look at the overlay"


def spacing_problem(positions: np.ndarray, names: list[str]) -> str | None:
    """Return what is wrong with the positions of a sorted stack of slices, if anything.

    Args:
        positions: of the slices in order, (n, 3), in mm.
        names: of the slices' files.

    >>> even = np.outer([0.0, 3, 6, 9, 12], [0, 0, 1])
    >>> spacing_problem(even, list("abcde"))
    >>> spacing_problem(even[[0, 1, 2, 4]], list("abce"))
    '1 slice is missing: from c to e are 6 mm, else 3 mm; send the series again'
    """
    steps = np.diff(positions, axis=0)
    lengths = np.linalg.norm(steps, axis=1)

    at_same_position = np.flatnonzero(lengths < SAME_POSITION)
    if at_same_position.size:
        index = at_same_position[0]
        return (
            f"{names[index]} and {names[index + 1]} lie at the same position; keep one image each "
            "(one copy, echo, time, b-value)"
        )

    # A volume: every step is the mean step.
    step = np.quantile(lengths, 0.5, method="lower")
    deviations = np.linalg.norm(steps - steps.mean(axis=0), axis=1)
    if deviations.max() <= TOLERANCE * step:
        return None

    # Missing slices: steps along one line whose lengths are multiples of the usual step.
    multiples = np.maximum(1, np.round(lengths / step))
    directions = steps / lengths[:, None]
    is_straight = np.abs(directions - directions[0]).max() <= TOLERANCE
    if is_straight and np.abs(lengths / step - multiples).max() <= TOLERANCE:
        missing = int((multiples - 1).sum())
        gap = int(lengths.argmax())
        return (
            f"{missing} slice{' is' if missing == 1 else 's are'} missing: from {names[gap]} to "
            f"{names[gap + 1]} are {lengths[gap]:.4g} mm, else {step:.4g} mm; send the series again"
        )
    return (
        f"steps between slices from {lengths.min():.4g} to {lengths.max():.4g} mm, or not along "
        "one line; leave the series out, or resample it to even steps"
    )
