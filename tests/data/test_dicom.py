# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM among a site's files is named with the fix; a series lies where it was taken."""

from __future__ import annotations

import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.refusals import noted, refused

from monai_fairfl.data import find_cases, overview, site_folders
from monai_fairfl.workflow import find_images

DICOM = bytes(128) + b"DICM"


def write(root: Path, **files: bytes) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


@pytest.mark.parametrize("file", ["Case01/1.dcm", "P1/1.2.840.113"])
def test_a_hospital_of_dicom_is_reported_with_the_fix(tmp_path: Path, file: str) -> None:
    made.saml(tmp_path / "RUNMC")
    write(tmp_path / "BIDMC", **{file: DICOM})
    with noted(tmp_path / "BIDMC", "dcm2niix"):
        assert list(site_folders(tmp_path)) == ["RUNMC"]
    with refused(tmp_path / "BIDMC", "dcm2niix"):
        find_cases(tmp_path / "BIDMC")
    # The same beside the cases of a site.
    site = made.saml(tmp_path / "BIDMC")
    files = overview({"BIDMC": site})[0]["files"]
    assert files["used"] == 8 and "dcm2niix" in files["refused"][str(site / file)]


def test_what_does_not_begin_as_dicom_is_none(tmp_path: Path) -> None:
    made.saml(tmp_path / "RUNMC")
    write(tmp_path / "notes", **{"LICENSE": b"MIT", "backup.2": b"1", "short": DICOM[:131]})
    write(tmp_path / "series", **{"DICOMDIR": DICOM, ".IM0001": DICOM})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(site_folders(tmp_path)) == ["RUNMC"]


def test_a_series_without_the_headers_of_files_is_read_as_with_them(tmp_path: Path) -> None:
    """As scanners and archives leave them out, with no ending or an odd one in the names."""
    series = pytest.importorskip("helpers.dicom_series")
    pydicom = pytest.importorskip("pydicom")
    series.write_series(tmp_path / "in" / "P1", series.VOLUME)
    (tmp_path / "in" / "P2").mkdir()
    for number, file in enumerate(sorted((tmp_path / "in" / "P1").iterdir())):
        dataset = pydicom.dcmread(file)
        dataset.SeriesInstanceUID += ".2"
        plain = pydicom.Dataset(dataset)
        path = tmp_path / "in" / "P2" / f"{number:04d}{'.MR' * (number % 2)}"
        plain.save_as(path, implicit_vr=True, little_endian=True, enforce_file_format=False)
        assert path.read_bytes()[128:132] != b"DICM"
    found = find_images(tmp_path / "in", tmp_path / "out.json")
    first, second = (nib.Nifti1Image.from_filename(case.image) for case in found)
    np.testing.assert_array_equal(np.asanyarray(first.dataobj), np.asanyarray(second.dataobj))
    # Such files count as DICOM beside a site's cases, too.
    files = overview({"in": made.saml(tmp_path / "in")})[0]["files"]
    assert (files["used"], len(files["refused"])) == (8, 12)
