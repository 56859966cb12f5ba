# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM series: their geometry by the standard's equation and by highdicom, and every fault by its
name.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from helpers.dicom_series import (  # noqa: E402
    AXIAL,
    CORONAL,
    SAGITTAL,
    affine_of,
    oblique,
    write_enhanced,
    write_series,
)

from monai_fairfl.workflow import Case, Cases, find_images  # noqa: E402
from monai_fairfl.workflow.dicom import read_frames  # noqa: E402

VOLUME = (
    np.random.default_rng(0).integers(-200, 3000, (6, 10, 14)).astype(np.int16)
)  # slices, rows, columns
SPACING, STEP, ORIGIN = (0.75, 0.5), 3.3, (-12.5, -20.25, 31.0)
SHUFFLED = (4, 1, 6, 2, 5, 3)


def found(folder: Path, **settings: str) -> Cases:
    return find_images(folder, folder.parent / "out" / "volumes.json", **settings)


def only(cases: Cases) -> Case:
    (case,) = cases
    return case


def loaded(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Voxels and affine of the only case; the copies are gone with ``cases``."""
    image = nib.Nifti1Image.from_filename(only(cases).image)
    return np.asanyarray(image.dataobj), image.affine


@pytest.mark.parametrize(
    "order", [None, (6, 5, 4, 3, 2, 1), SHUFFLED], ids=["in order", "reversed", "shuffled"]
)
@pytest.mark.parametrize(
    "orientation",
    [AXIAL, oblique(), SAGITTAL, CORONAL, oblique(40, 160)],
    ids=["ax", "oblique", "sag", "cor", "turned"],
)
def test_series_has_the_geometry_of_its_headers(
    orientation: Sequence[float], order: Sequence[int] | None, tmp_path: Path
) -> None:
    write_series(
        tmp_path / "in",
        VOLUME,
        orientation=orientation,
        order=order,
        spacing=SPACING,
        step=STEP,
        origin=ORIGIN,
    )
    values, affine = loaded(found(tmp_path / "in"))
    np.testing.assert_allclose(affine, affine_of(orientation, SPACING, STEP, ORIGIN), atol=1e-5)
    np.testing.assert_array_equal(values, VOLUME.transpose(2, 1, 0))


def test_series_agrees_with_highdicom_voxel_by_voxel_in_the_patient(tmp_path: Path) -> None:
    highdicom = pytest.importorskip("highdicom")
    datasets = write_series(
        tmp_path / "in", VOLUME, orientation=oblique(25, 35), order=SHUFFLED, spacing=SPACING
    )
    values, affine = loaded(found(tmp_path / "in"))
    theirs = highdicom.get_volume_from_series(datasets)
    to_ours = np.linalg.inv(affine) @ np.diag([-1, -1, 1, 1]) @ theirs.affine  # theirs is LPS
    index = np.indices(theirs.array.shape).reshape(3, -1)
    place = (to_ours @ np.vstack([index, np.ones(index.shape[1])]))[:3]
    np.testing.assert_allclose(place, place.round(), atol=1e-4)
    np.testing.assert_array_equal(values[tuple(place.round().astype(int))], theirs.array.ravel())


def test_intensities_are_rescaled_as_the_headers_say(tmp_path: Path) -> None:
    write_series(tmp_path / "in", VOLUME, RescaleSlope=2.5, RescaleIntercept=-7)
    np.testing.assert_allclose(
        loaded(found(tmp_path / "in"))[0], VOLUME.transpose(2, 1, 0) * 2.5 - 7
    )


@pytest.mark.parametrize("order", [range(6), (4, 1, 5, 2, 0, 3)], ids=["in order", "shuffled"])
@pytest.mark.parametrize(
    "orientation", [AXIAL, oblique(25, 35), SAGITTAL], ids=["ax", "oblique", "sag"]
)
def test_frames_of_one_file_are_read_as_if_each_were_a_file(
    orientation: Sequence[float], order: Sequence[int], tmp_path: Path
) -> None:
    tags = {
        "RescaleSlope": 2.5,
        "RescaleIntercept": -7,
        "RescaleType": "US",
        "spacing": SPACING,
        "step": STEP,
    }
    datasets = write_series(tmp_path / "in" / "files", VOLUME, orientation=orientation, **tags)
    write_enhanced(tmp_path / "in" / "frames" / "all.dcm", datasets, order)
    files, frames = cases = found(tmp_path / "in")
    assert (files.name, frames.name, len(files.files), len(frames.files)) == (
        "files",
        "frames",
        6,
        1,
    )
    assert files.problems == frames.problems and len(cases.images) == 2
    one, other = (nib.Nifti1Image.from_filename(case.image) for case in cases)
    np.testing.assert_allclose(one.affine, other.affine, atol=1e-5)
    np.testing.assert_allclose(np.asanyarray(one.dataobj), np.asanyarray(other.dataobj))


@pytest.mark.filterwarnings("ignore:The DICOM readers are highly experimental")
def test_a_scanners_enhanced_image_lies_where_nibabel_says(tmp_path: Path) -> None:
    """A Philips image that nibabel's own tests bring along, its pixels blanked."""
    from nibabel.nicom.dicomwrappers import wrapper_from_file

    pytest.importorskip("highdicom")
    packed = Path(nib.__file__).parent / "nicom" / "tests" / "data" / "philips_mprage.dcm.gz"
    if not packed.exists():
        pytest.skip(f"this nibabel has no {packed.name}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "IM1").write_bytes(gzip.decompress(packed.read_bytes()))
    assert "all the same" in only(found(tmp_path / "in")).problems[0]  # read, and found to be blank
    ours, theirs = read_frames(tmp_path / "in" / "IM1"), wrapper_from_file(tmp_path / "in" / "IM1")
    assert ours.shape == theirs.image_shape == (256, 256, 176)
    # theirs: row, column, and slices from the other end
    column_row_slice = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, -1, 175], [0, 0, 0, 1]]
    np.testing.assert_allclose(
        ours.affine, np.diag([-1, -1, 1, 1]) @ theirs.affine @ column_row_slice, atol=2e-3
    )


