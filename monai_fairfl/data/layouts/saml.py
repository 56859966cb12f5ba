# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``CaseNN.nii.gz`` beside its mask, as in the public six-site prostate set.

The layout is that of Liu et al., *MS-Net*, IEEE TMI 2020 (https://liuquande.github.io/SAML/). A
mask is named ``CaseNN_segmentation`` or ``CaseNN_Segmentation``; both spellings occur in the
published folders.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path

from monai_fairfl.data.layouts.base import Found
from monai_fairfl.data.layouts.pairing import pair_by_case, suffix_of

EXPECTS = "CaseNN.nii.gz beside CaseNN_segmentation.nii.gz"
_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def recognises(folder: Path) -> bool:
    """A folder with at least one NIfTI file directly in it."""
    return folder.is_dir() and any(_images_and_masks(folder))


def find(folder: Path) -> Found:
    """Pair the images with their masks."""
    images, masks = _images_and_masks(folder)
    unmasked = images.keys() - masks.keys()
    pairs = pair_by_case(images, masks, str(folder), partial(_lacks_partner, unmasked))
    return Found([{"image": str(image), "label": str(mask)} for image, mask in pairs])


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


def _lacks_partner(unmasked: Collection[str], case: str, file: Path, kind: str) -> str:
    """The problem of a file without partner, and its fix.

    Args:
        unmasked: the cases without a mask.
        case: of the file.
        file: an image or a mask.
        kind: what it lacks.

    >>> _lacks_partner({"Case26", "Case26_seg"}, "Case26_seg", Path("Case26_seg.nii"), "mask")
    'Case26_seg.nii has no mask; if it is the mask of Case26, rename it to Case26_segmentation.nii'
    """
    suffix = suffix_of(case, set(unmasked) - {case})
    if kind == "mask" and suffix:
        other_case = case.removesuffix(suffix)
        ending = file.name.removeprefix(case)
        return (
            f"{file.name} has no mask; if it is the mask of {other_case}, rename it to"
            f" {other_case}_segmentation{ending}"
        )
    missing = f"{case}_segmentation.nii.gz" if kind == "mask" else f"{case}.nii.gz"
    return f"{file.name} has no {kind}; add {missing}, or remove the file"
