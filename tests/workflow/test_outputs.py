# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of a case: its mask in the image's own space, its measures, and its overlay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from PIL import Image
from scipy import ndimage

from monai_fairfl.workflow import (
    Case,
    Cases,
    MeasureCupToDiscd,
    MeasureVolumed,
    SaveMaskd,
    SaveNiftid,
    SaveOverlayd,
    overlay,
)

AFFINE = np.diag([-0.6, -0.6, 3.0, 1.0])
RAS = np.diag([0.5, 0.5, 3.0, 1.0])
OBLIQUE = np.array([[0.58, -0.2, 0.1, 11], [0.2, 0.6, -0.3, 37], [0.02, 0.3, 2.9, 4], [0, 0, 0, 1]])
YELLOW = (255, 210, 0)
BLUE = (0, 220, 255)


def prediction(mask: np.ndarray, affine: np.ndarray = AFFINE, image: object = "a") -> MetaTensor:
    labels = torch.as_tensor(mask.copy(), dtype=torch.float32)[None]
    pred = MetaTensor(labels, affine=torch.as_tensor(affine))
    pred.meta["filename_or_obj"] = str(image)
    return pred


def output(kind: Any, pred: MetaTensor, folder: Path, **settings: Any) -> Case:
    """A case with one output of its prediction."""
    image = pred.meta["filename_or_obj"]
    case = Case("a", source=image, image=image)
    cases = Cases([case], folder / "table.json")
    kind("pred", cases, **settings)({"pred": pred})
    return case


# --- NIfTI masks

NOISE = np.random.default_rng(0).random((7, 9, 5)) > 0.5


def save_volume(
    path: Path, sform: np.ndarray | None, qform: np.ndarray | None, shape: Sequence[int] = (7, 9, 5)
) -> Path:
    """Write a volume with these forms; one that is ``None`` has the code 0."""
    image = nib.Nifti1Image(np.zeros(shape, np.float32), None)
    image.header.set_zooms((0.6, 0.6, 3.0))
    image.set_qform(qform, code=0 if qform is None else 1)
    image.set_sform(sform, code=0 if sform is None else 4)
    nib.save(image, path)
    return path


FORMS = {"apart": (AFFINE, OBLIQUE), "qform": (None, OBLIQUE), "none": (None, None)}


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
def test_programs_that_read_either_form_place_the_mask_on_its_volume(
    forms: tuple[Any, Any], tmp_path: Path
) -> None:
    file = save_volume(tmp_path / "a.nii.gz", *forms)
    volume = nib.Nifti1Image.from_filename(file)
    output(SaveNiftid, prediction(NOISE, volume.affine, file), tmp_path)
    mask = nib.Nifti1Image.from_filename(tmp_path / "a_pred.nii.gz")
    for name in ("sform_code", "qform_code"):
        assert mask.header[name] == volume.header[name]
    np.testing.assert_array_equal(mask.get_sform(), volume.get_sform())
    np.testing.assert_array_equal(mask.get_qform(), volume.get_qform())
    np.testing.assert_array_equal(mask.header.get_zooms(), volume.header.get_zooms())
    np.testing.assert_array_equal(mask.dataobj, NOISE)


def test_a_mask_on_another_grid_than_its_volume_lies_where_its_own_affine_says(
    tmp_path: Path,
) -> None:
    file = save_volume(tmp_path / "a.nii.gz", AFFINE / 2, AFFINE / 2, (14, 18, 1))
    output(SaveNiftid, prediction(NOISE[..., :1], AFFINE, file), tmp_path)
    mask = nib.Nifti1Image.from_filename(tmp_path / "a_pred.nii.gz")
    # Of one slice, it has three axes all the same.
    assert mask.shape == (7, 9, 1)
    np.testing.assert_allclose(mask.get_qform(), AFFINE, atol=1e-6)
    np.testing.assert_allclose(mask.get_sform(), AFFINE, atol=1e-6)


# --- measures

ANY = {"plausible": [0, 1000]}


