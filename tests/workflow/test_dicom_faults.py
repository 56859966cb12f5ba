# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faulty DICOM series: each is skipped with its fault, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("highdicom")

from helpers.dicom_series import (  # noqa: E402
    CORONAL,
    OWN_UIDS,
    SAGITTAL,
    VOLUME,
    found,
    write_enhanced,
    write_series,
)
from pydicom.uid import generate_uid  # noqa: E402

Writer = Callable[[Path], object]


def series(volume: np.ndarray = VOLUME, **tags: Any) -> Writer:
    """A series with these attributes."""
    return lambda folder: write_series(folder, volume, **tags)


def frames(files: int = 1, **tags: Any) -> Writer:
    """A series in one file of several frames, or in several such files."""

    def write(folder: Path) -> None:
        sent = write_series(folder.parents[1] / "single" / folder.name, **tags)
        uid = generate_uid()
        for number in range(files):
            write_enhanced(folder / f"{number}.dcm", sent, series_instance_uid=uid)

    return write


def changed(change: Callable[[Any], None], *numbers: int) -> Writer:
    """A series of which the images of these numbers are changed."""

    def write(folder: Path) -> None:
        sent = write_series(folder)
        for number in numbers:
            change(sent[number])
            sent[number].save_as(sent[number].filename)

    return write


def with_value(name: str, value: Any) -> Writer:
    return changed(lambda dataset: setattr(dataset, name, value), 2)


def with_pixels(pixels: np.ndarray, kind: str = "MONOCHROME2", bits: int = 16) -> Writer:
    return changed(lambda dataset: dataset.set_pixel_data(pixels, kind, bits), 1)


def side_by_side(dataset: Any) -> None:
    dataset.ImagePositionPatient = [80, *dataset.ImagePositionPatient[1:]]


def interleaved(**tags: tuple[str, str]) -> Writer:
    """Two series under one SeriesInstanceUID, each with slices between those of the other."""
    common = dict.fromkeys(OWN_UIDS, generate_uid())

    def write(folder: Path) -> None:
        for first in (0, 1):
            own: dict[str, Any] = {tag: both[first] for tag, both in tags.items()}
            names = f"{first}_{{}}.dcm"
            write_series(folder, places=range(first, 12, 2), names=names, **{**common, **own})

    return write


def cut_short(folder: Path) -> None:
    write_series(folder)
    file = folder / "IM0004.dcm"
    file.write_bytes(file.read_bytes()[:-40])


FAULTS: dict[str, tuple[Writer, tuple[str, ...]]] = {
    "modality": (series(Modality="CT"), ("CT", "MR")),
    "localiser": (series(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), ("LOCALIZER",)),
    "few": (series(VOLUME[:2]), ("2 slice",)),
    "gap": (
        series(places=[0, 1, 2, 4, 5, 6]),
        ("IM0003.dcm to IM0004.dcm are 6 mm", "others 3 mm"),
    ),
    "gaps": (series(places=[0, 1, 3, 4, 6, 7]), ("IM0002.dcm to IM0003.dcm are 6 mm", "missing")),
    "uneven": (series(places=[0, 1, 2, 3.4, 4.4, 5.4]), ("IM0003.dcm to IM0004.dcm are 4.2 mm",)),
    "side": (changed(side_by_side, 3, 4, 5), ("line",)),
    "twice": (series(places=[0, 1, 2, 2, 3, 4]), ("IM0003.dcm to IM0004.dcm are 0 mm", "double")),
    "turned": (
        with_value("ImageOrientationPatient", list(SAGITTAL)),
        ("different ImageOrientation",),
    ),
    "spacing": (with_value("PixelSpacing", [0.75, 0.9]), ("different PixelSpacing",)),
    "size": (with_pixels(VOLUME[1, :8, :8].copy()), ("different Rows",)),
    "skew": (series(ImageOrientationPatient=[1, 0, 0, 1, 0, 0]), ("perpendicular",)),
    "place": (
        with_value("ImagePositionPatient", None),
        ("IM0003.dcm lacks ImagePositionPatient",),
    ),
    "colour": (with_pixels(np.zeros((10, 14, 3), np.uint8), "RGB", 8), ("RGB",)),
    "frames_twice": (frames(places=[0, 1, 2, 2, 3, 4]), ("frames",)),
    "frames_files": (frames(files=2), ("several files",)),
    "patients": (interleaved(PatientID=("SMITH-1", "JONES-2")), ("2 values of PatientID",)),
    "studies": (interleaved(StudyInstanceUID=("1.2.7", "1.2.8")), ("StudyInstance", "1.2.8")),
    "references": (
        interleaved(FrameOfReferenceUID=("1.2.7", "1.2.8")),
        ("FrameOfReferenceUID", "1.2.8"),
    ),
    "cut": (cut_short, ("IM0004.dcm", "decoded")),
    "constant": (series(np.full_like(VOLUME, 3)), ("all the same",)),
}


def test_each_faulty_series_is_skipped_with_its_fault_and_the_others_go_on(tmp_path: Path) -> None:
    for name, (write, _) in FAULTS.items():
        write(tmp_path / "in" / name)
    # Headers are rounded, by less than a hundredth of a step.
    noise = np.random.default_rng(0).uniform(-0.01, 0.01, 6)
    write_series(tmp_path / "in" / "good", places=list(np.arange(6) + noise))
    cases = {case.name: case for case in found(tmp_path / "in")}
    good = cases.pop("good")
    assert good.image and good.problems == []
    assert sorted(cases) == sorted(FAULTS)
    for name, case in cases.items():
        [problem] = case.problems
        assert case.status == "skipped" and not case.image
        for word in FAULTS[name][1]:
            assert word in problem, (name, problem)
        # Of a patient nothing is in the table or the log.
        assert "SMITH" not in problem and "\n" not in problem


@pytest.mark.parametrize("empty", ["", None])
def test_slices_that_lost_their_patient_to_deidentification_stay_in_their_series(
    empty: str | None, tmp_path: Path
) -> None:
    dataset = write_series(tmp_path / "in")[2]
    dataset.PatientID = empty
    dataset.save_as(dataset.filename)
    [case] = found(tmp_path / "in")
    assert (len(case.files), case.problems) == (6, [])


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


def test_other_planes_are_segmented_with_a_remark(tmp_path: Path) -> None:
    planes = {"sagittal": SAGITTAL, "coronal": CORONAL}
    for plane, orientation in planes.items():
        write_series(tmp_path / "in" / plane, orientation=orientation)
    for case in found(tmp_path / "in"):
        assert case.image and case.name in case.problems[0]
