# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images in one folder and masks in another, with names that agree."""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import Found
from monai_fairfl.data.layouts.image_files import as_cases, images_in, pair, patients_of
from monai_fairfl.errors import DataError

EXPECTS = "images/NAME.png and masks/NAME.png, or NAME_mask.png (also jpg, tif, bmp, nii.gz)"
IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label")


def _children(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Folders with one of the names, in any case of letters."""
    return (
        sorted(p for p in folder.iterdir() if p.name.lower() in names and p.is_dir())
        if folder.is_dir()
        else []
    )


def recognises(folder: Path) -> bool:
    """A folder for images, one for masks, and files in both."""
    return all(any(map(images_in, _children(folder, names))) for names in (IMAGES, MASKS))


def find(folder: Path) -> Found:
    """Pair the images with their masks."""
    chosen = []
    for names in (IMAGES, MASKS):
        full = [child for child in _children(folder, names) if images_in(child)]
        if len(full) > 1:
            raise DataError(
                f"{folder} has {' and '.join(f'{p.name}/' for p in full)}. Keep one, move the other away."
            )
        chosen.append(full[0])
    cases = as_cases(pair(images_in(chosen[0]), images_in(chosen[1]), str(folder)))
    return Found(cases, patients=patients_of(cases))
