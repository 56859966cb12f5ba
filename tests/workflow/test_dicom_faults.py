# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faulty DICOM series: each is skipped with its fault, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from helpers.dicom_cases import VOLUME, found, only  # noqa: E402
from helpers.dicom_series import CORONAL, SAGITTAL, write_enhanced, write_series  # noqa: E402

Writer = Callable[[Path], object]


def series(volume: np.ndarray = VOLUME, **tags: Any) -> Writer:
    """A series with these attributes."""

    def write(folder: Path) -> None:
        write_series(folder, volume, **tags)

    return write


def enhanced(volume: np.ndarray = VOLUME, files: int = 1, **tags: Any) -> Writer:
    """A series in one file of several frames, or in several such files."""

    def write(folder: Path) -> None:
        datasets = write_series(folder.parents[1] / "single", volume, **tags)
        uid = pydicom.uid.generate_uid()
        for number in range(files):
            write_enhanced(folder / f"{number}.dcm", datasets, series_instance_uid=uid)

    return write


def changed(name: str, value: Any) -> Writer:
    """A series in which one image has another value."""

    def write(folder: Path) -> None:
        dataset = write_series(folder, VOLUME)[2]
        setattr(dataset, name, value)
        dataset.save_as(dataset.filename)

    return write


def smaller_slice(folder: Path) -> None:
    dataset = write_series(folder, VOLUME)[1]
    dataset.set_pixel_data(VOLUME[1, :8, :8].copy(), "MONOCHROME2", 16)
    dataset.save_as(dataset.filename)


def colour(folder: Path) -> None:
    for dataset in write_series(folder, VOLUME):
        dataset.set_pixel_data(np.zeros((10, 14, 3), np.uint8), "RGB", 8)
        dataset.save_as(dataset.filename)


def frames(folder: Path) -> None:
    """Several frames in a file whose class has a single one."""
    for dataset in write_series(folder, VOLUME[:1]):
        dataset.set_pixel_data(VOLUME, "MONOCHROME2", 16)
        dataset.save_as(dataset.filename)


def no_number_of_frames(folder: Path) -> None:
    """A number of frames that is no number."""
    for dataset in write_series(folder, VOLUME):
        dataset.NumberOfFrames = 7
        dataset.save_as(dataset.filename)
        path = Path(dataset.filename)
        path.write_bytes(path.read_bytes().replace(b"IS\x02\x007 ", b"IS\x02\x00x "))


def interleaved(**tags: Sequence[str]) -> Writer:
    """Two series under one SeriesInstanceUID, each with slices between those of the other.

    Args:
        tags: the two values of an attribute.
    """
    common: dict[str, Any] = {
        "SeriesInstanceUID": "1.2.3",
        "PatientID": "P1",
        "StudyInstanceUID": "1.2.3.4",
        "FrameOfReferenceUID": "1.2.3.5",
    }

    def write(folder: Path) -> None:
        for first in (0, 1):
            values = {tag: both[first] for tag, both in tags.items()}
            places = range(first, 2 * len(VOLUME), 2)
            names = f"{first}_{{}}.dcm"
            write_series(folder, VOLUME, places=places, names=names, **{**common, **values})

    return write


def cut_short(folder: Path) -> None:
    write_series(folder, VOLUME)
    file = folder / "IM0004.dcm"
    file.write_bytes(file.read_bytes()[:-40])


