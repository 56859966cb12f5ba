# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A raw data set of nnU-Net.

See Isensee et al., Nature Methods 2021, and https://github.com/MIC-DKFZ/nnUNet.
"""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import Found
from monai_fairfl.data.layouts.image_files import images_in
from monai_fairfl.data.layouts.msd import read_description
from monai_fairfl.data.layouts.pairing import as_cases, pair_by_case
from monai_fairfl.errors import DataError

EXPECTS = (
    'dataset.json with "channel_names" and "file_ending", imagesTr/CASE_0000.nii.gz, '
    "labelsTr/CASE.nii.gz (nnU-Net)"
)


def recognises(folder: Path) -> bool:
    """A ``dataset.json`` that names the files' ending."""
    return isinstance(read_description(folder).get("file_ending"), str)


def find(folder: Path) -> Found:
    """Pair each label with the first channel of its image."""
    description = read_description(folder)
    ending = description["file_ending"]
    images = _by_name(folder / "imagesTr", f"_0000{ending}")
    labels = _by_name(folder / "labelsTr", ending)
    if not images and not labels:
        raise DataError(f"{folder}: imagesTr/ and labelsTr/ hold no case with the ending {ending}")
    cases = as_cases(pair_by_case(images, labels, str(folder)))
    notes: tuple[str, ...] = ()
    if _by_name(folder / "imagesTr", f"_0001{ending}"):
        channels = description.get("channel_names") or {}
        if isinstance(channels, list):
            channels = dict(enumerate(channels))
        listed = ", ".join(f"{key}: {name}" for key, name in channels.items())
        notes = (f"channels are in files of their own ({listed}); the first, CASE_0000, is taken",)
    return Found(cases, notes=notes)


def _by_name(folder: Path, ending: str) -> dict[str, list[Path]]:
    """The image files that have the ending, by the name before it."""
    files = {}
    for path in images_in(folder):
        name = path.name.removesuffix(ending)
        if name and name != path.name:
            files[name] = [path]
    return files
