# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a layout is, and what it finds in a site's folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from monai_fairfl.errors import DataError

PARTS = ("training", "validation", "testing")

CaseFiles = dict[str, Any]
"""``{"image": path, "label": path}``, and ``"values"`` where pixel values code structures."""


@dataclass(frozen=True)
class Found:
    """The cases of one site, sorted by image, with absolute paths.

    Args:
        cases: all of them.
        parts: the split that came with the data: some of ``training``, ``validation`` and
            ``testing``. ``None``: none.
        patients: image -> patient, where a patient has several cases; every other case is a patient
            of its own.
        channels: names of the channels of an image, where the layout states them.
        notes: what a user should know, in sentences.

    >>> case = {"image": "/elm/Case00.nii.gz", "label": "/elm/Case00_segmentation.nii.gz"}
    >>> found = Found([case], patients={case["image"]: "patient 7"})
    >>> len(found.cases), found.parts, found.patients["/elm/Case00.nii.gz"]
    (1, None, 'patient 7')
    """

    cases: list[CaseFiles]
    parts: dict[str, list[CaseFiles]] | None = None
    patients: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Layout(Protocol):
    """A module of this package: one way in which public data sets arrange a site's files.

    >>> from monai_fairfl.data.layouts import LAYOUTS
    >>> layout: Layout = LAYOUTS["saml"]
    >>> layout.EXPECTS
    'CaseNN.nii.gz beside CaseNN_segmentation.nii.gz'
    """

    EXPECTS: str
    """The layout in one line, for errors."""

    def recognises(self, folder: Path) -> bool:
        """Whether the folder has this layout; it need not be complete."""

    def find(self, folder: Path) -> Found:
        """Find the cases of a site.

        Raises:
            DataError: files do not pair, are missing or cannot be understood; the error names all
                of them.
        """


def sorted_by_image(cases: Iterable[CaseFiles]) -> list[CaseFiles]:
    """Cases in the order of their images' paths.

    >>> sorted_by_image([{"image": "b.png"}, {"image": "a.png"}])
    [{'image': 'a.png'}, {'image': 'b.png'}]
    """
    return sorted(cases, key=lambda case: case["image"])


def all_cases(parts: Mapping[str, Sequence[CaseFiles]]) -> list[CaseFiles]:
    """The cases of all parts of a split, one part after the other.

    >>> all_cases({"training": [{"image": "a.png"}], "testing": [{"image": "b.png"}]})
    [{'image': 'a.png'}, {'image': 'b.png'}]
    """
    cases: list[CaseFiles] = []
    for members in parts.values():
        cases.extend(members)
    return cases


def listed_cases(entries: Iterable[Any], folder: Path, where: str) -> list[CaseFiles]:
    """The cases of a list, with the folder before their paths.

    Args:
        entries: each with the paths ``image`` and ``label``.
        folder: that the paths begin at.
        where: the list, for errors.

    Raises:
        DataError: there is none, an entry is something else, or files do not exist.
    """
    cases: list[CaseFiles] = []
    try:
        for entry in entries:
            image, label = folder / entry["image"], folder / entry["label"]
            cases.append({"image": str(image), "label": str(label)})
    except (TypeError, KeyError) as error:
        raise DataError(
            f'{where}: each entry, also of "training", must be {{"image": path, "label": path}}.'
            " Mend it."
        ) from error
    problems = missing_files(cases)
    if not cases:
        problems = ["it lists no case"]
    if problems:
        raise DataError(
            f"{where}: {all_named(problems)}. Unpack or export the images again, or mend the list."
        )
    return cases


def missing_files(cases: Sequence[CaseFiles]) -> list[str]:
    """A problem for each image and label that does not exist."""
    files = [path for case in cases for path in (case["image"], case["label"])]
    return [f"{path} does not exist" for path in files if not Path(path).is_file()]


def all_named(problems: Sequence[str], most: int = 20, separator: str = "; ") -> str:
    """Join problems into one text, which names the first ``most`` and counts the others.

    >>> all_named(["a is missing", "b is missing", "c is missing"], most=2)
    'a is missing; b is missing; and 1 more'
    """
    named = list(problems[:most])
    if len(problems) > most:
        named.append(f"and {len(problems) - most} more")
    return separator.join(named)


def few(names: Iterable[object]) -> str:
    """The first three of some files or folders, for a note.

    >>> few(["elm/a.png", "elm/b.png", "elm/c.png", "elm/d.png"])
    'elm/a.png, elm/b.png, elm/c.png, and 1 more'
    """
    return all_named([str(name) for name in names], 3, separator=", ")
