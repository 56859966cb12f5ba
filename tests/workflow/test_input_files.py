# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files of a folder: which are cases, which are named, and what is remarked on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow import Cases, find_images, find_photographs

VOLUME = np.random.default_rng(0).normal(100, 20, (12, 10, 5)).astype(np.float32)
SPACING = np.diag([0.6, 0.6, 3.0, 1.0])


def save(path: Path, affine: np.ndarray | None = SPACING) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(VOLUME, affine), path)
    return path


def found(folder: Path, **settings: str) -> Cases:
    return find_images(folder, folder.parent / "out" / "volumes.json", **settings)


def names(cases: Cases) -> list[str]:
    return [case.name for case in cases]


def test_volumes_are_found_and_masks_and_hidden_files_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("b.nii.gz", "a_Segmentation.nii.gz", "P1/c.nii"):
        save(folder / name)
    save(tmp_path / "a.nii").rename(folder / "a.NII")
    (folder / "._a.nii").write_bytes(b"what macOS keeps beside a file")
    cases = found(folder)
    assert names(cases) == ["a", "b"]
    assert cases.images == [{"image": str(folder / name)} for name in ("a.NII", "b.nii.gz")]
    assert names(found(folder, pattern="**/*")) == ["a", "b", "c"]


def test_files_that_are_passed_over_are_counted_and_named_and_used_after_the_fix(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "in"
    for name in ("P1/b.nii", "P1/b_segmentation.nii"):
        save(folder / name)
    for name in ("x.mha", "y.mha", ".hidden.mha", "notes.txt"):
        (folder / name).touch()
    with pytest.raises(DataError) as refused:
        found(folder)
    for word in ("6 file(s)", "4 image(s)", "x.mha: convert it to NIfTI", "2 not", "P1/b.nii: "):
        assert word in str(refused.value)
    # Move one, convert one.
    (folder / "P1" / "b.nii").rename(folder / "b.nii")
    (folder / "x.mha").unlink()
    save(folder / "x.nii")
    assert names(found(folder)) == ["b", "x"]


@pytest.mark.parametrize("find", [find_images, find_photographs])
def test_folders_that_can_hold_no_images_or_no_outputs_are_refused(
    find: Callable[[Path, Path], Cases], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    refused: list[tuple[str, str, Any, str]] = [
        ("nowhere", "out", DataError, "nowhere is not a folder"),
        ("empty", "out", DataError, "empty"),
        ("link", "empty/out", ConfigError, "link"),
    ]
    for images, outputs, error, word in refused:
        with pytest.raises(error, match=word):
            find(tmp_path / images, tmp_path / outputs / "table.json")


# --- remarks


def tilted(degrees: float, axes: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    """Axial slices that are tilted towards coronal ones, the axes of the file in this order."""
    a = np.radians(degrees)
    tilt = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    affine = np.eye(4)
    affine[:3, :3] = (tilt @ SPACING[:3, :3])[:, axes]
    return affine


def test_a_volume_of_doubtful_orientation_is_segmented_with_a_remark(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    save(folder / "coronal.nii", tilted(50, (2, 0, 1)))
    apart = nib.Nifti1Image(VOLUME, SPACING)
    apart.set_qform(SPACING + 20 * np.eye(4, k=3), code=1)
    nib.save(apart, folder / "apart.nii")
    save(folder / "without.nii", None)
    # Axial slices get none, however they are stored.
    save(folder / "axial.nii", tilted(30, (2, 0, 1)))
    remarks = {"coronal": "coronal", "apart": "20 mm", "without": "no"}
    for case in found(folder):
        assert case.image and len(case.problems) == (case.name in remarks), case.name
        assert remarks.get(case.name, "") in "".join(case.problems)


def test_a_wide_photograph_is_noted_as_taken_for_a_stereo_pair_unless_it_is_said_what_it_is(
    tmp_path: Path,
) -> None:
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    folder, report = tmp_path / "in", tmp_path / "out" / "ratios.json"
    folder.mkdir()
    colours.save(folder / "single.png")
    colours.resize((80, 40)).save(folder / "wide.png")
    single, wide = find_photographs(folder, report)
    assert wide.image and "--stereo" in wide.problems[0] and not single.problems
    for stereo in (True, False):
        assert not any(case.problems for case in find_photographs(folder, report, stereo=stereo))


def test_without_highdicom_nifti_is_found_and_dicom_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "highdicom", None)
    save(tmp_path / "in" / "a.nii")
    assert [case.status for case in found(tmp_path / "in")] == ["waiting"]
    (tmp_path / "in" / "IM1").write_bytes(bytes(128) + b"DICM")
    dicom, nifti = found(tmp_path / "in")
    assert nifti.image and dicom.status == "skipped"
    assert "monai-fairfl[dicom]" in dicom.problems[0]


def test_copies_of_images_that_a_killed_run_left_go_with_the_next(tmp_path: Path) -> None:
    left = save(tmp_path / "out" / ".volumes-abc" / "P1.nii")
    save(tmp_path / "in" / "a.nii")
    assert found(tmp_path / "in").images and not left.exists()
