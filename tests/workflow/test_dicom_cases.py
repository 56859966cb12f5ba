# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which DICOM files make a case, the case's name, and the copies that inference reads."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from helpers.dicom_cases import VOLUME, VOXELS, found, loaded, only, save_nifti  # noqa: E402
from helpers.dicom_series import write_series  # noqa: E402


def test_series_are_separated_in_one_folder_and_joined_over_folders(tmp_path: Path) -> None:
    root = tmp_path / "in"
    uid = pydicom.uid.generate_uid()
    tags: dict[str, Any] = {
        "SeriesInstanceUID": uid,
        "StudyInstanceUID": "1.2.3.4",
        "FrameOfReferenceUID": "1.2.3.5",
        "SeriesNumber": 9,
        "step": 3.3,
    }
    write_series(root / "P3" / "part1", VOLUME[:3], **tags)
    write_series(root / "P3" / "part2", VOLUME[3:], places=[3, 4, 5], **tags)
    write_series(root / "P1" / "STUDY" / "T2", VOLUME)
    write_series(root / "P2", VOLUME, names="4_{}.dcm", SeriesNumber=4)
    write_series(root / "P2", VOLUME, names="5_{}.dcm", SeriesNumber=5)

    cases = found(root)
    assert [case.name for case in cases] == ["P1_STUDY_T2", "P2_series4", "P2_series5", "P3"]
    for case in cases:
        assert len(case.files) == 6
    joined = cases.cases[3]
    assert joined.series == uid
    assert joined.source == str(root / "P3")
    voxels, _ = loaded(joined.image)
    np.testing.assert_array_equal(voxels, VOXELS)


def test_names_differ_when_series_have_the_same_folder_and_number(tmp_path: Path) -> None:
    for patient in "ab":
        write_series(tmp_path / "in", VOLUME, names=f"{patient}{{}}.dcm")
    cases = found(tmp_path / "in")
    assert len(cases.images) == 2
    assert len({case.name for case in cases}) == 2
    for case in cases:
        assert case.name == f"series5_{case.series}"


def test_series_whose_uids_end_alike_have_their_own_images(tmp_path: Path) -> None:
    # As Siemens numbers them.
    uid = "1.3.12.2.1107.5.2.32.35177.201307171154187683412037{}.0.0.0"
    for number, level in ((0, 0), (1, 5000)):
        write_series(
            tmp_path / "in",
            VOLUME + level,
            names=f"{number}{{}}.dcm",
            SeriesInstanceUID=uid.format(number),
        )
    cases = found(tmp_path / "in")
    first, second = cases.images
    np.testing.assert_array_equal(loaded(first["image"])[0], VOXELS)
    np.testing.assert_array_equal(loaded(second["image"])[0], VOXELS + 5000)


def test_a_series_whose_name_another_case_has_is_skipped_and_overwrites_nothing(
    tmp_path: Path,
) -> None:
    write_series(tmp_path / "in", VOLUME, names="a{}.dcm", SeriesInstanceUID="1.2.3")
    write_series(tmp_path / "in", VOLUME, names="b{}.dcm", SeriesInstanceUID="1.2.4")
    save_nifti(tmp_path / "in" / "series5_1.2.3.nii")
    cases = found(tmp_path / "in")
    assert [(case.name, bool(case.image)) for case in cases] == [
        ("series5_1.2.3", True),
        ("series5_1.2.3", False),
        ("series5_1.2.4", True),
    ]
    skipped = cases.cases[1]
    assert "its outputs would have the names of another's; rename" in skipped.problems[0]


def test_folders_whose_names_joined_are_too_long_for_a_file_give_a_short_one(
    tmp_path: Path,
) -> None:
    patient = "研究用患者名前" * 5
    study = "前立腺検査部位名" * 4
    description = "シリーズ説明文字列" * 3
    folder = tmp_path / "in" / patient / study / description
    for number, level in ((1, 0), (2, 7)):
        write_series(folder, VOLUME + level, names=f"{number}_{{}}.dcm", SeriesNumber=number)

    cases = found(tmp_path / "in")
    assert len({case.name for case in cases}) == 2
    for case in cases:
        assert case.image
        assert Path(case.image).is_file()
        assert case.name.startswith("研究用患者名前")
        assert len(os.fsencode(f"{case.name}_overlay.png")) <= 255


