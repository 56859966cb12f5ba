# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Voxels and geometry of DICOM series, by the standard's equation, by highdicom and by nibabel."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from helpers.dicom_cases import VOLUME, VOXELS, found, loaded, only  # noqa: E402
from helpers.dicom_series import (  # noqa: E402
    AXIAL,
    CORONAL,
    SAGITTAL,
    affine_of,
    oblique,
    write_enhanced,
    write_series,
)

from monai_fairfl.workflow.dicom import read_frames  # noqa: E402

SPACING = (0.75, 0.5)
STEP = 3.3
ORIGIN = (-12.5, -20.25, 31.0)
SHUFFLED = (4, 1, 6, 2, 5, 3)
# DICOM's patient axes point to left and back (LPS), NIfTI's to right and front (RAS).
LPS_TO_RAS = np.diag([-1, -1, 1, 1])


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
    # The copies are deleted with ``cases``.
    cases = found(tmp_path / "in")
    voxels, affine = loaded(only(cases).image)
    np.testing.assert_allclose(affine, affine_of(orientation, SPACING, STEP, ORIGIN), atol=1e-5)
    np.testing.assert_array_equal(voxels, VOXELS)


@pytest.mark.slow
def test_series_agrees_with_highdicom_voxel_by_voxel_in_the_patient(tmp_path: Path) -> None:
    highdicom = pytest.importorskip("highdicom")
    datasets = write_series(
        tmp_path / "in", VOLUME, orientation=oblique(25, 35), order=SHUFFLED, spacing=SPACING
    )
    cases = found(tmp_path / "in")
    voxels, affine = loaded(only(cases).image)

    # The index of each of their voxels in our image.
    theirs = highdicom.get_volume_from_series(datasets)
    to_ours = np.linalg.inv(affine) @ LPS_TO_RAS @ theirs.affine
    indices = np.indices(theirs.array.shape).reshape(3, -1)
    homogeneous = np.vstack([indices, np.ones(indices.shape[1])])
    our_indices = (to_ours @ homogeneous)[:3]
    rounded = our_indices.round()
    np.testing.assert_allclose(our_indices, rounded, atol=1e-4)
    np.testing.assert_array_equal(voxels[tuple(rounded.astype(int))], theirs.array.ravel())


@pytest.mark.parametrize("tag", ["ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing"])
def test_numbers_longer_than_the_standard_allows_place_a_series_as_short_ones_do(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DICOM allows 16 characters; converters also write ``-1.2246467991473532e-16``."""
    turned = [1, 0, 0, 0, 1, -1.2246467991473532e-16]
    tags: dict[str, Any] = {"orientation": turned, "SeriesInstanceUID": "1.2.3"}
    sent = write_series(tmp_path / "in" / "long", VOLUME, **tags)
    write_series(tmp_path / "in" / "short", VOLUME, **{**tags, "SeriesInstanceUID": "1.2.4"})
    monkeypatch.setattr(pydicom.config.settings, "writing_validation_mode", pydicom.config.IGNORE)
    for dataset in sent:
        long_values = [_in_many_characters(value) for value in dataset[tag].value]
        setattr(dataset, tag, long_values)
        dataset.save_as(dataset.filename)
    assert _longest(sent[0].filename, tag) > 16

    cases = found(tmp_path / "in")
    of_long, of_short = cases
    assert of_long.name == "long" and of_long.image, of_long.problems
    voxels, affine = loaded(of_long.image)
    expected_voxels, expected_affine = loaded(of_short.image)
    np.testing.assert_array_equal(voxels, expected_voxels)
    np.testing.assert_allclose(affine, expected_affine, atol=1e-12)
    assert of_long.problems == of_short.problems == []


def _in_many_characters(value: float) -> str:
    """The next number of a float, as a converter writes it that does not round."""
    return repr(float(value) * (1 + 2**-52))


def _longest(file: str, tag: str) -> int:
    """The most characters that a number of this tag has in a file."""
    element = pydicom.dcmread(file)[tag]
    return max(len(number.original_string) for number in element.value)


def test_intensities_are_rescaled_by_the_headers(tmp_path: Path) -> None:
    write_series(tmp_path / "in", VOLUME, RescaleSlope=2.5, RescaleIntercept=-7)
    cases = found(tmp_path / "in")
    voxels, _ = loaded(only(cases).image)
    np.testing.assert_allclose(voxels, VOXELS * 2.5 - 7)


# ---- several frames in one file


@pytest.mark.slow
@pytest.mark.parametrize("order", [range(6), (4, 1, 5, 2, 0, 3)], ids=["in order", "shuffled"])
@pytest.mark.parametrize(
    "orientation", [AXIAL, oblique(25, 35), SAGITTAL], ids=["ax", "oblique", "sag"]
)
def test_frames_of_one_file_are_read_as_if_each_were_a_file(
    orientation: Sequence[float], order: Sequence[int], tmp_path: Path
) -> None:
    tags: dict[str, Any] = {
        "RescaleSlope": 2.5,
        "RescaleIntercept": -7,
        "RescaleType": "US",
        "spacing": SPACING,
        "step": STEP,
    }
    datasets = write_series(tmp_path / "in" / "files", VOLUME, orientation=orientation, **tags)
    write_enhanced(tmp_path / "in" / "frames" / "all.dcm", datasets, order)
    cases = found(tmp_path / "in")
    assert len(cases.images) == 2
    files, frames = cases
    assert files.name == "files"
    assert len(files.files) == 6
    assert frames.name == "frames"
    assert len(frames.files) == 1
    assert files.problems == frames.problems

    voxels, affine = loaded(files.image)
    voxels_of_frames, affine_of_frames = loaded(frames.image)
    np.testing.assert_allclose(affine, affine_of_frames, atol=1e-5)
    np.testing.assert_allclose(voxels, voxels_of_frames)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The DICOM readers are highly experimental")
def test_a_scanners_enhanced_image_lies_where_nibabel_places_it(tmp_path: Path) -> None:
    """A Philips image that nibabel's own tests bring along, its pixels blanked."""
    from nibabel.nicom.dicomwrappers import wrapper_from_file

    pytest.importorskip("highdicom")
    packed = Path(nib.__file__).parent / "nicom" / "tests" / "data" / "philips_mprage.dcm.gz"
    if not packed.exists():
        pytest.skip(f"this nibabel has no {packed.name}")
    file = tmp_path / "in" / "IM1"
    file.parent.mkdir()
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    # It is read, and found to be blank.
    assert "all the same" in only(found(tmp_path / "in")).problems[0]

    ours = read_frames(file)
    theirs = wrapper_from_file(file)
    assert ours.shape == (256, 256, 176)
    assert theirs.image_shape == (256, 256, 176)
    # Theirs has rows before columns, and slices from the other end.
    to_theirs = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, -1, 175], [0, 0, 0, 1]]
    expected = LPS_TO_RAS @ theirs.affine @ to_theirs
    np.testing.assert_allclose(ours.affine, expected, atol=2e-3)


@pytest.mark.slow
def test_without_highdicom_several_frames_are_skipped_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_enhanced(tmp_path / "in" / "all.dcm", write_series(tmp_path / "single", VOLUME))
    monkeypatch.setitem(sys.modules, "highdicom", None)
    (problem,) = only(found(tmp_path / "in")).problems
    assert "need highdicom" in problem
    assert "pip install 'monai-fairfl[dicom]'" in problem