FAULTS: dict[str, tuple[Writer, str]] = {
    "CT": (series(Modality="CT"), "modality CT, and this model reads MR"),
    "localiser": (series(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), "ImageType LOCALIZER"),
    "few slices": (series(VOLUME[:2]), "2 slice(s), fewer than 3"),
    "missing slice": (
        series(places=[0, 1, 2, 4, 5, 6]),
        "1 slice is missing: from IM0003.dcm to IM0004.dcm are 6 mm",
    ),
    "uneven": (series(places=[0, 1, 2, 3.4, 4.4, 5.4]), "steps between slices from 3 to 4.2 mm"),
    "duplicate": (
        series(places=[0, 1, 2, 2, 3, 4]),
        "IM0003.dcm and IM0004.dcm lie at the same position",
    ),
    "mixed orientations": (
        changed("ImageOrientationPatient", list(SAGITTAL)),
        "different ImageOrientationPatient",
    ),
    "mixed spacing": (changed("PixelSpacing", [0.75, 0.9]), "PixelSpacing from 0.5 to 0.9 mm"),
    "mixed size": (smaller_slice, "slices of different Rows and Columns"),
    "broken orientation": (
        series(orientation=(1, 0, 0, 1, 0, 0), places=range(6)),
        "no perpendicular unit vectors",
    ),
    "no position": (changed("ImagePositionPatient", None), "IM0003.dcm lacks ImagePositionPatient"),
    "no spacing": (series(PixelSpacing=None), "IM0001.dcm lacks PixelSpacing"),
    "colour": (colour, "PhotometricInterpretation RGB"),
    "frames": (frames, "several frames in one file that cannot be read as a volume"),
    "no number of frames": (no_number_of_frames, "'x'"),
    "frames of one place": (
        enhanced(places=[0, 1, 2, 2, 3, 4]),
        "Multiple frames found at one or more plane positions.); export it as single-frame images",
    ),
    "missing frame": (
        enhanced(places=[0, 1, 2, 4, 5, 6]),
        "Frame positions do not form a regularly-spaced volume",
    ),
    "few frames": (enhanced(VOLUME[:2]), "2 slice(s), fewer than 3"),
    "several files of frames": (enhanced(files=2), "several files of several frames"),
    "two patients": (
        interleaved(PatientID=("SMITH-1", "JONES-2"), StudyInstanceUID=("1.2.7", "1.2.8")),
        "2 values of PatientID under one SeriesInstanceUID",
    ),
    "two studies": (
        interleaved(StudyInstanceUID=("1.2.7", "1.2.8")),
        "2 values of StudyInstanceUID (1.2.7, 1.2.8) under one SeriesInstanceUID",
    ),
    "two frames of reference": (
        interleaved(FrameOfReferenceUID=("1.2.7", "1.2.8")),
        "2 values of FrameOfReferenceUID (1.2.7, 1.2.8)",
    ),
    "pixels cut short": (cut_short, "IM0004.dcm cannot be decoded"),
    "constant": (
        series(np.full_like(VOLUME, 3)),
        "pixels that are not finite, or all the same",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_series_is_skipped_with_its_fault_and_the_others_go_on(
    fault: str, tmp_path: Path
) -> None:
    write_faulty, message = FAULTS[fault]
    write_faulty(tmp_path / "in" / "bad")
    write_series(tmp_path / "in" / "good", VOLUME)
    bad, good = found(tmp_path / "in")
    assert good.name == "good"
    assert good.problems == []
    assert bad.name == "bad"
    assert bad.status == "skipped"
    (problem,) = bad.problems
    assert message in problem
    assert ";" in problem
    assert "\n" not in problem
    assert "SMITH" not in problem


@pytest.mark.parametrize("empty", ["", None])
def test_slices_that_lost_their_patient_to_deidentification_stay_in_their_series(
    empty: str | None, tmp_path: Path
) -> None:
    dataset = write_series(tmp_path / "in", VOLUME)[2]
    if empty is None:
        del dataset.PatientID
    else:
        dataset.PatientID = empty
    dataset.save_as(dataset.filename)
    case = only(found(tmp_path / "in"))
    assert len(case.files) == 6
    assert case.image
    assert case.problems == []


def test_scanners_test_image_of_another_modality_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    real = Path(pydicom.data.get_testdata_file("CT_small.dcm"))
    (tmp_path / "in" / "IM1").write_bytes(real.read_bytes())
    assert "modality CT" in only(found(tmp_path / "in")).problems[0]


def no_dicom(file: Path) -> None:
    file.write_bytes(b"\0" * 300)


def link_to_nothing(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file.parents[2] / "an archive that is not mounted")


@pytest.mark.parametrize("damage", [no_dicom, link_to_nothing])
def test_a_slice_that_cannot_be_read_is_named_and_its_neighbours_are_doubted(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    write_series(tmp_path / "in" / "T2", VOLUME)
    # An end slice: without it the others are an even stack.
    damage(tmp_path / "in" / "T2" / "IM0006.dcm")
    series, broken = found(tmp_path / "in")
    assert len(series.files) == 5
    assert "IM0006.dcm beside it cannot be read" in series.problems[0]
    assert broken.name == "T2_IM0006.dcm"
    assert broken.status == "skipped"


@pytest.mark.parametrize(("orientation", "plane"), [(SAGITTAL, "sagittal"), (CORONAL, "coronal")])
def test_other_planes_are_segmented_with_a_warning(
    orientation: Sequence[float], plane: str, tmp_path: Path
) -> None:
    write_series(tmp_path / "in", VOLUME, orientation=orientation)
    case = only(found(tmp_path / "in"))
    assert case.image
    assert case.problems[0].startswith(f"{plane} slices")