def test_a_copy_that_cannot_be_written_costs_its_series_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(image: nib.Nifti1Image, path: Path) -> None:
        if "P1" in str(path):
            raise OSError(28, "No space left on device")
        image.to_filename(path)

    monkeypatch.setattr("monai_fairfl.workflow.dicom.nib.save", full)
    write_series(tmp_path / "in" / "P1", VOLUME)
    write_series(tmp_path / "in" / "P2", VOLUME)
    first, second = found(tmp_path / "in")
    assert first.status == "skipped"
    assert "No space left on device; make room in" in first.problems[0]
    assert "--output_dir" in first.problems[0]
    assert second.image


def test_folders_that_are_links_are_searched_once_and_loops_end(tmp_path: Path) -> None:
    root = tmp_path / "in"
    archive = tmp_path / "archive" / "P2"
    write_series(root / "P1", VOLUME)
    write_series(archive, VOLUME)
    (root / "P2").symlink_to(archive)
    (root / "A").symlink_to(root / "P1")
    (root / "P1" / "up").symlink_to(root)
    assert [(case.name, len(case.files)) for case in found(root)] == [("P1", 6), ("P2", 6)]


def test_files_need_no_extension_and_documents_of_a_study_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write_series(root / "T2", VOLUME, names="IM{}")
    write_series(root / "report", VOLUME[:1], Modality="SR")
    (root / "T2" / "README").write_text("exported by a PACS")
    (root / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    assert [case.name for case in found(root)] == ["T2"]


def test_series_can_be_chosen_by_their_description(tmp_path: Path) -> None:
    for name in ("t2_tse_tra", "t2_tse_sag", "ep2d_diff_ADC"):
        write_series(tmp_path / "in" / name, VOLUME, SeriesDescription=name)
    chosen = found(tmp_path / "in", series="T2*tra*")
    assert [case.name for case in chosen] == ["t2_tse_tra"]


def test_nifti_and_dicom_may_lie_side_by_side(tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "P1", VOLUME)
    save_nifti(tmp_path / "in" / "P1.nii.gz")
    cases = found(tmp_path / "in")
    assert len(cases.images) == 2
    first, second = cases
    assert first.name == "P1"
    assert second.name.startswith("P1_")


def test_a_folder_that_may_not_be_read_is_a_skipped_case_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "in"
    write_series(root / "P1", VOLUME)
    write_series(root / "study" / "private", VOLUME)
    # The same folder again.
    (root / "link").symlink_to(root / "study" / "private")
    forbid(monkeypatch, root / "study" / "private")

    good, private = found(root)
    assert good.name == "P1" and good.image and good.problems == []
    assert (private.name, private.status) == ("study_private", "skipped")
    assert private.source == str(root / "study" / "private")
    assert private.problems == ["no permission to read; change the permissions"]


def test_a_file_that_may_not_be_read_is_named_once_if_it_may_be_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "in"
    write_series(root / "P1", VOLUME)
    (root / "P2").mkdir()
    images = ["IM0001", "1.2.840.113", "slice.dcm"]
    others = ["notes.txt", "report.pdf", ".hidden"]
    for name in [*images, *others]:
        (root / "P2" / name).write_bytes(bytes(128) + b"DICM")
    save_nifti(root / "volume.nii")
    (root / "scan").write_bytes(b"any")
    unreadable = [root / "P2" / name for name in [*images, *others]]
    forbid(monkeypatch, *unreadable, root / "volume.nii", root / "scan")

    # With this pattern a name without an ending may be a NIfTI file, too.
    for pattern in ("*.nii*", "*"):
        good, *skipped = found(root, pattern=pattern)
        assert good.name == "P1" and good.image
        names = [case.name for case in skipped]
        assert names == ["P2_1.2.840.113", "P2_IM0001", "P2_slice.dcm", "scan", "volume"]
        for case in skipped:
            assert case.status == "skipped"
            assert case.problems == ["no permission to read; change the permissions"], case.name


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

    monkeypatch.setattr("os.scandir", refusing(os.scandir))
    monkeypatch.setattr("io.open", refusing(io.open))
    monkeypatch.setattr("builtins.open", refusing(open))


def test_copies_are_gone_after_the_run(tmp_path: Path) -> None:
    write_series(tmp_path / "in", VOLUME)
    cases = found(tmp_path / "in")
    case = only(cases)
    assert Path(case.image).is_file()
    case.status = "segmented"
    cases.finish()
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == ["volumes.csv", "volumes.json"]
