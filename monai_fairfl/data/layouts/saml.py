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

from monai_fairfl.data.layouts.base import CaseFiles, Found
from monai_fairfl.errors import DataError

EXPECTS = "CaseNN.nii.gz beside CaseNN_segmentation.nii.gz"
_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def recognises(folder: Path) -> bool:
    """A folder with at least one NIfTI file directly in it."""
    return folder.is_dir() and any(_images_and_masks(folder))


def find(folder: Path) -> Found:
    """Pair the images with their masks."""
    images, masks = _images_and_masks(folder)
    problems: list[str] = []
    cases: list[CaseFiles] = []
    for case in sorted(images.keys() | masks.keys()):
        case_images = images.get(case, [])
        case_masks = masks.get(case, [])
        case_problems = _pairing_problems(case, case_images, case_masks)
        if case_problems:
            problems.extend(case_problems)
        else:
            cases.append({"image": str(case_images[0]), "label": str(case_masks[0])})
    if problems:
        raise DataError(f"{folder}: " + "; ".join(problems) + ".")
    return Found(cases)


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


def _pairing_problems(case: str, images: list[Path], masks: list[Path]) -> list[str]:
    """Why the files of a case are not one image and one mask."""
    problems = []
    if not masks:
        problems.append(
            f"{images[0].name} has no label; add {case}_segmentation.nii.gz or remove the image"
        )
    elif not images:
        problems.append(f"{masks[0].name} has no image; add {case}.nii.gz or remove the label")
    for kind, files in (("image", images), ("label", masks)):
        if len(files) > 1:
            names = " and ".join(file.name for file in files)
            problems.append(f"{case} has {len(files)} {kind}s, {names}; keep one")
    return problems