def test_without_highdicom_several_frames_are_skipped_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_enhanced(tmp_path / "in" / "all.dcm", write_series(tmp_path / "single", VOLUME))
    monkeypatch.setitem(sys.modules, "highdicom", None)
    (problem,) = only(found(tmp_path / "in")).problems
    assert "need highdicom" in problem and "pip install 'monai-fairfl[dicom]'" in problem


# --- which files make a case, and its name


def test_series_are_told_apart_in_one_folder_and_kept_together_over_folders(tmp_path: Path) -> None:
    root = tmp_path / "in"
    uid = pydicom.uid.generate_uid()
    same = {"SeriesInstanceUID": uid, "SeriesNumber": 9, "step": STEP}
    write_series(root / "P3" / "part1", VOLUME[:3], **same)
    write_series(root / "P3" / "part2", VOLUME[3:], places=[3, 4, 5], **same)
    write_series(root / "P1" / "STUDY" / "T2", VOLUME)
    for number in (4, 5):
        write_series(root / "P2", VOLUME, names=f"{number}_{{}}.dcm", SeriesNumber=number)
    cases = found(root)
    assert [case.name for case in cases] == ["P1_STUDY_T2", "P2_series4", "P2_series5", "P3"]
    assert [len(case.files) for case in cases] == [6, 6, 6, 6]
    assert cases.cases[3].series == uid and cases.cases[3].source == str(root / "P3")
    image = nib.Nifti1Image.from_filename(cases.cases[3].image)
    np.testing.assert_array_equal(image.get_fdata(), VOLUME.transpose(2, 1, 0))


def test_names_stay_apart_when_folders_and_numbers_do_not_tell_series_apart(tmp_path: Path) -> None:
    for patient in "ab":
        write_series(tmp_path / "in", VOLUME, names=f"{patient}{{}}.dcm")
    cases = found(tmp_path / "in")
    assert len({case.name for case in cases}) == len(cases.images) == 2
    assert all(case.name == f"series5_{case.series}" for case in cases)


def test_series_whose_uids_end_alike_keep_their_own_images(tmp_path: Path) -> None:
    for patient, level in enumerate((0, 5000)):  # as Siemens numbers them
        uid = f"1.3.12.2.1107.5.2.32.35177.201307171154187683412037{patient}.0.0.0"
        write_series(
            tmp_path / "in", VOLUME + level, names=f"{patient}{{}}.dcm", SeriesInstanceUID=uid
        )
    cases = found(tmp_path / "in")
    images = [nib.Nifti1Image.from_filename(image["image"]).get_fdata() for image in cases.images]
    np.testing.assert_array_equal(
        images, [VOLUME.transpose(2, 1, 0), VOLUME.transpose(2, 1, 0) + 5000]
    )


