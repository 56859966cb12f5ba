# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM files of a folder, grouped by SeriesInstanceUID."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

GEOMETRY_TAGS = (
    "Rows",
    "Columns",
    "PixelSpacing",
    "ImageOrientationPatient",
    "ImagePositionPatient",
)
TAGS = [
    "SOPInstanceUID",
    "SeriesInstanceUID",
    "SeriesNumber",
    "SeriesDescription",
    "Modality",
    "ImageType",
    "NumberOfFrames",
    "PhotometricInterpretation",
    *GEOMETRY_TAGS,
]
MODALITIES_WITHOUT_IMAGES = frozenset(
    "AU DOC KO PLAN PR REG RTDOSE RTPLAN RTRECORD RTSTRUCT SEG SR".split()
)


class HeaderedFile(NamedTuple):
    """A DICOM file and its header, a ``pydicom.Dataset`` without pixels."""

    path: Path
    header: Any


def find_dicom_files(folder: Path) -> list[Path]:
    """List the DICOM files of a folder at any depth, sorted."""
    return sorted(path for path in files_under(folder) if _is_dicom(path))


def read_headers(
    files: Sequence[Path],
) -> tuple[dict[str, list[HeaderedFile]], dict[Path, str]]:
    """Read the header of every file.

    Returns:
        UID -> the files of that series; and path -> what is wrong with a file that has no usable
        header. Files of objects that are no images, such as reports, are in neither.
    """
    import pydicom  # an extra

    series: dict[str, list[HeaderedFile]] = defaultdict(list)
    unreadable: dict[Path, str] = {}
    for path in files:
        # pydicom raises many kinds of errors for broken files, also when a tag is first used.
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True, force=True, specific_tags=TAGS)
            if not header.get("SeriesInstanceUID"):
                unreadable[path] = "no SeriesInstanceUID"
            elif header.get("Modality") not in MODALITIES_WITHOUT_IMAGES:
                series[header.SeriesInstanceUID].append(HeaderedFile(path, header))
        except Exception as error:
            unreadable[path] = str(error)
    return series, unreadable


def frame_count(header: Any) -> int:
    """Return the number of images in one file: more than one in an enhanced MR image."""
    return int(header.get("NumberOfFrames") or 1)


def description_of(files: Sequence[HeaderedFile]) -> str:
    """Return the SeriesDescription of a series; an empty text where it has none."""
    return str(files[0].header.get("SeriesDescription") or "")


def files_under(folder: Path) -> Iterator[Path]:
    """Yield every file of a folder at any depth, none twice.

    Folders come before those that are links to others.
    """
    # The list grows by the links that are found; what was seen is skipped, as links may form a
    # loop.
    starts = [folder]
    seen: set[str] = set()
    for start in starts:
        for parent, folders, names in os.walk(start):
            real_parent = os.path.realpath(parent)
            if real_parent in seen:
                folders.clear()  # so that os.walk does not go deeper
                continue
            seen.add(real_parent)
            for name in sorted(folders):
                path = Path(parent, name)
                if os.path.islink(path):
                    starts.append(path)
            for name in names:
                yield Path(parent, name)


def _is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM by its name, or by its preamble (DICOM PS3.10, 7.1)."""
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    if path.suffix.lower() in (".dcm", ".ima"):
        return True  # a broken link too, which is then named as unreadable
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"
