# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A raw data set of nnU-Net (Isensee et al., Nature Methods 2021,
https://github.com/MIC-DKFZ/nnUNet).
"""

from __future__ import annotations

import re
from pathlib import Path

from monai_fairfl.data.layouts.base import Case, Found, all_named
from monai_fairfl.data.layouts.image_files import images_in
from monai_fairfl.data.layouts.msd import about
from monai_fairfl.errors import DataError

EXPECTS = 'dataset.json with "channel_names" and "file_ending", imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz (nnU-Net)'


def recognises(folder: Path) -> bool:
    """A ``dataset.json`` that names the files' ending."""
    return isinstance(about(folder).get("file_ending"), str)


def find(folder: Path) -> Found:
    """Pair each label with the first channel of its image."""
    ending, channels = about(folder)["file_ending"], about(folder).get("channel_names", {})
    names = [
        p.name.removesuffix(ending)
        for p in images_in(folder / "imagesTr")
        if p.name.endswith(ending)
    ]
    images = {match[1] for name in names if (match := re.fullmatch(r"(.+)_0000", name))}
    labels = {
        p.name.removesuffix(ending)
        for p in images_in(folder / "labelsTr")
        if p.name.endswith(ending)
    }
    problems = [
        f"imagesTr/{case}_0000{ending} has no labelsTr/{case}{ending}"
        for case in sorted(images - labels)
    ]
    problems += [
        f"labelsTr/{case}{ending} has no imagesTr/{case}_0000{ending}"
        for case in sorted(labels - images)
    ]
    if problems or not images:
        problems = problems or [f"imagesTr/ and labelsTr/ hold no case with the ending {ending}"]
        raise DataError(
            f"{folder}: {all_named(problems)}. Add the files, or remove their partners."
        )
    cases: list[Case] = [
        {
            "image": str(folder / "imagesTr" / f"{case}_0000{ending}"),
            "label": str(folder / "labelsTr" / f"{case}{ending}"),
        }
        for case in sorted(images)
    ]
    listed = ", ".join(f"{key}: {name}" for key, name in channels.items())
    note = f"channels are in files of their own ({listed}); the first, CASE_0000, is taken"
    return Found(cases, notes=(note,) if any(name.endswith("_0001") for name in names) else ())
