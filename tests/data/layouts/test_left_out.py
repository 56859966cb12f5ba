# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images that belong to no case are reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
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
    folders = [f"{tmp_path}/{name}" for name in ("batch2/images", "batch2/masks", "images/batch2")]
    assert left_out(cases, tmp_path) == [
        f"4 image(s) in {', '.join(folders)}, and 1 more are left out; move them to the cases",
        f"1 MHA file(s) in {tmp_path}/images are left out; convert them",
        f"2 WEBP file(s) in {tmp_path}/images are left out; convert them",
    ]


def test_images_of_an_unreadable_kind_in_other_folders_are_noted_with_the_fix(
    tmp_path: Path,
) -> None:
    made.saml(tmp_path)
    cases = as_cases([(tmp_path / "Case00.nii.gz", tmp_path / "Case00_segmentation.nii.gz")])
    for name in ("dcm/1.dcm", "dcm/2.DCM", ".cache/3.dcm", "old/Case00.nrrd", "imagesTs/4.mha"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert left_out(cases, tmp_path) == [
        f"2 DCM file(s) in {tmp_path}/dcm are left out; convert them to NIfTI, for example with "
        "dcm2niix",
        f"1 NRRD file(s) in {tmp_path}/old are left out; convert them",
    ]


def test_dicom_without_an_ending_is_noted_with_the_fix(tmp_path: Path) -> None:
    made.saml(tmp_path)
    cases = as_cases([(tmp_path / "Case00.nii.gz", tmp_path / "Case00_segmentation.nii.gz")])
    (tmp_path / "P1").mkdir()
    (tmp_path / "P1" / "IM0001").write_bytes(bytes(128) + b"DICM")
    (tmp_path / "P1" / "VERSION").write_text("1")
    assert left_out(cases, tmp_path) == [
        f"1 DICOM file(s) in {tmp_path}/P1 are left out; convert them to NIfTI, for example with "
        "dcm2niix",
    ]


def test_dicom_with_a_folder_for_each_series_is_one_note(tmp_path: Path) -> None:
    made.saml(tmp_path)
    cases = as_cases([(tmp_path / "Case00.nii.gz", tmp_path / "Case00_segmentation.nii.gz")])
    for patient in range(5):
        series = tmp_path / "DICOM" / f"P{patient}" / "study" / "series"
        series.mkdir(parents=True)
        for number in range(2):
            (series / f"{number}.dcm").touch()
    [note] = left_out(cases, tmp_path)
    folders = [f"{tmp_path}/DICOM/P{patient}/study/series" for patient in range(3)]
    assert note.startswith(f"10 DCM file(s) in {', '.join(folders)}, and 2 more are left out")


def test_a_folder_that_may_not_be_read_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.saml(tmp_path)
    cases = as_cases([(tmp_path / "Case00.nii.gz", tmp_path / "Case00_segmentation.nii.gz")])
    (tmp_path / "closed").mkdir()
    scanned = os.scandir

    # Permissions do not stop an administrator, who may run this test.
    def refuse(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scanned(path)

    monkeypatch.setattr(os, "scandir", refuse)
    [note] = left_out(cases, tmp_path)
    assert note.startswith(f"{tmp_path}/closed cannot be read by this account")


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
