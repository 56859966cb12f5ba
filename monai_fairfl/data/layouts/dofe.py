# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A domain of the multi-site fundus set of DoFE, with its own test images.

The layout is that of Wang et al., *DoFE*, IEEE TMI 2020 (https://github.com/emma-sjwang/Dofe): four
domains, crops around the optic disc, masks that are bright outside of it.
"""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import Found, all_cases, sorted_by_image
from monai_fairfl.data.layouts.image_files import images_in
from monai_fairfl.data.layouts.pairing import as_cases, pair, patients_of
from monai_fairfl.errors import DataError

EXPECTS = (
    "train/ROIs/image/NAME.png, train/ROIs/mask/NAME.png and the same under test/ (DoFE's DomainN)"
)


def recognises(folder: Path) -> bool:
    """``train`` or ``test`` with ``ROIs`` in it."""
    return (folder / "train" / "ROIs").is_dir() or (folder / "test" / "ROIs").is_dir()


def find(folder: Path) -> Found:
    """Pair the images with their masks; those under ``test`` stay test cases."""
    parts = {}
    for part, name in (("training", "train"), ("testing", "test")):
        crops = folder / name / "ROIs"
        images = images_in(crops / "image")
        masks = images_in(crops / "mask")
        is_halved = bool(images) != bool(masks)
        if is_halved or (name == "train" and not images):
            empty = crops / ("mask" if images else "image")
            raise DataError(f"{empty} holds no image. Unpack the archive again.")
        if images:
            parts[part] = as_cases(pair(images, masks, str(crops)))
    cases = sorted_by_image(all_cases(parts))
    return Found(cases, parts if "testing" in parts else None, patients_of(cases))
