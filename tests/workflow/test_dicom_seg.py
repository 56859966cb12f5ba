# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM Segmentation objects, read back with highdicom and judged by DICOM's own code lists."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

from helpers.dicom_series import SAGITTAL, oblique, write_enhanced, write_series  # noqa: E402

from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.workflow import (  # noqa: E402
    Case,
    Cases,
    SaveDicomSegd,
    find_images,
    write_dicom_seg,
)

VOLUME = (
    np.random.default_rng(1).integers(0, 500, (6, 10, 14)).astype(np.int16)
)  # slices, rows, columns
MASK = np.random.default_rng(2).random((14, 10, 6)) > 0.5
MASK[..., 0] = False


@pytest.mark.slow
@pytest.mark.parametrize("orientation", [oblique(), SAGITTAL], ids=["oblique", "sagittal"])
@pytest.mark.parametrize("mask", [MASK, np.zeros_like(MASK)], ids=["gland", "no gland"])
def test_mask_comes_back_pixel_by_pixel_on_every_image_of_the_series(
    orientation: tuple[float, ...], mask: np.ndarray, tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "in", VOLUME, orientation=orientation, order=(6, 2, 5, 1, 3, 4))
    (case,) = find_images(tmp_path / "in", tmp_path / "volumes.json")
    write_dicom_seg(mask, case.files, tmp_path / "seg.dcm")
    seg = highdicom.seg.segread(tmp_path / "seg.dcm")
    uids = [dataset.SOPInstanceUID for dataset in sent]
    frames = seg.get_pixels_by_source_instance(uids, combine_segments=False)
    np.testing.assert_array_equal(frames[..., 0].transpose(2, 1, 0), mask)
    assert {source[2] for source in seg.get_source_image_uids()} == set(uids)
    (referenced,) = seg.ReferencedSeriesSequence
    assert referenced.SeriesInstanceUID == sent[0].SeriesInstanceUID
    assert {item.ReferencedSOPInstanceUID for item in referenced.ReferencedInstanceSequence} == set(
        uids
    )


@pytest.mark.slow
@pytest.mark.parametrize("order", [range(6), (4, 1, 5, 2, 0, 3)], ids=["in order", "shuffled"])
def test_mask_of_a_file_of_several_frames_lies_on_its_frames(
    order: Sequence[int], tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "single", VOLUME, orientation=oblique())
    write_enhanced(tmp_path / "in" / "all.dcm", sent, order)
    (case,) = find_images(tmp_path / "in", tmp_path / "volumes.json")
    write_dicom_seg(MASK, case.files, tmp_path / "seg.dcm")
    seg, source = highdicom.seg.segread(tmp_path / "seg.dcm"), pydicom.dcmread(
        tmp_path / "in" / "all.dcm"
    )
    frames = seg.get_pixels_by_source_frame(
        source.SOPInstanceUID,
        range(1, 7),
        combine_segments=True,
        assert_missing_frames_are_empty=True,
    )
    for drawn, shown in zip(frames, source.pixel_array, strict=True):
        (index,) = (index for index in range(6) if np.array_equal(VOLUME[index], shown))
        np.testing.assert_array_equal(drawn.T, MASK[..., index])


@pytest.mark.slow
def test_the_one_file_that_holds_all_slices_needs_no_list(tmp_path: Path) -> None:
    sent = write_series(tmp_path / "single", VOLUME)
    write_enhanced(tmp_path / "all.dcm", sent, range(6))
    write_dicom_seg(MASK, str(tmp_path / "all.dcm"), tmp_path / "seg.dcm")
    drawn = highdicom.seg.segread(tmp_path / "seg.dcm").pixel_array
    assert drawn.sum() == (MASK > 0).sum()


