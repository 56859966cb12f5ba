# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures of a mask, and overlays written for volumes and for photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import LoadImage, SaveImage
from PIL import Image
from scipy import ndimage

from monai_fairfl.workflow import Case, Cases, MeasureVolumed, SaveNiftid, SaveOverlayd
from monai_fairfl.workflow.overlays import COLOURS


def measured(mask: np.ndarray, affine: np.ndarray, folder: Path) -> Case:
    case = Case("a", source="a.nii", image="a.nii")
    pred = MetaTensor(
        torch.as_tensor(mask, dtype=torch.uint8)[None], affine=torch.as_tensor(affine)
    )
    pred.meta["filename_or_obj"] = "a.nii"
    MeasureVolumed("pred", Cases([case], folder / "volumes.json"))({"pred": pred})
    return case


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_slices_are_axial_and_millilitres_the_same_however_the_file_was_stored(
    order: tuple[int, int, int], tmp_path: Path
) -> None:
    a = np.radians(20)
    turned = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]]) @ np.diag(
        [0.5, 0.8, 3.0]
    )
    affine = np.eye(4)
    affine[:3, :3] = turned[:, order]
    mask = np.zeros((10, 12, 8))
    mask[2:9, 3:10, 1:5] = 1
    case = measured(mask.transpose(order), affine, tmp_path)
    assert case.results["slices_with_gland"] == 4
    assert case.results["millilitres"] == pytest.approx(7 * 7 * 4 * 0.5 * 0.8 * 3 / 1000)
    assert case.results["voxel_size_mm"] == np.array([0.5, 0.8, 3.0])[[*order]].tolist()
    assert case.status == "segmented" and not case.problems


def test_empty_mask_is_noted_and_counts_as_segmented(tmp_path: Path) -> None:
    case = measured(np.zeros((4, 4, 3)), np.eye(4), tmp_path)
    assert case.results["millilitres"] == 0 and case.status == "segmented"
    assert "no gland was found" in case.problems[0]


