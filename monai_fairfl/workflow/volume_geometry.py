# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether the slices of a series make a volume: complete, parallel, evenly spaced."""

from __future__ import annotations

import numpy as np

TOLERANCE = 0.05  # of a step between slices: rounded headers stay below, a wrong step does not
SAME = 0.01  # mm


def normal(orientation: np.ndarray) -> np.ndarray:
    """Direction in which the slices of an ImageOrientationPatient are stacked, so that (column,
    row, slice) is a right-handed system (DICOM PS3.3 C.7.6.2.1.1).

    Args:
        orientation: six direction cosines: of a row, then of a column.

    >>> normal(np.array([1.0, 0, 0, 0, 1, 0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return np.cross(orientation[:3], orientation[3:])


def spacing_problem(positions: np.ndarray, names: list[str]) -> str | None:
    """What is wrong with the positions of a sorted stack of slices, if anything.

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
    same = np.flatnonzero(lengths < SAME)
    if same.size:
        first, second = names[same[0]], names[same[0] + 1]
        return f"{first} and {second} lie at the same position; keep one image each (one copy, echo, time, b-value)"
    step = np.quantile(lengths, 0.5, method="lower")
    if np.linalg.norm(steps - steps.mean(axis=0), axis=1).max() <= TOLERANCE * step:
        return None
    multiples = np.maximum(1, np.round(lengths / step))
    straight = np.abs(steps / lengths[:, None] - steps[0] / lengths[0]).max() <= TOLERANCE
    if straight and np.abs(lengths / step - multiples).max() <= TOLERANCE:
        gap, missing = int(lengths.argmax()), int((multiples - 1).sum())
        return (
            f"{missing} {'slice is' if missing == 1 else 'slices are'} missing: from {names[gap]} to {names[gap + 1]} "
            f"are {lengths[gap]:.4g} mm, else {step:.4g} mm; send the series again"
        )
    return (
        f"steps between slices from {lengths.min():.4g} to {lengths.max():.4g} mm, or not along one line; "
        "leave the series out, or resample it to even steps"
    )
