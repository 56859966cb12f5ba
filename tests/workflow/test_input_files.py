# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files of a folder: good volumes are cases, and each other file is named with its fault."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers import warm_python

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow import Cases, find_images, find_photographs

VOLUME = np.random.default_rng(0).normal(100, 20, (12, 10, 5)).astype(np.float32)
SPACING = np.diag([0.6, 0.6, 3.0, 1.0])


def save(path: Path, values: np.ndarray = VOLUME, affine: np.ndarray | None = SPACING) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, affine), path)
    return path


def found(folder: Path, **settings: str) -> Cases:
    return find_images(folder, folder.parent / "out" / "volumes.json", **settings)


def names(cases: Cases) -> list[str]:
    return [case.name for case in cases]


def test_volumes_are_found_and_masks_hidden_files_and_outputs_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("b.nii.gz", "a_Segmentation.nii.gz", "P1/c.nii", "out/old/a_pred.nii"):
        save(folder / name)
    save(tmp_path / "a.nii").rename(folder / "a.NII")
    (folder / "._a.nii").write_bytes(b"what macOS keeps beside a file")
    report = folder / "out" / "volumes.json"
    cases = find_images(folder, report)
    assert names(cases) == ["a", "b"]
    assert cases.images == [{"image": str(folder / name)} for name in ("a.NII", "b.nii.gz")]
    assert names(find_images(folder, report, pattern="**/*")) == ["a", "b", "c"]


def test_files_that_are_passed_over_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    report = folder / "out" / "volumes.json"
    for name in ("P1/b.nii", "P1/b_segmentation.nii", "out/a_pred.nii"):
        save(folder / name)
    for name in ("x.mha", "y.mha", ".hidden.mha", "notes.txt"):
        (folder / name).touch()
    with pytest.raises(DataError) as refused:
        find_images(folder, report)
    for word in ("6 file(s)", "4 image(s)", "x.mha", "2 not", str(folder / "P1")):
        assert word in str(refused.value)
    save(folder / "a.nii")
    cases = find_images(folder, report)
    assert names(cases) == ["a"]
    for name in ("x.mha", "b.nii", "b_segmentation.nii"):
        assert sum(f"{name}: " in message for message in caplog.messages) == 1, name
    files = cases.table()["files"]
    assert (files["used"], len(files["refused"]), files["not_images"]) == (1, 4, 2)
    assert str(folder / "P1") in files["refused"][str(folder / "P1" / "b.nii")]


@pytest.mark.parametrize("find", [find_images, find_photographs])
def test_folders_that_can_hold_no_images_or_no_outputs_are_refused(
    find: Callable[[Path, Path], Cases], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "file").touch()
    refused: list[tuple[str, str, Any, str]] = [
        ("nowhere", "out", DataError, "nowhere is not a folder"),
        ("file", "out", DataError, "file is not a folder"),
        ("empty", "out", DataError, "empty"),
        ("link", "empty", ConfigError, "link"),
        ("empty", "file/deeper", ConfigError, "deeper"),
    ]
    for images, outputs, error, word in refused:
        with pytest.raises(error, match=word):
            find(tmp_path / images, tmp_path / outputs / "table.json")
    assert not list((tmp_path / "out").iterdir())


# --- faulty volumes


def infinite(path: Path) -> None:
    save(path, np.where(VOLUME > 150, np.nan, VOLUME))


