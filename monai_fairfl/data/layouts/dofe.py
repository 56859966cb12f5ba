# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A domain of the multi-site fundus set of DoFE, with its own test images.

The layout is that of Wang et al., *DoFE*, IEEE TMI 2020 (https://github.com/emma-sjwang/Dofe): four
domains, crops around the optic disc, masks that are bright outside of it.
"""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import CaseFiles, Found, sorted_by_image
from monai_fairfl.data.layouts.image_files import images_in
from monai_fairfl.data.layouts.pairing import as_cases, pair, patients_of
from monai_fairfl.errors import DataError

EXPECTS = (
    "train/ROIs/image/NAME.png, train/ROIs/mask/NAME.png and the same under test/ (DoFE's DomainN)"
)


def recognises(folder: Path) -> bool:
    """``train`` or ``test`` with ``ROIs`` in it."""
    return _crops(folder, "train").is_dir() or _crops(folder, "test").is_dir()


def find(folder: Path) -> Found:
    """Pair the images with their masks; those under ``test`` stay test cases."""
    training = _cases_in(_crops(folder, "train"))
    testing = _cases_in(_crops(folder, "test"))
    if not training:
        images = _crops(folder, "train") / "image"
        raise DataError(f"{images} holds no image. Unpack the archive again.")
    cases = sorted_by_image(training + testing)
    parts = {"training": training, "testing": testing} if testing else None
    return Found(cases, parts, patients_of(cases))


def _crops(folder: Path, part: str) -> Path:
    return folder / part / "ROIs"


def _cases_in(crops: Path) -> list[CaseFiles]:
    images = images_in(crops / "image")
    masks = images_in(crops / "mask")
    if bool(images) != bool(masks):
        empty = crops / ("mask" if images else "image")
        raise DataError(
            f"{empty} holds no images, though its partner does. Unpack the archive again."
        )
    return as_cases(pair(images, masks, str(crops)))
