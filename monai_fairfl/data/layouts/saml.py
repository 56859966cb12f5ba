# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``CaseNN.nii.gz`` beside its mask, as in the public six-site prostate set.

The layout is that of Liu et al., *MS-Net*, IEEE TMI 2020 (https://liuquande.github.io/SAML/). A
mask is named ``CaseNN_segmentation`` or ``CaseNN_Segmentation``; both spellings occur in the
published folders.
"""

from __future__ import annotations

import re
from pathlib import Path

from monai_fairfl.data.layouts.base import Found
from monai_fairfl.data.layouts.pairing import as_cases, pair_by_case

EXPECTS = "CaseNN.nii.gz beside CaseNN_segmentation.nii.gz"
_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def recognises(folder: Path) -> bool:
    """A folder with at least one NIfTI file directly in it."""
    return folder.is_dir() and any(_images_and_masks(folder))


def find(folder: Path) -> Found:
    """Pair the images with their masks."""
    images, masks = _images_and_masks(folder)
    return Found(as_cases(pair_by_case(images, masks, str(folder), "_segmentation")))


def _images_and_masks(folder: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Images and masks of a folder by case; broken links too, so that a check can name them."""
    images: dict[str, list[Path]] = {}
    masks: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NIFTI.fullmatch(path.name)
        if match is None or path.name.startswith(".") or path.is_dir():
            continue
        files = masks if match["mask"] else images
        files.setdefault(match["case"], []).append(path)
    return images, masks