def test_volumes_and_axial_slices_are_the_same_however_the_file_is_stored(tmp_path: Path) -> None:
    a = np.radians(20)
    turned = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    spacing = np.array([0.5, 0.8, 3.0])
    mask = np.zeros((10, 12, 8))
    mask[2:9, 3:10, 1:5] = 1
    for order in ([0, 1, 2], [2, 0, 1]):
        affine = np.eye(4)
        affine[:3, :3] = (turned * spacing)[:, order]
        case = output(MeasureVolumed, prediction(mask.transpose(order), affine), tmp_path, **ANY)
        assert case.results["slices_with_gland"] == 4
        assert case.results["millilitres"] == pytest.approx(7 * 7 * 4 * 0.5 * 0.8 * 3 / 1000)
        assert case.results["voxel_size_mm"] == spacing[order].tolist()
        assert not case.problems
    empty = output(MeasureVolumed, prediction(0 * mask), tmp_path, **ANY)
    assert (empty.status, empty.results["millilitres"]) == ("segmented", 0)
    pred = prediction(mask, np.diag([30.0, 30, 30, 1]))
    assert output(MeasureVolumed, pred, tmp_path, plausible=[1, 200]).problems


def test_a_photographs_mask_and_cup_to_disc_ratio_are_of_its_own_pixels(tmp_path: Path) -> None:
    # Width first, as MONAI reads pictures.
    labels = np.zeros((60, 40))
    labels[10:40, 10:30] = 1
    labels[20:25, 12:24] = 2
    measured = output(MeasureCupToDiscd, prediction(labels), tmp_path)
    assert measured.results == {
        "vertical_cup_to_disc_ratio": 12 / 20,
        "disc_pixels": 600,
        "cup_pixels": 60,
    }
    output(SaveMaskd, prediction(labels), tmp_path)
    with Image.open(tmp_path / "a_pred.png") as opened:
        np.testing.assert_array_equal(opened, np.array([0, 128, 255])[labels.astype(int).T])
    none = output(MeasureCupToDiscd, prediction(0 * labels), tmp_path)
    assert none.results["vertical_cup_to_disc_ratio"] is None


# --- overlays


def coloured(picture: np.ndarray, colour: tuple[int, int, int] = YELLOW) -> np.ndarray:
    return (picture == colour).all(axis=-1)


def drawn(image: np.ndarray, mask: np.ndarray, affine: np.ndarray = RAS) -> np.ndarray:
    return overlay(prediction(image, affine), prediction(mask, affine))


def test_the_patients_left_is_on_the_right_and_the_front_above_however_the_file_is_stored() -> None:
    image, mask = np.random.default_rng(0).random((20, 30, 6)), np.zeros((20, 30, 6))
    # x grows to the right, y to the front.
    mask[1:6, 22:28, 2] = 1
    picture = drawn(image, mask)
    rows, columns = np.nonzero(coloured(picture))
    assert columns.min() > picture.shape[1] / 2 and rows.max() < picture.shape[0] / 2
    order = [2, 0, 1]
    stored = RAS[:, [*order, 3]]
    stored[:, 3] += stored[:, 1] * 19
    stored[:, 1] *= -1
    turned = [np.flip(values.transpose(order), 1) for values in (image, mask)]
    np.testing.assert_array_equal(drawn(turned[0], turned[1], stored), picture)


def test_the_overlay_of_a_photograph_encloses_each_label_and_shows_its_colours(
    tmp_path: Path,
) -> None:
    colours = np.random.default_rng(0).integers(0, 200, (40, 60, 3), dtype=np.uint8)
    labels = np.zeros((40, 60))
    labels[5:25, 35:55] = 1
    labels[10:18, 40:48] = 2
    Image.fromarray(colours).convert("P").save(tmp_path / "eye.png")
    pred = prediction(labels.T, image=tmp_path / "eye.png")
    case = output(SaveOverlayd, pred, tmp_path)
    with Image.open(tmp_path / case.results["overlay"]) as opened:
        picture = np.asarray(opened)
    large = labels.repeat(16, axis=0).repeat(16, axis=1)
    for label, colour in ((1, YELLOW), (2, BLUE)):
        inside = ndimage.binary_fill_holes(coloured(picture, colour))
        expected = large >= label
        assert inside[expected].all() and expected[inside].mean() > 0.9
