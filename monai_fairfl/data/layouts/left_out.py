# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images that lie near the cases of a site and belong to none of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from monai_fairfl.data.layouts.base import CaseFiles
from monai_fairfl.data.layouts.image_files import images_in, is_nifti, is_unreadable_kind

# Test cases of the Decathlon and of nnU-Net have no labels, so no note about them is needed.
_UNLABELLED = ("imagests", "labelsts")


def left_out(cases: Sequence[CaseFiles], site: Path | None = None) -> list[str]:
    """Write a note for each folder with images beside those of the cases that holds no case.

    Another note is written for each kind of image beside the cases that cannot be read, and for
    pictures beside volumes, or the other way round.

    Args:
        cases: of the site.
        site: its folder; folders in it, and in these, count as beside the cases too.
    """
    case_folders = set()
    for case in cases:
        case_folders.add(Path(case["image"]).parent)
        case_folders.add(Path(case["label"]).parent)
    notes = []
    for folder in sorted(_neighbours(case_folders, site) - case_folders):
        count = len(images_in(folder))
        if count and folder.name.lower() not in _UNLABELLED:
            notes.append(f"{count} image(s) in {folder} are left out; move them to the cases")
    for folder in sorted(case_folders):
        for kind, count in sorted(_unreadable_kinds(folder).items()):
            notes.append(f"{count} {kind} file(s) in {folder} are left out; convert them")
        others = _of_another_sort(folder, cases)
        if others:
            notes.append(
                f"{len(others)} image(s) in {folder}, such as {others[0].name}, are left out: the "
                "cases there are of another kind"
            )
    return notes


def _of_another_sort(folder: Path, cases: Sequence[CaseFiles]) -> list[Path]:
    """Pictures in a folder of cases that are all volumes, or volumes beside pictures."""
    sorts = set()
    for case in cases:
        for path in (case["image"], case["label"]):
            if Path(path).parent == folder:
                sorts.add(is_nifti(path))
    if len(sorts) != 1:
        return []
    return [path for path in images_in(folder) if is_nifti(path) not in sorts]


def _neighbours(case_folders: set[Path], site: Path | None) -> set[Path]:
    """Folders inside the cases' folders, and inside the site's folder up to two levels deep."""
    neighbours: set[Path] = set()
    for folder in case_folders:
        neighbours.update(_folders_in(folder))
    if site is not None:
        for folder in _folders_in(site):
            neighbours.add(folder)
            neighbours.update(_folders_in(folder))
    return neighbours


def _folders_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [Path(entry) for entry in entries if entry.is_dir() and entry.name[0] != "."]


def _unreadable_kinds(folder: Path) -> Counter[str]:
    """Number of the folder's images that cannot be read, by the ending of their names."""
    kinds: Counter[str] = Counter()
    if folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_unreadable_kind(entry.name):
                    kinds[entry.name.rsplit(".", 1)[1].upper()] += 1
    return kinds
