# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documented bundle of another organ, and hospitals with images for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
from helpers.checkout import CHECKOUT

OWN_BUNDLE = CHECKOUT / "docs" / "examples" / "own_bundle"
CASES = 3


def write_noisy_balls(
    root: Path,
    sites: Sequence[str],
    side: int,
    centres: tuple[float, float],
    squared_radius: float,
) -> None:
    """Write three volumes a site, in nnU-Net's folders: a noisy ball somewhere near the middle.

    Args:
        root: gets ``SITE/imagesTr`` and ``SITE/labelsTr``.
        sites: their names.
        side: voxels of a volume along each axis.
        centres: range of each coordinate of a ball's centre, in voxels.
        squared_radius: of a ball, in squared voxels.
    """
    rng = np.random.default_rng(0)
    for site in sites:
        for case in range(CASES):
            centre = rng.uniform(*centres, size=(3, 1, 1, 1))
            squared_distances = ((np.indices((side, side, side)) - centre) ** 2).sum(0)
            label = (squared_distances < squared_radius).astype(np.uint8)
            image = (label + rng.normal(0, 0.3, label.shape)).astype(np.float32)
            save_volume(image, root / site / "imagesTr" / f"case{case}.nii.gz")
            save_volume(label, root / site / "labelsTr" / f"case{case}.nii.gz")


def save_volume(volume: np.ndarray, file: Path) -> None:
    """Write a volume with voxels of 1 mm, and the folder that it lies in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(volume, np.eye(4)), file)
