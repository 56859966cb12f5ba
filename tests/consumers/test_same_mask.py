# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI Label's task, a MONAI Deploy application and ``monai-fairfl infer`` give the same mask."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Example:
    """An image, a model of a recipe, and the mask that ``monai-fairfl infer`` writes."""

    image: Path
    model: Path
    mask: Path

    def export(self, out: Path) -> Path:
        """What a consumer loads: a bundle with the model, or TorchScript."""
        assert main(["export", str(self.model), "--out", str(out)]) == 0
        return out


def example(
    bundle: Bundle, recipe: str, made_once: MadeOnce, folder: Path, series: bool
) -> Example:
    """An example whose mask is neither empty nor full; volumes as a DICOM series, or as NIfTI."""
    sites = made_once(f"sites_of_{bundle.name}", bundle.write)
    site = sites / bundle.whole_sites(sites)[0]

    def train(out: Path) -> None:
        names = (*TRAIN, recipe) if recipe else TRAIN
        bundle.run(names, site, out, max_epochs=60, val_interval=0, **bundle.quick_learning)

    name = "_".join(["trained_long", bundle.name, *filter(None, [recipe])])
    model = made_once(name, train) / "model.pt"
    images = folder / "images"
    images.mkdir()
    file = next((site / bundle.images).glob("Case00.*"))
    if series:
        write_as_series(file, images)
    image = images if series else Path(shutil.copy(file, images))
    assert main(["infer", str(model), str(images), "--out", str(folder / "masks")]) == 0
    (mask,) = (folder / "masks").glob(bundle.masks)
    assert 0 < (labels_of(mask) > 0).mean() < 0.5
    return Example(image, model, mask)


def labels_of(file: Path) -> np.ndarray:
    """The labels of a mask; in a picture of ours they are other values."""
    if file.suffix == ".gz":
        return np.asarray(nib.load(file).dataobj)  # type: ignore[attr-defined]
    values = np.asarray(Image.open(file))
    return np.select([values == 128, values == 255], [1, 2], values)


LABELS = {PROSTATE.name: {"prostate": 1}, FUNDUS.name: {"disc": 1, "cup": 2}}


@pytest.mark.parametrize(
    ("bundle", "recipe"),
    [(PROSTATE, ""), (PROSTATE, "light"), (PROSTATE, "volumes"), (FUNDUS, ""), (FUNDUS, "light")],
)
def test_monai_label_gives_the_mask_of_infer(
    bundle: Bundle, recipe: str, monai_label: Environment, made_once: MadeOnce, tmp_path: Path
) -> None:
    own = example(bundle, recipe, made_once, tmp_path, series=False)
    ending = ".nii.gz" if bundle is PROSTATE else ".png"
    mask = tmp_path / f"mask{ending}"
    exported = own.export(tmp_path / "bundle")
    printed = monai_label.run("label_task.py", exported, own.image, mask, ending)
    told = {"labels": LABELS[bundle.name], "dimension": 3 if bundle is PROSTATE else 2}
    assert json.loads(printed.splitlines()[-1]) == told
    np.testing.assert_array_equal(labels_of(mask), labels_of(own.mask))
    if bundle is PROSTATE:
        np.testing.assert_allclose(nib.load(mask).affine, nib.load(own.mask).affine, atol=1e-5)


@pytest.mark.parametrize(
    ("bundle", "form", "recipe"),
    [
        (PROSTATE, "bundle", ""),
        (PROSTATE, "model.ts", "light"),
        (PROSTATE, "bundle", "volumes"),
        (FUNDUS, "bundle", ""),
        (FUNDUS, "model.ts", "light"),
    ],
)
def test_a_monai_deploy_application_gives_the_mask_of_infer(
    bundle: Bundle,
    form: str,
    recipe: str,
    monai_deploy: Environment,
    made_once: MadeOnce,
    tmp_path: Path,
) -> None:
    own = example(bundle, recipe, made_once, tmp_path, series=bundle is PROSTATE)
    mask = tmp_path / "mask.npz"
    monai_deploy.run("deploy_app.py", own.export(tmp_path / form), own.image, mask)
    got = np.load(mask)
    if bundle is FUNDUS:
        # The network's side has the width first, a picture the height.
        np.testing.assert_array_equal(got["pred"].T, labels_of(own.mask))
        return
    # The application has the slices first.
    there = mask_in_the_patient(got["pred"].transpose(2, 1, 0), got["affine"])
    expected = mask_in_the_patient(labels_of(own.mask), nib.load(own.mask).affine)
    np.testing.assert_allclose(there, expected, atol=1e-3)


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
