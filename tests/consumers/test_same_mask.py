# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI Label's task, a MONAI Deploy application and ``monai-fairfl infer`` give the same mask."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.consumer_environments import Environment
from helpers.dicom_series import oblique, write_series
from helpers.made_once import MadeOnce
from helpers.shipped_bundles import FUNDUS, PROSTATE, TRAIN, Bundle
from monai.transforms import LoadImage, Orientation
from PIL import Image

from monai_fairfl.cli import main

pytestmark = pytest.mark.consumers

# What files of fundus masks say for background, disc and cup.
LABEL_OF_VALUE = {0: 0, 128: 1, 255: 2}


def trained(bundle: Bundle, made_once: MadeOnce, recipe: str) -> tuple[Path, Path]:
    """A folder of images, and a model of a recipe whose masks are neither empty nor full."""
    sites = made_once(f"sites_of_{bundle.name}", bundle.write)
    site = sites / bundle.whole_sites(sites)[0]

    def train(folder: Path) -> None:
        names = (*TRAIN, recipe) if recipe else TRAIN
        learning = {**bundle.quick_learning, **bundle.recipes.get(recipe, {})}
        bundle.run(names, site, folder, max_epochs=60, val_interval=0, **learning)

    name = "_".join(["trained_long", bundle.name, *filter(None, [recipe])])
    model = made_once(name, train) / "model.pt"
    return site / bundle.images, model


def infer(bundle: Bundle, images: Path, model: Path, out: Path) -> Path:
    """The mask that ``monai-fairfl infer`` writes of the only image in a folder."""
    assert main(["infer", str(model), str(images), "--out", str(out / "masks")]) == 0
    (mask,) = (out / "masks").glob(bundle.masks)
    return mask


def export(model: Path, out: Path) -> None:
    """What a consumer loads: a bundle with the model, or TorchScript."""
    assert main(["export", str(model), "--out", str(out)]) == 0


def folder_with(file: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copy(file, folder))


def mask_of_nifti(file: Path) -> np.ndarray:
    return np.asarray(nib.load(file).dataobj)  # type: ignore[attr-defined]


def labels_of_picture(file: Path) -> np.ndarray:
    values = np.asarray(Image.open(file))
    labels = np.full(values.shape, -1)
    for value, label in LABEL_OF_VALUE.items():
        labels[values == value] = label
    return labels


@pytest.mark.parametrize("recipe", ["", "light", "volumes"])
def test_monai_label_gives_the_volume_the_mask_of_infer(
    recipe: str, monai_label: Environment, made_once: MadeOnce, tmp_path: Path
) -> None:
    images, model = trained(PROSTATE, made_once, recipe)
    image = folder_with(next(images.glob("Case00.*")), tmp_path / "images")
    expected = infer(PROSTATE, image.parent, model, tmp_path)

    export(model, tmp_path / "bundle")
    mask = tmp_path / "mask.nii.gz"
    printed = monai_label.run("label_task.py", tmp_path / "bundle", image, mask, ".nii.gz")
    assert json.loads(printed.splitlines()[-1]) == {"labels": {"prostate": 1}, "dimension": 3}
    assert 0 < mask_of_nifti(expected).mean() < 0.5
    np.testing.assert_array_equal(mask_of_nifti(mask), mask_of_nifti(expected))
    np.testing.assert_allclose(nib.load(mask).affine, nib.load(expected).affine, atol=1e-5)


@pytest.mark.parametrize("recipe", ["", "light"])
def test_monai_label_gives_the_photograph_the_mask_of_infer(
    recipe: str, monai_label: Environment, made_once: MadeOnce, tmp_path: Path
) -> None:
    images, model = trained(FUNDUS, made_once, recipe)
    image = folder_with(next(images.glob("Case00.*")), tmp_path / "images")
    expected = labels_of_picture(infer(FUNDUS, image.parent, model, tmp_path))

    export(model, tmp_path / "bundle")
    mask = tmp_path / "mask.png"
    printed = monai_label.run("label_task.py", tmp_path / "bundle", image, mask, ".png")
    told = json.loads(printed.splitlines()[-1])
    assert told == {"labels": {"disc": 1, "cup": 2}, "dimension": 2}
    assert set(np.unique(expected)) == {0, 1, 2}
    np.testing.assert_array_equal(np.asarray(Image.open(mask)), expected)


@pytest.mark.parametrize(
    ("form", "recipe"),
    [("bundle", ""), ("model.ts", ""), ("model.ts", "light"), ("bundle", "volumes")],
)
def test_a_monai_deploy_application_gives_the_series_the_mask_of_infer(
    form: str, recipe: str, monai_deploy: Environment, made_once: MadeOnce, tmp_path: Path
) -> None:
    images, model = trained(PROSTATE, made_once, recipe)
    series = tmp_path / "series"
    write_as_series(next(images.glob("Case00.*")), series)
    expected = infer(PROSTATE, series, model, tmp_path)

    export(model, tmp_path / form)
    mask = tmp_path / "mask.npz"
    monai_deploy.run("deploy_app.py", tmp_path / form, series, mask)
    got = np.load(mask)
    # The application has the slices first.
    there = mask_in_the_patient(got["pred"].transpose(2, 1, 0), got["affine"])
    own = mask_in_the_patient(mask_of_nifti(expected), nib.load(expected).affine)
    assert len(own) > 0
    np.testing.assert_allclose(there, own, atol=1e-3)


@pytest.mark.parametrize(
    ("form", "recipe"), [("bundle", ""), ("model.ts", ""), ("model.ts", "light")]
)
def test_a_monai_deploy_application_gives_the_photograph_the_mask_of_infer(
    form: str, recipe: str, monai_deploy: Environment, made_once: MadeOnce, tmp_path: Path
) -> None:
    images, model = trained(FUNDUS, made_once, recipe)
    image = folder_with(next(images.glob("Case00.*")), tmp_path / "images")
    expected = labels_of_picture(infer(FUNDUS, image.parent, model, tmp_path))

    export(model, tmp_path / form)
    mask = tmp_path / "mask.npz"
    monai_deploy.run("deploy_app.py", tmp_path / form, image, mask)
    assert set(np.unique(expected)) == {0, 1, 2}
    # The network's side has the width first, a picture the height.
    np.testing.assert_array_equal(np.load(mask)["pred"].T, expected)


def write_as_series(file: Path, folder: Path) -> None:
    """Write a volume as a tilted DICOM series of the same spacing."""
    volume = Orientation("LPS", labels=None)(LoadImage(ensure_channel_first=True)(file))
    spacing = np.linalg.norm(np.asarray(volume.affine)[:3, :3], axis=0).tolist()
    values = np.asarray(volume[0])
    pixels = 1000 * (values - values.min()) / np.ptp(values)
    write_series(
        folder,
        pixels.transpose(2, 1, 0).astype(np.int16),
        orientation=oblique(),
        spacing=(spacing[1], spacing[0]),
        step=spacing[2],
    )


def mask_in_the_patient(mask: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """The voxels of a mask in mm of the patient, in one order for every order of the axes."""
    places = nib.affines.apply_affine(affine, np.argwhere(mask > 0))
    return places[np.lexsort(np.round(places, 2).T)]
