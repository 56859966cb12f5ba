# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images that lie near the cases of a site and belong to none of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from monai_fairfl.data.layouts.base import CaseFiles, few
from monai_fairfl.data.layouts.image_files import CONVERT_DICOM, DEEPEST, is_dicom, is_image, stem

# Test cases of the Decathlon and of nnU-Net have no labels, so no note about them is needed.
_UNLABELLED = ("imagests", "labelsts")
_DICOM = ("DICOM", "DCM", "IMA")


def left_out(cases: Sequence[CaseFiles], site: Path) -> list[str]:
    """Write a note on each kind of image, also of those that are not read, that belongs to no case.

    Args:
        cases: of the site.
        site: its folder, which is looked through four levels deep, or its data list: then the
            folders of its cases are. In a folder of cases only kinds that the cases do not have
            are left out: the other channels of nnU-Net are no cases of their own.
    """
    kinds_of_cases: dict[str, set[str]] = {}
    for case in cases:
        for path in (Path(case["image"]), Path(case["label"])):
            kinds_of_cases.setdefault(str(path.parent), set()).add(_kind(path))

    closed: list[str] = []
    # Kind -> the folder of each image of this kind.
    images: dict[str, list[str]] = {}
    for root in [str(site)] if site.is_dir() else sorted(kinds_of_cases):
        walk = os.walk(root, onerror=lambda error: closed.append(error.filename), followlinks=True)
        for folder, subfolders, names in walk:
            is_deepest = len(Path(folder).relative_to(root).parts) == DEEPEST
            searched = []
            for name in sorted(subfolders):
                if not is_deepest and name[0] != "." and name.lower() not in _UNLABELLED:
                    searched.append(name)
            subfolders[:] = searched
            for name in names:
                kind = _kind(Path(folder, name))
                if kind and kind not in kinds_of_cases.get(folder, ()):
                    images.setdefault(kind, []).append(folder)

    notes = []
    if closed:
        notes.append(
            f"{few(closed)} cannot be read by this account, so that images there would be left"
            " out; change the permissions"
        )
    for kind, folders in sorted(images.items()):
        fix = "move them to the cases, or convert them"
        if kind in _DICOM:
            fix = f"convert them {CONVERT_DICOM}"
        where = few(dict.fromkeys(folders))
        notes.append(f"{len(folders)} {kind} file(s) in {where} are left out; {fix}")
    return notes


def _kind(path: Path) -> str:
    """The ending of an image's name in capitals, or ``DICOM``; empty of other files."""
    if is_image(path.name):
        return path.name[len(stem(path)) + 1 :].upper()
    return "DICOM" if is_dicom(path) else ""
