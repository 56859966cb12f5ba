# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM Segmentation objects, read back with highdicom and judged by DICOM's own code lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

from helpers.dicom_series import (  # noqa: E402
    SHUFFLED,
    VOLUME,
    found,
    oblique,
    write_enhanced,
    write_series,
)

from monai_fairfl.workflow import write_dicom_seg  # noqa: E402

MASK = np.random.default_rng(2).random((14, 10, 6)) > 0.5
MASK[..., 0] = False


@pytest.mark.parametrize("mask", [MASK, np.zeros_like(MASK)], ids=["gland", "no gland"])
def test_a_mask_comes_back_pixel_by_pixel_on_the_images_of_its_patient(
    mask: np.ndarray, tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "in", orientation=oblique(20, 30), order=SHUFFLED)
    [case] = found(tmp_path / "in")
    write_dicom_seg(mask, case.files, tmp_path / "seg.dcm")
    seg = highdicom.seg.segread(tmp_path / "seg.dcm")
    uids = [dataset.SOPInstanceUID for dataset in sent]
    frames = seg.get_pixels_by_source_instance(uids, combine_segments=False)
    np.testing.assert_array_equal(frames[..., 0].transpose(2, 1, 0), mask)
    [referenced] = seg.ReferencedSeriesSequence
    assert referenced.SeriesInstanceUID == sent[0].SeriesInstanceUID
    images = {image.ReferencedSOPInstanceUID for image in referenced.ReferencedInstanceSequence}
    assert images == set(uids)

    theirs, source = seg.get_volume(combine_segments=True), highdicom.get_volume_from_series(sent)
    np.testing.assert_allclose(theirs.affine, source.affine, atol=1e-5)
    of_patient = ("PatientID", "PatientName", "AccessionNumber", "StudyDate")
    for name in (*of_patient, "StudyInstanceUID", "FrameOfReferenceUID"):
        assert seg[name].value == sent[0][name].value, name
    assert seg.SeriesInstanceUID != sent[0].SeriesInstanceUID and seg.Modality == "SEG"


def test_the_mask_of_a_file_of_several_frames_lies_on_its_frames(tmp_path: Path) -> None:
    sent = write_series(tmp_path / "single", orientation=oblique())
    file = tmp_path / "in" / "all.dcm"
    write_enhanced(file, sent, (4, 1, 5, 2, 0, 3))
    write_dicom_seg(MASK, [file], tmp_path / "seg.dcm")
    source = pydicom.dcmread(file)
    frames = highdicom.seg.segread(tmp_path / "seg.dcm").get_pixels_by_source_frame(
        source.SOPInstanceUID,
        range(1, 7),
        combine_segments=True,
        assert_missing_frames_are_empty=True,
    )
    for drawn, shown in zip(frames, source.pixel_array, strict=True):
        [index] = [index for index in range(6) if np.array_equal(VOLUME[index], shown)]
        np.testing.assert_array_equal(drawn.T, MASK[..., index])


def test_a_segment_has_the_codes_of_the_standards_lists_also_without_a_patient(
    tmp_path: Path,
) -> None:
    gone = ["PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyID", "StudyDate"]
    gone += ["AccessionNumber", "StudyTime", "SeriesNumber"]
    sent = write_series(tmp_path / "in", **dict.fromkeys(gone))
    write_dicom_seg(MASK, [dataset.filename for dataset in sent], tmp_path / "seg.dcm")
    seg = highdicom.seg.segread(tmp_path / "seg.dcm")
    assert not seg.PatientID
    assert (seg.SegmentationType, seg.number_of_segments) == ("BINARY", 1)
    segment = seg.get_segment_description(1)
    assert (segment.segment_label, segment.algorithm_type.value) == ("Prostate", "AUTOMATIC")
    assert segment.segmented_property_type.value == "41216001"
    codes = {"CID7150": segment.segmented_property_category}
    codes["CID7151"] = segment.segmented_property_type
    for name, code in codes.items():
        assert code in list(pydicom.sr.codedict.Collection(name).concepts.values())


def test_a_mask_of_another_size_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    files = [dataset.filename for dataset in write_series(tmp_path / "in")]
    for mask in (MASK[..., :5], MASK.transpose(1, 0, 2), MASK[..., 0]):
        with pytest.raises(ValueError):
            write_dicom_seg(mask, files, tmp_path / "seg.dcm")
    assert not (tmp_path / "seg.dcm").exists()
