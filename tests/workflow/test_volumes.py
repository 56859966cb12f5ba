# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NIfTI files of a folder: the good ones are found, the others are named with their fault."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow import Cases, find_images, find_photographs

ROOT = Path(__file__).parents[2]
VOLUME = np.random.default_rng(0).normal(100, 20, (12, 10, 5)).astype(np.float32)


def save(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, np.eye(4)), path)
    return path


def found(folder: Path, tmp_path: Path, **settings: str) -> Cases:
    return find_images(folder, tmp_path / "out" / "volumes.json", **settings)


@pytest.mark.slow
def test_volumes_are_found_compressed_or_not_and_masks_left_out(tmp_path: Path) -> None:
    for name in ("b.nii.gz", "a.nii", "a_Segmentation.nii.gz", "deeper/c.nii.gz"):
        save(tmp_path / "in" / name, VOLUME)
    (tmp_path / "in" / "notes.txt").write_text("not an image")
    cases = found(tmp_path / "in", tmp_path)
    assert cases.images == [
        {"image": str(tmp_path / "in" / name)} for name in ("a.nii", "b.nii.gz")
    ]
    assert [case.name for case in cases] == ["a", "b"]
    assert [case.name for case in found(tmp_path / "in", tmp_path, pattern="**/*.nii.gz")] == [
        "b",
        "c",
    ]


def test_endings_in_capital_letters_are_found_too(tmp_path: Path) -> None:
    for name in ("a.NII.GZ", "b.NII", "deeper/c.NII.GZ"):
        save(tmp_path / "in" / name.lower(), VOLUME).rename(tmp_path / "in" / name)
    assert [case.name for case in found(tmp_path / "in", tmp_path)] == ["a", "b"]
    assert [case.name for case in found(tmp_path / "in", tmp_path, pattern="**/*.nii.gz")] == [
        "a",
        "c",
    ]


@pytest.mark.parametrize(("unit", "factor"), [("meter", 1e-3), ("micron", 1e3)])
def test_a_volume_in_another_unit_is_skipped(tmp_path: Path, unit: str, factor: float) -> None:
    """MONAI reads every size as millimetres: the millilitres would be wrong by 10^9."""
    image = nib.Nifti1Image(VOLUME, np.diag([0.6 * factor, 0.6 * factor, 3 * factor, 1]))
    (tmp_path / "in").mkdir()
    for name, stated in (("a", unit), ("b", "mm"), ("c", "unknown")):
        image.header.set_xyzt_units(stated)
        nib.save(image, tmp_path / "in" / f"{name}.nii")
    first, *others = found(tmp_path / "in", tmp_path)
    assert first.status == "skipped" and f"sizes in the unit {unit}" in first.problems[0]
    assert [case.status for case in others] == ["waiting", "waiting"]


def test_hidden_files_and_outputs_of_an_earlier_run_are_no_images(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "deeper/b.nii.gz", "out/a_pred.nii.gz", "out/old/b_pred.nii.gz"):
        save(tmp_path / "in" / name, VOLUME)
    (tmp_path / "in" / "._a.nii.gz").write_bytes(b"what macOS keeps beside a file")
    for report in (
        tmp_path / "in" / "out" / "volumes.json",
        tmp_path / "in" / "out" / "new" / "volumes.json",
    ):
        cases = find_images(tmp_path / "in", report, pattern="**/*.nii*")
        names = ["a", "b"] if report.parent.name == "out" else ["a", "a_pred", "b", "b_pred"]
        assert [case.name for case in cases] == names and len(cases.images) == len(names)


