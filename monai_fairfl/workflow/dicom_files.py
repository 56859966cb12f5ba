# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM files of a folder, grouped by SeriesInstanceUID."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl.data.image_files import (
    begins_as_dicom,
    files_under,
    is_named_as_dicom,
    is_unreadable_kind,
    may_be_dicom,
)
from monai_fairfl.workflow.input_folder import why_unreadable

GEOMETRY_TAGS = (
    "Rows",
    "Columns",
    "PixelSpacing",
    "ImageOrientationPatient",
    "ImagePositionPatient",
)
# What one series has one value of (DICOM PS3.3 C.7.1 to C.7.4).
OWNER_TAGS = ("PatientID", "StudyInstanceUID", "FrameOfReferenceUID")
TAGS = [
    "SOPInstanceUID",
    "SeriesInstanceUID",
    "SeriesNumber",
    "SeriesDescription",
    "Modality",
    "ImageType",
    "NumberOfFrames",
    "PhotometricInterpretation",
    *OWNER_TAGS,
    *GEOMETRY_TAGS,
]
MODALITIES_WITHOUT_IMAGES = frozenset(
    "AU DOC KO PLAN PR REG RTDOSE RTPLAN RTRECORD RTSTRUCT SEG SR".split()
)


class HeaderedFile(NamedTuple):
    """A DICOM file and its header, a ``pydicom.Dataset`` without pixels."""

    path: Path
    header: Any


class FolderFiles(NamedTuple):
    """What lies in a folder at any depth.

    Args:
        dicom: its DICOM files, sorted.
        unreadable: path -> what is wrong, of each folder that cannot be read, and of each file that
            cannot be read and may be DICOM.
        others: its other files, sorted.
    """

    dicom: list[Path]
    unreadable: dict[Path, str]
    others: list[Path]


def find_files(folder: Path) -> FolderFiles:
    """Find the DICOM files of a folder at any depth, and what else lies there."""
    found = FolderFiles([], {}, [])

    def note_folder(error: OSError) -> None:
        found.unreadable[Path(error.filename)] = why_unreadable(error)

    for path in sorted(files_under(folder, note_folder)):
        try:
            is_dicom = _is_dicom(path)
        except OSError as error:
            if _may_be_dicom(path):
                found.unreadable[path] = why_unreadable(error)
                continue
            is_dicom = False
        if is_dicom:
            found.dicom.append(path)
        else:
            found.others.append(path)
    return found


def read_headers(
    files: Sequence[Path],
) -> tuple[dict[str, list[HeaderedFile]], dict[Path, str]]:
    """Read the header of every file.

    Returns:
        UID -> the files of that series; and path -> what is wrong with a file that has no usable
        header, and what to do. Files of objects that are no images, such as reports, are in
        neither.
    """
    import pydicom  # an extra

    series: dict[str, list[HeaderedFile]] = defaultdict(list)
    unreadable: dict[Path, str] = {}
    for path in files:
        # pydicom raises many kinds of errors for broken files, also when a tag is first used.
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True, force=True, specific_tags=TAGS)
            if not header.get("SeriesInstanceUID"):
                unreadable[path] = _no_dicom("no SeriesInstanceUID")
            elif header.get("Modality") not in MODALITIES_WITHOUT_IMAGES:
                series[header.SeriesInstanceUID].append(HeaderedFile(path, header))
        except PermissionError as error:
            unreadable[path] = why_unreadable(error)
        except Exception as error:
            unreadable[path] = _no_dicom(str(error))
    return series, unreadable


def _no_dicom(reason: str) -> str:
    return f"cannot be read as DICOM ({reason}); send it again"


def frame_count(header: Any) -> int:
    """Return the number of images in one file: more than one in an enhanced MR image."""
    return int(header.get("NumberOfFrames") or 1)


def description_of(files: Sequence[HeaderedFile]) -> str:
    """Return the SeriesDescription of a series; an empty text where it has none."""
    return str(files[0].header.get("SeriesDescription") or "")


def _is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM by its name, or by its preamble (DICOM PS3.10, 7.1).

    Raises:
        OSError: the preamble cannot be read.
    """
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    if is_named_as_dicom(path.name):
        return True  # a broken link too, which is then named as unreadable
    return path.is_file() and begins_as_dicom(path)


def _may_be_dicom(path: Path) -> bool:
    """Return whether a file that cannot be read may be DICOM by its name.

    NIfTI files and pictures are other cases.

    >>> names = ("IM0001", "IM.0001", "1.2.840.113", "a.img", "a.nii.gz", "notes.txt")
    >>> [_may_be_dicom(Path(name)) for name in names]
    [True, True, True, True, False, False]
    """
    return may_be_dicom(path.name) or is_unreadable_kind(path.name)