@pytest.mark.slow
def test_object_lies_where_the_series_lies_and_belongs_to_its_patient_and_study(
    tmp_path: Path,
) -> None:
    sent = write_series(tmp_path / "in", VOLUME, orientation=oblique(20, 30))
    write_dicom_seg(MASK, [dataset.filename for dataset in sent], tmp_path / "seg.dcm")
    seg = highdicom.seg.segread(tmp_path / "seg.dcm")
    theirs, source = seg.get_volume(combine_segments=True), highdicom.get_volume_from_series(sent)
    np.testing.assert_allclose(theirs.affine, source.affine, atol=1e-5)
    for name in (
        "PatientID",
        "PatientName",
        "StudyInstanceUID",
        "FrameOfReferenceUID",
        "AccessionNumber",
        "StudyDate",
    ):
        assert seg[name].value == sent[0][name].value, name
    assert seg.SeriesInstanceUID != sent[0].SeriesInstanceUID and seg.Modality == "SEG"


@pytest.mark.slow
def test_segment_has_the_codes_of_the_standards_lists(tmp_path: Path) -> None:
    sent = write_series(tmp_path / "in", VOLUME)
    write_dicom_seg(MASK, [dataset.filename for dataset in sent], tmp_path / "seg.dcm")
    seg = highdicom.seg.segread(tmp_path / "seg.dcm")
    assert seg.SegmentationType == "BINARY" and seg.number_of_segments == 1
    segment = seg.get_segment_description(1)
    assert segment.segment_label == "Prostate" and segment.algorithm_type.value == "AUTOMATIC"
    lists = pydicom.sr.codedict
    assert segment.segmented_property_category in list(
        lists.Collection("CID7150").concepts.values()
    )
    assert segment.segmented_property_type in list(lists.Collection("CID7151").concepts.values())
    assert segment.segmented_property_type.value == "41216001"


def test_series_that_lost_its_patient_to_deidentification_still_gets_an_object(
    tmp_path: Path,
) -> None:
    gone = (
        "PatientID",
        "PatientName",
        "PatientBirthDate",
        "PatientSex",
        "StudyID",
        "StudyDate",
        "AccessionNumber",
    )
    sent = write_series(
        tmp_path / "in", VOLUME, **dict.fromkeys((*gone, "StudyTime", "SeriesNumber"))
    )
    write_dicom_seg(MASK, [dataset.filename for dataset in sent], tmp_path / "seg.dcm")
    assert not highdicom.seg.segread(tmp_path / "seg.dcm").PatientID


@pytest.mark.parametrize(
    ("organ", "hint"),
    [
        ("Prostat", "did you mean 'Prostate'"),
        ("prostate", "did you mean 'Prostate'"),
        # An attribute of the dictionary that is no code.
        ("concepts", "did you mean"),
        ("", "take a name of pydicom.sr.codedict.codes.SCT.dir.., such as 'Prostate'"),
    ],
)
def test_an_organ_without_a_code_is_refused_with_the_name_that_is_like_it(
    organ: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"organ {organ!r} has no SNOMED CT code .*: {hint}"):
        write_dicom_seg(MASK, [], tmp_path / "seg.dcm", organ)


def test_a_mask_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="files is empty: name the DICOM files of the series"):
        write_dicom_seg(MASK, [], tmp_path / "seg.dcm")


@pytest.mark.parametrize(
    ("mask", "size"),
    [
        (MASK[..., :5], "14 x 10 x 5"),
        (MASK.transpose(1, 0, 2), "10 x 14 x 6"),
        (MASK[..., 0], "14 x 10"),
    ],
)
def test_a_mask_of_another_size_than_the_series_is_refused_with_both(
    mask: np.ndarray, size: str, tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "in", VOLUME)
    words = f"the mask is {size}, and the volume in files 14 x 10 x 6 .*: name all files"
    with pytest.raises(ConfigError, match=words):
        write_dicom_seg(mask, [dataset.filename for dataset in sent], tmp_path / "seg.dcm")
    assert not (tmp_path / "seg.dcm").exists()


def test_without_highdicom_the_case_gets_a_note_and_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "highdicom", None)
    case = Case("a", source="in", image="a.nii", files=("1.dcm",))
    output = SaveDicomSegd("pred", Cases([case], tmp_path / "volumes.json"), tmp_path)
    assert output.write(case, None) == {}  # type: ignore[arg-type]
    assert "pip install 'monai-fairfl[dicom]'" in case.problems[0] and case.status == "waiting"