def test_a_series_whose_name_another_case_has_is_skipped_and_overwrites_nothing(
    tmp_path: Path,
) -> None:
    write_series(tmp_path / "in", VOLUME, names="a{}.dcm", SeriesInstanceUID="1.2.3")
    write_series(tmp_path / "in", VOLUME, names="b{}.dcm", SeriesInstanceUID="1.2.4")
    nib.save(
        nib.Nifti1Image(VOLUME.astype(np.float32), np.eye(4)), tmp_path / "in" / "series5_1.2.3.nii"
    )
    cases = found(tmp_path / "in")
    assert [(case.name, bool(case.image)) for case in cases] == [
        ("series5_1.2.3", True),
        ("series5_1.2.3", False),
        ("series5_1.2.4", True),
    ]
    assert "its outputs would have the names of another's; rename" in cases.cases[1].problems[0]


def test_folders_whose_names_joined_are_too_long_for_a_file_give_a_short_one(
    tmp_path: Path,
) -> None:
    deep = (
        tmp_path
        / "in"
        / ("研究用患者名前" * 5)
        / ("前立腺検査部位名" * 4)
        / ("シリーズ説明文字列" * 3)
    )
    for number, level in (("1", 0), ("2", 7)):
        write_series(deep, VOLUME + level, names=f"{number}_{{}}.dcm", SeriesNumber=number)
    cases = found(tmp_path / "in")
    names = [case.name for case in cases]
    assert all(case.image and Path(case.image).is_file() for case in cases)
    assert (
        len(set(names)) == 2
        and max(len(os.fsencode(f"{name}_overlay.png")) for name in names) <= 255
    )
    assert all(name.startswith("研究用患者名前") for name in names)


def test_a_copy_that_cannot_be_written_costs_its_series_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(image: nib.Nifti1Image, path: Path) -> None:
        if "P1" in str(path):
            raise OSError(28, "No space left on device")
        image.to_filename(path)

    monkeypatch.setattr("monai_fairfl.workflow.dicom.nib.save", full)
    for patient in ("P1", "P2"):
        write_series(tmp_path / "in" / patient, VOLUME)
    first, second = found(tmp_path / "in")
    assert first.status == "skipped" and second.image
    assert (
        "No space left on device; make room in" in first.problems[0]
        and "--output_dir" in first.problems[0]
    )


def test_folders_that_are_links_are_searched_once_and_loops_end(tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "P1", VOLUME)
    write_series(tmp_path / "archive" / "P2", VOLUME)
    (tmp_path / "in" / "P2").symlink_to(tmp_path / "archive" / "P2")
    (tmp_path / "in" / "A").symlink_to(tmp_path / "in" / "P1")
    (tmp_path / "in" / "P1" / "up").symlink_to(tmp_path / "in")
    assert [(case.name, len(case.files)) for case in found(tmp_path / "in")] == [
        ("P1", 6),
        ("P2", 6),
    ]


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
    assert [case.name for case in found(tmp_path / "in", series="T2*tra*")] == ["t2_tse_tra"]


def test_nifti_and_dicom_may_lie_side_by_side(tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "P1", VOLUME)
    nib.save(nib.Nifti1Image(VOLUME.astype(np.float32), np.eye(4)), tmp_path / "in" / "P1.nii.gz")
    cases = found(tmp_path / "in")
    assert len(cases.images) == 2
    assert cases.cases[0].name == "P1" and cases.cases[1].name.startswith("P1_")


# --- faults


def series(**tags: Any) -> Any:
    return lambda folder: write_series(folder, tags.pop("volume", VOLUME), **tags)


def colour(folder: Path) -> None:
    for dataset in write_series(folder, VOLUME):
        dataset.set_pixel_data(np.zeros((10, 14, 3), np.uint8), "RGB", 8)
        dataset.save_as(dataset.filename)


def frames(folder: Path) -> None:
    for dataset in write_series(folder, VOLUME[:1]):
        dataset.set_pixel_data(VOLUME, "MONOCHROME2", 16)
        dataset.save_as(dataset.filename)


def no_number_of_frames(folder: Path) -> None:
    for dataset in write_series(folder, VOLUME):
        dataset.NumberOfFrames = 7
        dataset.save_as(dataset.filename)
        path = Path(dataset.filename)
        path.write_bytes(path.read_bytes().replace(b"IS\x02\x007 ", b"IS\x02\x00x "))


