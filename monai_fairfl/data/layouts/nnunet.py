# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A raw data set of nnU-Net.

See Isensee et al., Nature Methods 2021, and https://github.com/MIC-DKFZ/nnUNet.
"""

from __future__ import annotations

from pathlib import Path

from monai_fairfl.data.layouts.base import CaseFiles, Found, all_named
from monai_fairfl.data.layouts.image_files import images_in
from monai_fairfl.data.layouts.msd import read_description
from monai_fairfl.errors import DataError

EXPECTS = (
    'dataset.json with "channel_names" and "file_ending", imagesTr/CASE_0000.nii.gz, '
    "labelsTr/CASE.nii.gz (nnU-Net)"
)
FIRST_CHANNEL = "_0000"
SECOND_CHANNEL = "_0001"


def recognises(folder: Path) -> bool:
    """A ``dataset.json`` that names the files' ending."""
    return isinstance(read_description(folder).get("file_ending"), str)


def find(folder: Path) -> Found:
    """Pair each label with the first channel of its image."""
    description = read_description(folder)
    ending = description["file_ending"]
    image_names = _names_in(folder / "imagesTr", ending)
    labelled_cases = _names_in(folder / "labelsTr", ending)
    imaged_cases = set()
    for name in image_names:
        case = name.removesuffix(FIRST_CHANNEL)
        if case and case != name:
            imaged_cases.add(case)
    problems = []
    for case in sorted(imaged_cases - labelled_cases):
        problems.append(f"imagesTr/{case}_0000{ending} has no labelsTr/{case}{ending}")
    for case in sorted(labelled_cases - imaged_cases):
        problems.append(f"labelsTr/{case}{ending} has no imagesTr/{case}_0000{ending}")
    if not imaged_cases and not problems:
        problems.append(f"imagesTr/ and labelsTr/ hold no case with the ending {ending}")
    if problems:
        raise DataError(
            f"{folder}: {all_named(problems)}. Add the files, or remove their partners."
        )
    cases: list[CaseFiles] = []
    for case in sorted(imaged_cases):
        image = folder / "imagesTr" / f"{case}{FIRST_CHANNEL}{ending}"
        label = folder / "labelsTr" / f"{case}{ending}"
        cases.append({"image": str(image), "label": str(label)})
    notes: tuple[str, ...] = ()
    if any(name.endswith(SECOND_CHANNEL) for name in image_names):
        channels = description.get("channel_names") or {}
        if isinstance(channels, list):
            channels = dict(enumerate(channels))
        listed = ", ".join(f"{key}: {name}" for key, name in channels.items())
        notes = (f"channels are in files of their own ({listed}); the first, CASE_0000, is taken",)
    return Found(cases, notes=notes)


def _names_in(folder: Path, ending: str) -> set[str]:
    """Names of the image files that have the ending, without it."""
    names = set()
    for path in images_in(folder):
        if path.name.endswith(ending):
            names.add(path.name.removesuffix(ending))
    return names
