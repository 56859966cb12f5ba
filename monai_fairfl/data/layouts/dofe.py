# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A domain of the multi-site fundus set of DoFE, with its own test images.

The layout is that of Wang et al., *DoFE*, IEEE TMI 2020 (https://github.com/emma-sjwang/Dofe): four
domains, crops around the optic disc, masks that are bright outside of it.
"""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import Found
from monai_fairfl.data.layouts.image_files import as_cases, images_in, pair, patients_of
from monai_fairfl.errors import DataError

EXPECTS = (
    "train/ROIs/image/NAME.png, train/ROIs/mask/NAME.png and the same under test/ (DoFE's DomainN)"
)
OWN = {"training": "train", "testing": "test"}


def recognises(folder: Path) -> bool:
    """``train`` or ``test`` with ``ROIs`` in it."""
    return any((folder / name / "ROIs").is_dir() for name in OWN.values())


def find(folder: Path) -> Found:
    """Pair the images with their masks; those under ``test`` stay test cases."""
    parts = {}
    for part, name in OWN.items():
        rois = folder / name / "ROIs"
        images, masks = images_in(rois / "image"), images_in(rois / "mask")
        if bool(images) != bool(masks):
            lacking = rois / ("mask" if images else "image")
            raise DataError(
                f"{lacking} holds no images, though its partner does. Unpack the archive again."
            )
        parts[part] = as_cases(pair(images, masks, str(rois)))
    if not parts["training"]:
        raise DataError(
            f"{folder / 'train' / 'ROIs' / 'image'} holds no image. Unpack the archive again."
        )
    cases = sorted(parts["training"] + parts["testing"], key=lambda case: case["image"])
    own = {"training": parts["training"], "testing": parts["testing"]} if parts["testing"] else None
    return Found(cases, own, patients_of(cases))
