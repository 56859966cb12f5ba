# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images in one folder and masks in another, with names that agree."""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import Found
from monai_fairfl.data.layouts.image_files import images_in
from monai_fairfl.data.layouts.pairing import as_cases, pair, patients_of
from monai_fairfl.errors import DataError

EXPECTS = "images/NAME.png and masks/NAME.png, or NAME_mask.png (also jpg, tif, bmp, nii.gz)"
IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label")


def recognises(folder: Path) -> bool:
    """A folder for images, one for masks, and files in both."""
    return bool(_filled_children(folder, IMAGES) and _filled_children(folder, MASKS))


def find(folder: Path) -> Found:
    """Pair the images with their masks."""
    images = images_in(_only_child(folder, IMAGES))
    masks = images_in(_only_child(folder, MASKS))
    cases = as_cases(pair(images, masks, str(folder)))
    return Found(cases, patients=patients_of(cases))


def _only_child(folder: Path, names: tuple[str, ...]) -> Path:
    children = _filled_children(folder, names)
    if len(children) > 1:
        listed = " and ".join(f"{child.name}/" for child in children)
        raise DataError(f"{folder} has {listed}. Keep one, move the other away.")
    return children[0]


def _filled_children(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Folders that have one of the names, in any case of letters, and hold images."""
    if not folder.is_dir():
        return []
    filled = []
    for child in sorted(folder.iterdir()):
        if child.name.lower() in names and child.is_dir() and images_in(child):
            filled.append(child)
    return filled