@pytest.mark.parametrize("find", [find_images, find_photographs])
def test_outputs_may_not_lie_among_the_images(
    find: Callable[[Path, Path], Cases], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(
        ConfigError, match="link is the folder of the images and of the outputs.*--output_dir"
    ):
        find(tmp_path / "link", tmp_path / "in" / "table.json")


def colour(path: Path) -> None:
    save(path, np.zeros((6, 6, 4), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")]))


def not_a_number(path: Path) -> None:
    save(path, np.where(VOLUME > 150, np.nan, VOLUME))


def flat(path: Path) -> None:
    image = nib.Nifti1Image(VOLUME, None)
    image.header.set_sform(np.diag([1.0, 1, 0, 1]), code=1)
    nib.save(image, path)


def contradicted(path: Path) -> None:
    image = nib.Nifti1Image(VOLUME, None)
    image.header.set_sform(np.diag([0.5, 0.5, 3, 1]), code=1)
    nib.save(image, path)


def flipped_bit(path: Path) -> None:
    """One bit of a voxel is another one; all blocks of the compressed file are whole."""
    raw = save(path.with_name("whole.nii"), VOLUME)
    stored = bytearray(gzip.compress(raw.read_bytes(), compresslevel=0))
    raw.unlink()
    stored[len(stored) // 2] ^= 1
    path.write_bytes(stored)


def cut_short(path: Path) -> None:
    whole = save(path, VOLUME).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "4D": (
        lambda path: save(path, np.stack([VOLUME] * 3, axis=-1)),
        "4D with shape (12, 10, 5, 3)",
    ),
    "2D": (lambda path: save(path, VOLUME[..., 0]), "2D with shape (12, 10)"),
    "colour": (colour, "store one 3D volume of real numbers"),
    "not a number": (not_a_number, "values that are not finite"),
    "beyond 32 bits": (
        lambda path: save(path, VOLUME.astype(np.float64) * 1e300),
        "600 values that are beyond 3.4e+38, the range of 32-bit numbers",
    ),
    "below 32 bits": (
        lambda path: save(path, VOLUME.astype(np.float64) * 1e-300),
        "the same value in all 600 voxels",
    ),
    "cut short": (cut_short, "damaged ("),
    "flipped bit": (flipped_bit, "damaged (CRC check failed"),
    "broken link": (
        lambda path: path.symlink_to(path.parent / "archive" / path.name),
        "cannot be read (",
    ),
    "text": (lambda path: path.write_text("no image"), "damaged ("),
    "constant": (
        lambda path: save(path, np.full((6, 6, 4), 7.0)),
        "the same value in all 144 voxels",
    ),
    "contradicted header": (
        contradicted,
        "has voxels of 1 x 1 x 1 mm by its pixdim, of 0.5 x 0.5 x 3 by its sform",
    ),
    "flat affine": (flat, "an affine without volume"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_volume_is_skipped_with_its_fault_and_the_others_go_on(
    fault: str, tmp_path: Path
) -> None:
    save(tmp_path / "in" / "good.nii.gz", VOLUME)
    make, message = FAULTS[fault]
    make(tmp_path / "in" / "bad.nii.gz")
    cases = found(tmp_path / "in", tmp_path)
    assert [Path(item["image"]).name for item in cases.images] == ["good.nii.gz"]
    (problem,) = cases.cases[0].problems
    assert cases.cases[0].name == "bad" and message in problem and ";" in problem


def forms_apart(path: Path) -> None:
    """The sform and the qform of a volume lie 20 mm apart."""
    image = nib.Nifti1Image(VOLUME, np.eye(4))
    shifted = np.eye(4)
    shifted[0, 3] = 20
    image.set_sform(np.eye(4), code=1)
    image.set_qform(shifted, code=1)
    nib.save(image, path)


def no_rotation(path: Path) -> None:
    """The quaternion of the qform is longer than 1."""
    image = nib.Nifti1Image(VOLUME, np.eye(4))
    image.set_qform(np.eye(4), code=1)
    image.header["quatern_b"] = 2
    nib.save(image, path)


def without_forms(path: Path) -> None:
    image = nib.Nifti1Image(VOLUME, None)
    image.header.set_zooms((0.6, 0.6, 3.0))
    nib.save(image, path)


def tilted(degrees: float, axes: tuple[int, ...] = (0, 1, 2)) -> Callable[[Path], object]:
    """A volume of axial slices that are tilted towards coronal ones, its axes in this order."""

    def write(path: Path) -> None:
        angle = np.radians(degrees)
        tilt = np.array(
            [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
        )
        affine = np.eye(4)
        affine[:3, :3] = (tilt @ np.diag([0.6, 0.6, 3.0]))[:, axes]
        nib.save(nib.Nifti1Image(VOLUME.transpose(axes), affine), path)

    return write


def sagittal(path: Path) -> None:
    axes = np.array([[0, 0, 3.0, 0], [0.6, 0, 0, 0], [0, -0.6, 0, 0], [0, 0, 0, 1]])
    nib.save(nib.Nifti1Image(VOLUME, axes), path)


REMARKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "forms apart": (forms_apart, "it has an sform and a qform that place it up to 20 mm apart"),
    "no rotation": (no_rotation, "it has a qform that is no rotation"),
    "coronal": (tilted(90), "coronal slices, and the network was trained on axial ones"),
    "tilted by 50 degrees": (tilted(50), "coronal slices, and the network was trained on axial"),
    "coronal, slices first": (tilted(90, axes=(2, 0, 1)), "coronal slices"),
    "sagittal": (sagittal, "sagittal slices, and the network was trained on axial ones"),
    "no forms": (
        without_forms,
        "no orientation stored (sform_code and qform_code are 0); it is taken for LAS",
    ),
}


@pytest.mark.parametrize("kind", REMARKS)
def test_a_volume_of_doubtful_orientation_is_segmented_with_a_remark(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    make, message = REMARKS[kind]
    make(tmp_path / "in" / "a.nii.gz")
    (case,) = found(tmp_path / "in", tmp_path)
    assert case.image and case.status == "waiting"
    (problem,) = case.problems
    assert message in problem and "look at the overlay" in problem


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)], ids=["slices last", "slices first"])
def test_axial_slices_get_no_remark_however_they_are_stored(
    axes: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    tilted(30, axes)(tmp_path / "in" / "a.nii.gz")
    (case,) = found(tmp_path / "in", tmp_path)
    assert case.image and case.problems == []


def test_an_oblique_volume_whose_forms_differ_by_rounding_gets_no_remark(tmp_path: Path) -> None:
    # Its quaternion's first number is so near to 0 that 32 bits cannot hold it.
    angle = 5e-4
    affine = np.array(
        [
            [-0.5 * np.cos(angle), 0.5 * np.sin(angle), 0, 90],
            [-0.5 * np.sin(angle), -0.5 * np.cos(angle), 0, 80],
            [0, 0, 3, -40],
            [0, 0, 0, 1],
        ]
    )
    values = np.zeros((480, 480, 3), np.uint8)
    values[100] = 1
    image = nib.Nifti1Image(values, affine)
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    (tmp_path / "in").mkdir()
    nib.save(image, tmp_path / "in" / "a.nii.gz")
    (case,) = found(tmp_path / "in", tmp_path)
    assert case.image and case.problems == []


def test_two_volumes_whose_masks_would_have_one_name_are_not_both_segmented(tmp_path: Path) -> None:
    for name in ("a.nii", "a.nii.gz"):
        save(tmp_path / "in" / name, VOLUME)
    cases = found(tmp_path / "in", tmp_path)
    assert len(cases.images) == 1
    assert "rename one of the two" in cases.cases[1].problems[0]


@pytest.mark.parametrize("folder", ["empty", "nowhere"])
def test_folder_without_images_is_an_error_that_says_which_argument_names_it(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=f"{folder}.*--dataset_dir"):
        found(tmp_path / folder, tmp_path)
    assert not list(tmp_path.glob("out/.volumes-*"))


def test_an_error_says_what_lies_in_a_folder_without_images(tmp_path: Path) -> None:
    save(tmp_path / "in" / "P1" / "a.nii.gz", VOLUME)
    for name in ("x.mha", "y.mha", "notes.txt", ".hidden.mha"):
        (tmp_path / "in" / name).touch()
    with pytest.raises(DataError) as error:
        found(tmp_path / "in", tmp_path)
    text = str(error.value)
    assert "In it and its subfolders are: 2 .mha, 1 .nii.gz, 1 .txt." in text
    assert "2 .mha file(s) are passed over; convert them to NIfTI." in text
    assert f"such as {tmp_path / 'in' / 'P1'}, are passed over; name the subfolder" in text


def test_volumes_that_are_passed_over_are_logged_and_outputs_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.nii", "P1/b.nii", "P1/b_segmentation.nii", "out/a_pred.nii"):
        save(tmp_path / "in" / name, VOLUME)
    for name in ("x.mha", "notes.txt"):
        (tmp_path / "in" / name).touch()
    cases = find_images(tmp_path / "in", tmp_path / "in" / "out" / "volumes.json")
    assert [case.status for case in cases] == ["waiting"]
    folder = tmp_path / "in"
    assert caplog.messages == [
        f"{folder}: 1 .mha file(s) are passed over; convert them to NIfTI",
        f"{folder}: 1 NIfTI file(s) in subfolders, such as {folder / 'P1'}, are passed over; name "
        "the subfolder, or move them",
    ]
    # Where they are cases, nothing is passed over.
    (folder / "x.mha").unlink()
    caplog.clear()
    report = tmp_path / "in" / "out" / "volumes.json"
    assert len(find_images(folder, report, pattern="**/*.nii").images) == 2
    assert caplog.messages == []


def test_without_pydicom_nifti_is_found_and_dicom_refused_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    save(tmp_path / "in" / "a.nii", VOLUME)
    assert [case.status for case in found(tmp_path / "in", tmp_path)] == ["waiting"]
    for name in ("IM1", "IM2"):
        (tmp_path / "in" / name).write_bytes(bytes(128) + b"DICM")
    dicom, nifti = found(tmp_path / "in", tmp_path)
    assert nifti.image and dicom.status == "skipped"
    assert dicom.problems == [
        "2 DICOM files, which need pydicom to be read: pip install 'monai-fairfl[dicom]'"
    ]


@pytest.mark.parametrize("find", [find_images, find_photographs])
@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_file_in_place_of_the_folder_of_outputs_is_named(
    below: str, find: Callable[[Path, Path], Cases], tmp_path: Path
) -> None:
    save(tmp_path / "in" / "a.nii", VOLUME)
    (tmp_path / "out").write_text("a file")
    with pytest.raises(
        ConfigError, match="out.* cannot be the folder of the outputs .*--output_dir"
    ):
        find(tmp_path / "in", tmp_path / "out" / below / "table.json")


def test_copies_that_a_killed_run_left_are_removed(tmp_path: Path) -> None:
    save(tmp_path / "out" / ".volumes-abc" / "P1.nii", VOLUME)
    save(tmp_path / "in" / "a.nii", VOLUME)
    cases = found(tmp_path / "in", tmp_path)
    assert len(list((tmp_path / "out").glob(".volumes-*"))) == 1 and cases.images
    assert not (tmp_path / "out" / ".volumes-abc").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_terminated_leaves_no_copy(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.nii", VOLUME)
    images = str(tmp_path / "in")
    outputs = str(tmp_path / "out")
    program = (
        "import os, signal; from monai_fairfl.workflow import find_images\n"
        f"cases = find_images({images!r}, {outputs + '/volumes.json'!r})\n"
        f"assert os.listdir({outputs!r})\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 143, done.stderr
    assert not list((tmp_path / "out").iterdir())
