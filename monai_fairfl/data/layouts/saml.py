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
from monai_fairfl.errors import DataError

EXPECTS = "CaseNN.nii.gz beside CaseNN_segmentation.nii.gz"
_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def _scan(folder: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Images and masks of a folder by case."""
    images: dict[str, list[Path]] = {}
    masks: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NIFTI.fullmatch(path.name)
        if (
            match and not path.name.startswith(".") and not path.is_dir()
        ):  # a broken link is named as unreadable
            (masks if match["mask"] else images).setdefault(match["case"], []).append(path)
    return images, masks


def recognises(folder: Path) -> bool:
    """A folder with at least one NIfTI file directly in it."""
    return folder.is_dir() and any(_scan(folder))


def find(folder: Path) -> Found:
    """Pair the images with their masks."""
    images, masks = _scan(folder)
    problems = []
    for case in sorted(images.keys() | masks.keys()):
        names = {
            kind: [path.name for path in found.get(case, [])]
            for kind, found in (("image", images), ("label", masks))
        }
        if not names["label"]:
            problems.append(
                f"{names['image'][0]} has no label; add {case}_segmentation.nii.gz or remove the image"
            )
        elif not names["image"]:
            problems.append(
                f"{names['label'][0]} has no image; add {case}.nii.gz or remove the label"
            )
        for kind, found in names.items():
            if len(found) > 1:
                problems.append(f"{case} has {len(found)} {kind}s, {' and '.join(found)}; keep one")
    if problems:
        raise DataError(f"{folder}: " + "; ".join(problems) + ".")
    return Found(
        [{"image": str(images[case][0]), "label": str(masks[case][0])} for case in sorted(images)]
    )
