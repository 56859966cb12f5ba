# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a case is dealt by: the size of its structure, and the ratio of cup and disc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from experiments.simulated.content import cup_to_disc_ratio, structure_size
from monai_fairfl.errors import DataError


def test_structure_size_is_in_cubic_millimetres_or_a_share_of_the_picture(tmp_path: Path) -> None:
    mask = np.zeros((6, 5, 4), np.uint8)
    mask[1:3, 2, 1:3], mask[0, 0, 0] = 2, 1
    nib.save(nib.Nifti1Image(mask, np.diag([0.5, 0.5, 3, 1])), tmp_path / "a_segmentation.nii.gz")
    assert structure_size({"label": str(tmp_path / "a_segmentation.nii.gz")}) == pytest.approx(
        5 * 0.75
    )
    Image.fromarray(mask[:, :, 1]).save(tmp_path / "a.png")
    assert structure_size({"label": str(tmp_path / "a.png")}) == pytest.approx(2 / 30)


def eye(file: Path, background: int, rim: int, cup: int) -> str:
    rows, columns = np.ogrid[:60, :50]
    pixels = np.full((60, 50), background, np.uint8)
    pixels[((rows - 30) / 20) ** 2 + ((columns - 25) / 10) ** 2 <= 1] = rim
    pixels[((rows - 30) / 10) ** 2 + ((columns - 25) / 8) ** 2 <= 1] = cup
    Image.fromarray(np.repeat(pixels[..., None], 3, 2)).save(file)
    return str(file)


def test_the_cup_to_disc_ratio_is_one_of_heights_whatever_the_coding(tmp_path: Path) -> None:
    coded = eye(tmp_path / "a.png", 0, 1, 2), {"disc": [1, 2], "cup": [2, 2]}
    inverted = eye(tmp_path / "b.png", 255, 128, 0), {"disc": [0, 200], "cup": [0, 50]}
    for label, values in (coded, inverted):
        case: Any = {"label": label, "values": values}
        assert cup_to_disc_ratio(case) == pytest.approx(21 / 41)
        assert structure_size(case) == pytest.approx(np.pi * 20 * 10 / 3000, rel=0.02)
    label = eye(tmp_path / "c.png", 0, 1, 1)
    with pytest.raises(DataError, match="c.png"):
        cup_to_disc_ratio({"label": label, "values": {"disc": [1, 255]}})
