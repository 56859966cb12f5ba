# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images that belong to no case are reported."""

from __future__ import annotations

from pathlib import Path

from helpers import public_layouts as made

from monai_fairfl.data.layouts.left_out import left_out
from monai_fairfl.data.layouts.pairing import as_cases


def test_folders_with_images_beside_those_of_the_cases_are_noted(tmp_path: Path) -> None:
    for name in ("images/7.png", "images/batch2/8.png", "images/.cache/9.png", "masks/7.png"):
        made.write(tmp_path / name, made.mask(1))
    (tmp_path / "masks" / "notes").mkdir()
    cases = as_cases([(tmp_path / "images" / "7.png", tmp_path / "masks" / "7.png")])
    assert left_out(cases) == [
        f"1 image(s) in {tmp_path}/images/batch2 are left out; move them to the cases"
    ]
    for name in (
        "images_2024/8.png",
        "batch2/images/8.png",
        "batch2/masks/8.png",
        "imagesTs/9.png",
    ):
        made.write(tmp_path / name, made.mask(1))
    for name in ("8.webp", "9.WEBP", "9.mha", "._9.mha", "Thumbs.db"):
        (tmp_path / "images" / name).touch()
    expected = []
    for folder in ("batch2/images", "batch2/masks", "images/batch2", "images_2024"):
        expected.append(f"1 image(s) in {tmp_path}/{folder} are left out; move them to the cases")
    expected.append(f"1 MHA file(s) in {tmp_path}/images are left out; convert them")
    expected.append(f"2 WEBP file(s) in {tmp_path}/images are left out; convert them")
    assert left_out(cases, tmp_path) == expected


def test_pictures_beside_volumes_are_noted_and_other_pictures_beside_pictures_are_not(
    tmp_path: Path,
) -> None:
    for name in ("Case00.nii.gz", "Case00_segmentation.nii.gz", "report.jpg", "a.png", "b.png"):
        (tmp_path / name).touch()
    volumes = as_cases([(tmp_path / "Case00.nii.gz", tmp_path / "Case00_segmentation.nii.gz")])
    [note] = left_out(volumes)
    assert note.startswith(f"3 image(s) in {tmp_path}, such as a.png, are left out")
    pictures = as_cases([(tmp_path / "a.png", tmp_path / "b.png")])
    [note] = left_out(pictures)
    assert note.startswith(f"2 image(s) in {tmp_path}, such as Case00.nii.gz, are left out")
