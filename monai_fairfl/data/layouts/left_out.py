# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images that lie near the cases of a site and belong to none of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_fairfl.data.layouts.base import CaseFiles, all_named
from monai_fairfl.data.layouts.image_files import (
    CONVERT_DICOM,
    DEEPEST,
    images_in,
    is_dicom,
    is_named_as_dicom,
    is_nifti,
    is_unreadable_kind,
)

# Test cases of the Decathlon and of nnU-Net have no labels, so no note about them is needed.
_UNLABELLED = ("imagests", "labelsts")
# The kind of files that have no ending.
DICOM = "DICOM"
# Folders that a note names: a series of DICOM has one for each patient, or several.
_NAMED = 3


def left_out(cases: Sequence[CaseFiles], site: Path | None = None) -> list[str]:
    """Write a note on images in folders beside those of the cases that hold no case.

    Another note is written for each kind of image, in such a folder or beside the cases, that
    cannot be read, and for pictures beside volumes, or the other way round.

    Args:
        cases: of the site.
        site: its folder; folders in it, up to four deep, count as beside the cases too.
    """
    case_folders = set()
    for case in cases:
        case_folders.add(Path(case["image"]).parent)
        case_folders.add(Path(case["label"]).parent)
    neighbours = set()
    for folder in _neighbours(case_folders, site) - case_folders:
        if folder.name.lower() not in _UNLABELLED:
            neighbours.add(folder)

    notes = []
    closed = sorted(folder for folder in neighbours if not _may_be_read(folder))
    if closed:
        names = all_named([str(folder) for folder in closed], _NAMED, separator=", ")
        notes.append(
            f"{names} cannot be read by this account, so that images there would be left out; "
            "change the permissions"
        )
    neighbours.difference_update(closed)

    # Folder -> number of its images.
    images = {}
    for folder in sorted(neighbours):
        count = len(images_in(folder))
        if count:
            images[folder] = count
    if images:
        notes.append(f"{_files_in(images, 'image(s)')} are left out; move them to the cases")

    # Kind -> folder -> number of its images of this kind.
    unreadable: dict[str, dict[Path, int]] = {}
    for folder in sorted(neighbours | case_folders):
        for kind, count in _unreadable_kinds(folder).items():
            unreadable.setdefault(kind, {})[folder] = count
    for kind, folders in sorted(unreadable.items()):
        fix = "convert them"
        if is_named_as_dicom(f"image.{kind}"):
            fix += f" {CONVERT_DICOM}"
        notes.append(f"{_files_in(folders, f'{kind} file(s)')} are left out; {fix}")

    for folder in sorted(case_folders):
        others = _of_another_sort(folder, cases)
        if others:
            notes.append(
                f"{len(others)} image(s) in {folder}, such as {others[0].name}, are left out: the "
                "cases there are of another kind"
            )
    return notes


def _files_in(counts: Mapping[Path, int], what: str) -> str:
    """How many files there are in some folders, and which these are.

    >>> _files_in({Path("elm/dcm/Case00"): 20, Path("elm/dcm/Case01"): 19}, "DCM file(s)")
    '39 DCM file(s) in elm/dcm/Case00, elm/dcm/Case01'
    """
    folders = all_named([str(folder) for folder in counts], _NAMED, separator=", ")
    return f"{sum(counts.values())} {what} in {folders}"


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
    """Folders inside the cases' folders, and inside the site's folder up to four levels deep."""
    neighbours: set[Path] = set()
    for folder in case_folders:
        neighbours.update(_folders_in(folder))
    if site is not None:
        level = [site]
        for _ in range(DEEPEST):
            level = [inner for folder in level for inner in _folders_in(folder)]
            neighbours.update(level)
    return neighbours


def _may_be_read(folder: Path) -> bool:
    try:
        os.scandir(folder).close()
    except PermissionError:
        return False
    return True


def _folders_in(folder: Path) -> list[Path]:
    if not folder.is_dir() or not _may_be_read(folder):
        return []
    with os.scandir(folder) as entries:
        return [Path(entry) for entry in entries if entry.is_dir() and entry.name[0] != "."]


def _unreadable_kinds(folder: Path) -> Counter[str]:
    """Number of the folder's images that cannot be read, by the ending of their names.

    DICOM files without an ending count as :data:`DICOM`.
    """
    kinds: Counter[str] = Counter()
    if folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_unreadable_kind(entry.name):
                    kinds[entry.name.rsplit(".", 1)[1].upper()] += 1
                elif is_dicom(Path(entry)):
                    kinds[DICOM] += 1
    return kinds