@pytest.mark.slow
def test_photographs_get_overlays_too(tmp_path: Path) -> None:
    photograph = np.random.default_rng(0).integers(
        0, 200, (40, 60, 3), dtype=np.uint8
    )  # rows, columns
    Image.fromarray(photograph).save(tmp_path / "eye.png")
    case = Case("eye", source="eye.png", image=str(tmp_path / "eye.png"))
    disc = np.zeros((40, 60), bool)
    disc[5:20, 35:50] = True
    pred = MetaTensor(torch.as_tensor(disc.T.copy())[None])  # MONAI reads pictures columns first
    pred.meta["filename_or_obj"] = case.image
    cases = Cases([case], tmp_path / "table.json")
    SaveOverlayd("pred", cases, tmp_path, reader="PILReader")({"pred": pred})
    with Image.open(tmp_path / case.results["overlay"]) as opened:
        picture = np.asarray(opened)
    inside = ndimage.binary_fill_holes((picture == COLOURS[0]).all(axis=-1))
    expected = disc.repeat(16, axis=0).repeat(16, axis=1)
    assert inside[expected].all() and expected[inside].mean() > 0.95
    plain = ~ndimage.binary_dilation(expected, iterations=3)
    # The case's name is in the upper left corner.
    plain[:20, :60] = False
    sampled = np.asarray(Image.fromarray(photograph).resize((960, 640), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(picture[plain], sampled[plain])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGBA", "P", "L"])
def test_photographs_of_every_mode_get_the_overlay_of_their_colours(
    mode: str, tmp_path: Path
) -> None:
    colours = Image.fromarray(
        np.random.default_rng(0).integers(0, 200, (40, 60, 3), dtype=np.uint8)
    ).convert(mode)
    pictures = []
    for name, photograph in (("stored", colours), ("rgb", colours.convert("RGB"))):
        photograph.save(tmp_path / f"{name}.png")
        # One name, which is in the picture.
        case = Case("eye", source=f"{name}.png", image=str(tmp_path / f"{name}.png"))
        pred = MetaTensor(torch.zeros(1, 60, 40), meta={"filename_or_obj": case.image})
        out = tmp_path / name
        out.mkdir()
        SaveOverlayd("pred", Cases([case], out / "table.json"), out, reader="PILReader")(
            {"pred": pred}
        )
        assert case.status == "segmented", case.problems
        with Image.open(out / case.results["overlay"]) as opened:
            pictures.append(np.asarray(opened))
    np.testing.assert_array_equal(*pictures)


def prediction(shape: tuple[int, ...], affine: np.ndarray) -> MetaTensor:
    mask = np.random.default_rng(0).random(shape) > 0.5
    pred = MetaTensor(
        torch.as_tensor(mask, dtype=torch.float32)[None], affine=torch.as_tensor(affine)
    )
    pred.meta |= {
        "filename_or_obj": "in/a.nii.gz",
        "spatial_shape": np.array(shape),
        "original_affine": affine,
    }
    return pred


def write_volume(pred: MetaTensor, folder: Path) -> str:
    """Write the volume of a prediction, and name it in the prediction's metadata."""
    affine = pred.affine.numpy()
    volume = nib.Nifti1Image(np.zeros(pred.shape[1:], np.float32), affine)
    volume.set_sform(affine, code=1)
    volume.set_qform(affine, code=1)
    path = folder / "in" / "a.nii.gz"
    path.parent.mkdir()
    nib.save(volume, path)
    pred.meta["filename_or_obj"] = str(path)
    return str(path)


def saved(pred: MetaTensor, folder: Path) -> Path:
    case = Case("a", source="a.nii.gz", image=write_volume(pred, folder))
    SaveNiftid("pred", Cases([case], folder / "volumes.json"), folder)({"pred": pred})
    assert case.status == "segmented" and case.results == {"mask": "a_pred.nii.gz"}, case.problems
    return folder / "a_pred.nii.gz"


@pytest.mark.parametrize("kind", ["straight", "oblique", "sheared", "left-handed"])
def test_a_mask_is_the_file_that_monai_would_write(kind: str, tmp_path: Path) -> None:
    axes = {
        "straight": np.diag([-0.6, -0.6, 3.0]),
        "sheared": np.diag([0.6, 0.7, 3.0]),
        "left-handed": np.eye(3),
    }
    affine = np.eye(4)
    affine[:3, :3] = axes.get(
        kind, np.array([[0.58, -0.2, 0.1], [0.2, 0.6, -0.3], [0.02, 0.3, 2.9]])
    )
    affine[:3, 3] = 11.5, -37.25, 4.1
    if kind == "sheared":
        affine[0, 2] = 0.15
    if kind == "left-handed":
        affine[0, 0] = -1
    pred = prediction((7, 9, 5), affine)
    path = saved(pred, tmp_path)
    folder, dtype = tmp_path / "monai", torch.uint8
    SaveImage(folder, "pred", ".nii.gz", dtype, separate_folder=False, print_log=False)(pred)  # type: ignore[arg-type]
    assert path.read_bytes() == (folder / path.name).read_bytes()


def test_the_mask_of_one_slice_has_three_axes_as_its_volume(tmp_path: Path) -> None:
    path = saved(prediction((7, 9, 1), np.diag([0.6, 0.6, 3.0, 1.0])), tmp_path)
    assert nib.Nifti1Image.from_filename(str(path)).shape == (7, 9, 1)


def test_a_mask_that_cannot_be_written_costs_this_output_only(tmp_path: Path) -> None:
    (tmp_path / "a_pred.nii.gz").mkdir()
    pred = prediction((4, 4, 3), np.eye(4))
    case = Case("a", source="a.nii", image=write_volume(pred, tmp_path))
    SaveNiftid("pred", Cases([case], tmp_path / "volumes.json"), tmp_path)({"pred": pred})
    assert (
        case.status == "incomplete"
        and "SaveNiftid failed" in case.problems[0]
        and "a_pred.nii.gz" in case.problems[0]
        and "mask" not in case.results
    )


AFFINE = np.diag([-0.6, -0.6, 3.0, 1.0])
APART = AFFINE + np.array([[0, 0, 0, 20.0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
# name -> affine and code of the sform, then of the qform.
FORMS: dict[str, tuple[Any, int, Any, int]] = {
    "20 mm apart": (AFFINE, 1, APART, 1),
    "only a qform": (None, 0, AFFINE, 1),
    "only a sform": (AFFINE, 4, None, 0),
    "none": (None, 0, None, 0),
}


@pytest.mark.parametrize("forms", FORMS)
def test_programs_that_read_either_form_place_the_mask_on_its_volume(
    forms: str, tmp_path: Path
) -> None:
    sform, sform_code, qform, qform_code = FORMS[forms]
    image = nib.Nifti1Image(np.zeros((7, 9, 5), np.float32), None)
    image.header.set_zooms((0.6, 0.6, 3.0))
    image.set_qform(qform, code=qform_code)
    image.set_sform(sform, code=sform_code)
    nib.save(image, tmp_path / "a.nii.gz")

    loaded = LoadImage(image_only=True, ensure_channel_first=True)(tmp_path / "a.nii.gz")
    pred = MetaTensor(torch.ones(1, 7, 9, 5), affine=loaded.affine, meta=loaded.meta)
    case = Case("a", source="a.nii.gz", image=str(tmp_path / "a.nii.gz"))
    SaveNiftid("pred", Cases([case], tmp_path / "volumes.json"), tmp_path)({"pred": pred})
    mask = nib.Nifti1Image.from_filename(str(tmp_path / "a_pred.nii.gz"))
    of_volume = nib.Nifti1Image.from_filename(str(tmp_path / "a.nii.gz"))

    for name in ("sform_code", "qform_code"):
        assert mask.header[name] == of_volume.header[name]
    np.testing.assert_array_equal(mask.get_sform(), of_volume.get_sform())
    np.testing.assert_array_equal(mask.get_qform(), of_volume.get_qform())
    np.testing.assert_array_equal(mask.affine, of_volume.affine)
    np.testing.assert_array_equal(mask.header.get_zooms(), of_volume.header.get_zooms())
    assert np.asarray(mask.dataobj).all()


def test_a_mask_on_another_grid_than_its_volume_lies_where_its_own_affine_says(
    tmp_path: Path,
) -> None:
    volume = prediction((14, 18, 5), np.diag([-0.3, -0.3, 3.0, 1.0]))
    path = write_volume(volume, tmp_path)
    pred = prediction((7, 9, 5), AFFINE)
    pred.meta["filename_or_obj"] = path
    case = Case("a", source="a.nii.gz", image=path)
    SaveNiftid("pred", Cases([case], tmp_path / "volumes.json"), tmp_path)({"pred": pred})
    mask = nib.Nifti1Image.from_filename(str(tmp_path / "a_pred.nii.gz"))
    np.testing.assert_allclose(mask.get_qform(), AFFINE, atol=1e-6)
    np.testing.assert_allclose(mask.get_sform(), AFFINE, atol=1e-6)