def enhanced(files: int = 1, **tags: Any) -> Any:
    """A series in one file of several frames, or in several such files."""

    def write(folder: Path) -> None:
        datasets = write_series(folder.parents[1] / "single", tags.pop("volume", VOLUME), **tags)
        uid = pydicom.uid.generate_uid()
        for number in range(files):
            write_enhanced(folder / f"{number}.dcm", datasets, series_instance_uid=uid)

    return write


def changed(name: str, value: Any) -> Any:
    """A series in which one image has another value."""

    def write(folder: Path) -> None:
        dataset = write_series(folder, VOLUME)[2]
        setattr(dataset, name, value)
        dataset.save_as(dataset.filename)

    return write


def cut_short(folder: Path) -> None:
    write_series(folder, VOLUME)
    whole = (folder / "IM0004.dcm").read_bytes()
    (folder / "IM0004.dcm").write_bytes(whole[:-40])


def smaller_slice(folder: Path) -> None:
    dataset = write_series(folder, VOLUME)[1]
    dataset.set_pixel_data(VOLUME[1, :8, :8].copy(), "MONOCHROME2", 16)
    dataset.save_as(dataset.filename)


FAULTS = {
    "CT": (series(Modality="CT"), "modality CT, and this model reads MR"),
    "localiser": (series(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), "ImageType LOCALIZER"),
    "few slices": (series(volume=VOLUME[:2]), "2 slice(s), fewer than 3"),
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
    "few frames": (enhanced(volume=VOLUME[:2]), "2 slice(s), fewer than 3"),
    "several files of frames": (enhanced(files=2), "several files of several frames"),
    "pixels cut short": (cut_short, "IM0004.dcm cannot be decoded"),
    "constant": (
        series(volume=np.full_like(VOLUME, 3)),
        "pixels that are not finite, or all the same",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_series_is_skipped_with_its_fault_and_the_others_go_on(
    fault: str, tmp_path: Path
) -> None:
    make, message = FAULTS[fault]
    make(tmp_path / "in" / "bad")
    write_series(tmp_path / "in" / "good", VOLUME)
    bad, good = found(tmp_path / "in")
    assert (good.name, good.problems, bad.name, bad.status) == ("good", [], "bad", "skipped")
    (problem,) = bad.problems
    assert message in problem and ";" in problem and "\n" not in problem


def test_scanners_test_image_of_another_modality_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    real = Path(pydicom.data.get_testdata_file("CT_small.dcm"))
    (tmp_path / "in" / "IM1").write_bytes(real.read_bytes())
    assert "modality CT" in only(found(tmp_path / "in")).problems[0]


def test_file_that_is_no_dicom_is_named_and_its_neighbours_are_doubted(tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "T2", VOLUME)
    (tmp_path / "in" / "T2" / "IM0006.dcm").write_bytes(
        b"\0" * 300
    )  # an end slice: the others are an even stack
    series, broken = found(tmp_path / "in")
    assert len(series.files) == 5 and "IM0006.dcm beside it cannot be read" in series.problems[0]
    assert (broken.name, broken.status) == ("T2_IM0006.dcm", "skipped")


def test_a_slice_that_is_a_link_to_nothing_is_named_and_its_neighbours_are_doubted(
    tmp_path: Path,
) -> None:
    write_series(tmp_path / "in" / "T2", VOLUME)
    last = tmp_path / "in" / "T2" / "IM0006.dcm"
    last.unlink(missing_ok=True)
    last.symlink_to(tmp_path / "an archive that is not mounted")
    series, broken = found(tmp_path / "in")
    assert len(series.files) == 5 and "IM0006.dcm beside it cannot be read" in series.problems[0]
    assert (broken.name, broken.status) == ("T2_IM0006.dcm", "skipped")


@pytest.mark.parametrize(("orientation", "plane"), [(SAGITTAL, "sagittal"), (CORONAL, "coronal")])
def test_other_planes_are_segmented_with_a_warning(
    orientation: Sequence[float], plane: str, tmp_path: Path
) -> None:
    write_series(tmp_path / "in", VOLUME, orientation=orientation)
    case = only(found(tmp_path / "in"))
    assert case.image and case.problems[0].startswith(f"{plane} slices")


def test_copies_are_gone_after_the_run(tmp_path: Path) -> None:
    write_series(tmp_path / "in", VOLUME)
    cases = found(tmp_path / "in")
    assert Path(only(cases).image).is_file()
    only(cases).status = "segmented"
    cases.finish()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["volumes.json"]