def colour(path: Path) -> None:
    save(path, np.zeros((6, 6, 4), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")]))


def flipped_bit(path: Path) -> None:
    """One bit of a voxel is another one; all blocks of the compressed file are whole."""
    raw = save(path.with_suffix(""))
    stored = bytearray(gzip.compress(raw.read_bytes(), compresslevel=0))
    raw.unlink()
    stored[len(stored) // 2] ^= 1
    path.write_bytes(stored)


def cut_short(path: Path) -> None:
    whole = save(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def with_sform(*spacing: float) -> Callable[[Path], None]:
    """A file of voxels of 1 mm whose sform says something else."""

    def write(path: Path) -> None:
        image = nib.Nifti1Image(VOLUME, None)
        image.header.set_sform(np.diag([*spacing, 1]), code=1)
        nib.save(image, path)

    return write


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "4D": (lambda path: save(path, np.stack([VOLUME] * 2, axis=-1)), "(12, 10, 5, 2)"),
    "colour": (colour, "real"),
    "infinite": (infinite, "finite"),
    "beyond": (lambda path: save(path, VOLUME.astype(float) * 1e300), "600 values"),
    "below": (lambda path: save(path, VOLUME.astype(float) * 1e-300), "same value in all 600"),
    "cut": (cut_short, "damaged"),
    "bit": (flipped_bit, "CRC"),
    "link": (lambda path: path.symlink_to(path.parent / "archive"), "archive"),
    "contradicted": (with_sform(0.5, 0.5, 3), "0.5 x 0.5 x 3"),
    "flat": (with_sform(1, 1, 0), "affine"),
}


def test_each_faulty_volume_is_skipped_with_its_fault_and_the_others_go_on(tmp_path: Path) -> None:
    for name, (make, _) in FAULTS.items():
        path = tmp_path / "in" / f"{name}.nii.gz"
        path.parent.mkdir(exist_ok=True)
        make(path)
    save(tmp_path / "in" / "same.nii")
    save(tmp_path / "in" / "same.nii.gz")
    good, *faulty = sorted(found(tmp_path / "in"), key=lambda case: case.status, reverse=True)
    assert (good.name, good.status, good.problems) == ("same", "waiting", [])
    assert good.source == str(tmp_path / "in" / "same.nii")
    expected = {name: word for name, (_, word) in FAULTS.items()}
    # The masks of both would have one name.
    expected["same.nii.gz"] = "rename"
    assert sorted(case.name for case in faulty) == sorted(expected)
    for case in faulty:
        assert case.status == "skipped" and not case.image
        [problem] = case.problems
        assert expected[case.name] in problem, case.name


# --- doubtful orientations


def tilted(degrees: float, axes: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    """Axial slices that are tilted towards coronal ones, the axes of the file in this order."""
    a = np.radians(degrees)
    tilt = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    affine = np.eye(4)
    affine[:3, :3] = (tilt @ SPACING[:3, :3])[:, axes]
    return affine


def test_a_volume_of_doubtful_orientation_is_segmented_with_a_remark(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    remarks = {"coronal": "coronal", "coronal_first": "coronal"}
    save(folder / "coronal.nii", affine=tilted(50))
    save(folder / "coronal_first.nii", affine=tilted(50, (2, 0, 1)))
    apart = nib.Nifti1Image(VOLUME, SPACING)
    apart.set_qform(SPACING + 20 * np.eye(4, k=3), code=1)
    nib.save(apart, folder / "apart.nii")
    save(folder / "without.nii", affine=None)
    remarks |= {"apart": "20 mm", "without": "LAS"}
    cases = found(folder)
    assert names(cases) == sorted(remarks)
    for case in cases:
        [problem] = case.problems
        assert case.image and remarks[case.name] in problem, case.name


def test_axial_slices_get_no_remark_however_they_are_stored(tmp_path: Path) -> None:
    save(tmp_path / "in" / "last.nii", affine=tilted(30))
    save(tmp_path / "in" / "first.nii", affine=tilted(30, (2, 0, 1)))
    for case in found(tmp_path / "in"):
        assert case.image and case.problems == []


# --- DICOM without its library, and copies of images


def test_without_pydicom_nifti_is_found_and_dicom_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    save(tmp_path / "in" / "a.nii")
    assert [case.status for case in found(tmp_path / "in")] == ["waiting"]
    (tmp_path / "in" / "IM1").write_bytes(bytes(128) + b"DICM")
    dicom, nifti = found(tmp_path / "in")
    assert nifti.image and dicom.status == "skipped"
    assert "monai-fairfl[dicom]" in dicom.problems[0]


PROGRAM = """
import os, signal
from monai_fairfl.workflow import find_images

cases = find_images("in", "out/volumes.json")
[folder] = os.listdir("out")
print(folder)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_copies_of_images_go_when_a_run_is_terminated_and_those_of_a_killed_one_with_the_next(
    tmp_path: Path,
) -> None:
    save(tmp_path / "in" / "a.nii")
    (tmp_path / "stopped.py").write_text(PROGRAM)
    done = warm_python.run(["-m", "stopped"], tmp_path)
    assert done.returncode == 143, done.stderr
    assert not list((tmp_path / "out").iterdir())
    killed = tmp_path / "out" / done.stdout.strip()
    save(killed / "P1.nii")
    cases = found(tmp_path / "in")
    assert cases.images and not (killed / "P1.nii").exists()
