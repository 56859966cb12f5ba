# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM Segmentation objects, read back with highdicom and judged by DICOM's own code lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

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

from monai_fairfl.workflow import Case, Cases, SaveDicomSegd  # noqa: E402

MASK = np.random.default_rng(2).random((14, 10, 6)) > 0.5
MASK[..., 0] = False


def written(mask: np.ndarray, case: Case, folder: Path) -> Any:
    """The object of a mask of this case."""
    labels = torch.as_tensor(mask[None].astype(np.uint8))
    pred = MetaTensor(labels, meta={"filename_or_obj": case.image})
    SaveDicomSegd("pred", Cases([case], folder / "volumes.json"))({"pred": pred})
    assert case.status == "segmented", case.problems
    return highdicom.seg.segread(folder / case.results["dicom_seg"])


@pytest.mark.parametrize("mask", [MASK, np.zeros_like(MASK)], ids=["gland", "no gland"])
def test_a_mask_comes_back_pixel_by_pixel_on_the_images_of_its_patient(
    mask: np.ndarray, tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "in", orientation=oblique(20, 30), order=SHUFFLED)
    [case] = found(tmp_path / "in")
    seg = written(mask, case, tmp_path)
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
    source = pydicom.dcmread(file)
    [case] = found(tmp_path / "in")
    frames = written(MASK, case, tmp_path).get_pixels_by_source_frame(
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
    write_series(tmp_path / "in", **dict.fromkeys(gone))
    [case] = found(tmp_path / "in")
    seg = written(MASK, case, tmp_path)
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
    write_series(tmp_path / "in")
    for mask in (MASK[..., :5], MASK.transpose(1, 0, 2)):
        [case] = found(tmp_path / "in")
        with pytest.raises(AssertionError, match="SaveDicomSegd failed"):
            written(mask, case, tmp_path)
    assert not list(tmp_path.glob("*.dcm"))
