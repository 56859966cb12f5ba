# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data lists of sites whose cases a bundle's own configuration lists."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.data import layouts
from monai_fairfl.data.datalist import datalist_of
from monai_fairfl.data.layouts import CaseFiles, Found
from monai_fairfl.data.layouts.base import sorted_by_image
from monai_fairfl.errors import DataError

LEAST_PATIENTS = 3
"""Folders below which they are not taken for patients: no split could hold them apart."""


def listed_datalist(
    training: Sequence[Mapping[str, Any]],
    validation: Sequence[Mapping[str, Any]],
    by_position: bool,
    dataset_dir: str | os.PathLike[str],
    file: str | os.PathLike[str] | None = None,
    share: float = 0.2,
    **split: Any,
) -> dict[str, list[CaseFiles]]:
    """Make the data list of a site from the lists of a bundle, or read it from ``file``.

    A list of the bundle may be common to all sites: of its cases, those that the site has count.
    Where it has none of them, its folder is looked at, see ``docs/data.md``. Cases whose images lie
    in one folder are of one patient, where there are three such folders or more and one of them
    holds several images.

    Args:
        training: cases with the files ``image`` and ``label``, as the bundle lists them.
        validation: cases, the same way.
        by_position: the bundle splits one list by position, so all its cases are split again; else
            its two lists stay, and the test cases are drawn from the training cases.
        dataset_dir: the site's folder.
        file: the list, as :func:`~monai_fairfl.data.site_datalist` reads and writes it.
        share: of the cases outside a fold that validates, or of the training cases that become the
            test cases that a split lacks.
        split: other arguments of :func:`~monai_fairfl.data.split_cases`.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        DataError: the lists are not of such cases, none of them is at the site, or there are too
            few for a split.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, find_cases, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=4)
    >>> cases = find_cases(f"{root}/alder")
    >>> found = listed_datalist(cases[:-9], cases[-9:], True, f"{root}/alder")
    >>> {part: len(members) for part, members in found.items()}
    {'training': 2, 'validation': 1, 'testing': 1}
    """
    folder = Path(dataset_dir).absolute()
    parts = {
        "training": _cases_at(training, "training", folder),
        "validation": _cases_at(validation, "validation", folder),
    }
    cases = {case["image"]: case for case in [*parts["training"], *parts["validation"]]}
    if cases:
        patients = _patients_by_folder(list(cases))
        own_parts = None if by_position else parts
        found = Found(sorted_by_image(cases.values()), parts=own_parts, patients=patients)
    else:
        try:
            found = layouts.find(folder)
        except DataError as error:
            raise DataError(
                f"{folder}: none of the {len(training) + len(validation)} cases of the bundle's"
                f" lists is there. {error}"
            ) from error
    return datalist_of(found, folder, file, validation=share, **split)


def are_cases(items: object) -> bool:
    """Whether these are cases with the files ``image`` and ``label``; an empty list is one of them.

    >>> are_cases([{"image": "a.nii.gz", "label": "b.nii.gz"}]), are_cases([{"image": ["a", "b"]}])
    (True, False)
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        return False
    for item in items:
        if not isinstance(item, Mapping):
            return False
        for name in ("image", "label"):
            if not isinstance(item.get(name), (str, os.PathLike)):
                return False
    return True


def _cases_at(listed: Sequence[Mapping[str, Any]], part: str, folder: Path) -> list[CaseFiles]:
    """The cases of a list whose files are there, with absolute paths."""
    if not are_cases(listed):
        raise DataError(
            f"{folder}: the bundle's {part} list is not one of cases with the files image and "
            "label, so it cannot be split. Leave datalist out of the overlay, and the bundle's own "
            "split stays"
        )
    cases = []
    for item in listed:
        image = os.path.abspath(item["image"])
        label = os.path.abspath(item["label"])
        if os.path.isfile(image) and os.path.isfile(label):
            cases.append({**item, "image": image, "label": label})
    return cases


def _patients_by_folder(images: Sequence[str]) -> dict[str, str]:
    """Image -> folder, where the folders hold patients; else nothing.

    >>> _patients_by_folder(["a/1.png", "a/2.png", "b/1.png", "c/1.png"])["a/2.png"]
    'a'
    >>> _patients_by_folder(["images/1.png", "images/2.png"])
    {}
    """
    folders = {image: os.path.dirname(image) for image in images}
    images_of = Counter(folders.values())
    if len(images_of) < LEAST_PATIENTS or max(images_of.values()) == 1:
        return {}
    return folders
