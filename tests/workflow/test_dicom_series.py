# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM series as cases: which files make one, its name, and where its voxels lie."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("pydicom")

from helpers.dicom_series import (  # noqa: E402
    VOLUME,
    VOXELS,
    found,
    loaded,
    oblique,
    write_enhanced,
    write_series,
)

from monai_fairfl.workflow import Cases  # noqa: E402


def save_nifti(path: Path) -> None:
    nib.save(nib.Nifti1Image(VOLUME.astype(np.float32), np.eye(4)), path)


def names(cases: Cases) -> list[str]:
    return [case.name for case in cases]


# --- which files make a case, and its name


def test_series_are_separated_in_one_folder_and_joined_over_folders(tmp_path: Path) -> None:
    root = tmp_path / "in"
    uids = {"SeriesInstanceUID": "1.2.3", "StudyInstanceUID": "1.2.4"}
    uids["FrameOfReferenceUID"] = "1.2.5"
    write_series(root / "P3" / "part1", VOLUME[:3], **uids)
    write_series(root / "P3" / "part2", VOLUME[3:], places=[3, 4, 5], **uids)
    write_series(root / "P2", names="4_{}.dcm", SeriesNumber=4)
    write_series(root / "P2", names="5_{}.dcm", SeriesNumber=5)
    # No ending, beside what is no image; some programs give all files of a patient one series.
    write_series(root / "P1" / "STUDY" / "T2", names="IM{}", SeriesInstanceUID="1.2.6")
    write_series(root / "P1" / "A", VOLUME[:1], Modality="SR", SeriesInstanceUID="1.2.6")
    (root / "P1" / "STUDY" / "README").write_text("exported by a PACS")
    (root / "DICOMDIR").write_bytes(bytes(128) + b"DICM")

    cases = found(root)
    assert names(cases) == ["P1_STUDY_T2", "P2", "P2_2", "P3"]
    assert {len(case.files) for case in cases} == {6}
    assert "it holds no image, but SR" in cases.table()["files"]["refused"].values()
    joined = cases.cases[-1]
    assert (joined.results["series_instance_uid"], joined.source) == ("1.2.3", str(root / "P3"))
    np.testing.assert_array_equal(loaded(joined.image)[0], VOXELS)


def test_folders_that_are_links_are_searched_once_and_loops_end(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write_series(root / "P1")
    write_series(tmp_path / "archive")
    (root / "P2").symlink_to(tmp_path / "archive")
    (root / "A").symlink_to(root / "P1")
    (root / "P1" / "up").symlink_to(root)
    assert [(case.name, len(case.files)) for case in found(root)] == [("P1", 6), ("P2", 6)]


def test_series_can_be_chosen_by_their_description(tmp_path: Path) -> None:
    for name in ("t2_tse_tra", "t2_tse_sag", "ep2d_diff_ADC"):
        write_series(tmp_path / "in" / name, SeriesDescription=name)
    assert names(found(tmp_path / "in", series="T2*tra*")) == ["t2_tse_tra"]


def test_series_of_one_name_are_told_apart_and_none_leads_out_of_the_folder(tmp_path: Path) -> None:
    for number in range(2):
        uid = f"../../{number}"
        write_series(tmp_path / "in", names=f"{number}_{{}}.dcm", SeriesInstanceUID=uid)
    write_series(tmp_path / "in" / "P1")
    save_nifti(tmp_path / "in" / "P1.nii.gz")
    cases = found(tmp_path / "in")
    assert names(cases) == ["P1", "P1_2", "series", "series_2"]
    for case in cases:
        assert Path(case.image).resolve().is_relative_to(tmp_path)


# --- files that the system refuses


def forbid(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Refuse to open these files and to list these folders: root could read them all the same."""
    refused = {os.path.realpath(path) for path in paths}

    def refusing(function: Any) -> Any:
        def call(path: Any, *args: Any, **settings: Any) -> Any:
            is_path = isinstance(path, (str, os.PathLike))
            if is_path and os.path.realpath(path) in refused:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return function(path, *args, **settings)

        return call

    for name, function in (
        ("os.scandir", os.scandir),
        ("io.open", io.open),
        ("builtins.open", open),
    ):
        monkeypatch.setattr(name, refusing(function))


def test_what_may_not_be_read_and_may_be_an_image_is_a_skipped_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "in"
    write_series(root / "P1")
    write_series(root / "study" / "private")
    (root / "P2").mkdir()
    files = [root / "P2" / name for name in ("IM0001", "slice.dcm", "notes.txt", ".hidden")]
    for path in files:
        path.write_bytes(bytes(128) + b"DICM")
    save_nifti(root / "volume.nii")
    forbid(monkeypatch, root / "study" / "private", *files, root / "volume.nii")
    good, *skipped = found(root)
    assert good.name == "P1" and good.image and good.problems == []
    names = ["P2_IM0001", "P2_slice.dcm", "study_private", "volume"]
    assert [case.name for case in skipped] == names
    for case in skipped:
        assert case.status == "skipped" and "permission" in case.problems[0], case.name
    # After a change of the permissions.
    monkeypatch.undo()
    assert {"P1", "study_private", "volume"} == {case.name for case in found(root) if case.image}


def test_slices_that_lost_their_patient_to_deidentification_stay_in_their_series(
    tmp_path: Path,
) -> None:
    sent = write_series(tmp_path / "in")
    for dataset, empty in zip(sent[2:4], ("", None), strict=True):
        dataset.PatientID = dataset.FrameOfReferenceUID = empty
        dataset.PixelSpacing = [0.750001, 0.5]
        dataset.save_as(dataset.filename)
    cases = found(tmp_path / "in")
    [case] = cases
    assert (len(case.files), case.problems) == (6, [])
    np.testing.assert_array_equal(loaded(case.image)[0], VOXELS)


def test_a_slice_that_cannot_be_read_is_named_and_its_neighbours_are_doubted(
    tmp_path: Path,
) -> None:
    # An end slice: without it the others are an even stack.
    for name in ("damaged", "gone"):
        write_series(tmp_path / "in" / name)
    (tmp_path / "in" / "damaged" / "IM0006.dcm").write_bytes(b"\0" * 300)
    gone = tmp_path / "in" / "gone" / "IM0006.dcm"
    gone.unlink()
    gone.symlink_to(tmp_path / "an archive that is not mounted")
    cases = {case.name: case for case in found(tmp_path / "in")}
    for name in ("damaged", "gone"):
        assert len(cases[name].files) == 5
        assert "IM0006.dcm" in cases[name].problems[0]
        assert cases[f"{name}_IM0006.dcm"].status == "skipped"


# --- where the voxels lie


def test_frames_of_one_file_are_read_as_if_each_were_a_file_and_rescaled(tmp_path: Path) -> None:
    tags: dict[str, Any] = {"RescaleSlope": 2.5, "RescaleIntercept": -7, "RescaleType": "US"}
    sent = write_series(tmp_path / "in" / "files", orientation=oblique(25, 35), **tags)
    write_enhanced(tmp_path / "in" / "frames" / "all.dcm", sent, (4, 1, 5, 2, 0, 3))
    cases = found(tmp_path / "in")
    files, frames = cases
    assert (len(files.files), len(frames.files)) == (6, 1)
    voxels, affine = loaded(files.image)
    np.testing.assert_allclose(voxels, VOXELS * 2.5 - 7)
    voxels_of_frames, affine_of_frames = loaded(frames.image)
    np.testing.assert_allclose(voxels, voxels_of_frames)
    np.testing.assert_allclose(affine, affine_of_frames, atol=1e-5)
