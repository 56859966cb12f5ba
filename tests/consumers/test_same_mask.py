# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI Label's task, a MONAI Deploy application and ``monai-fairfl infer`` give the same mask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.checkout import CHECKOUT
from helpers.dicom_series import oblique, write_series
from helpers.made_once import MadeOnce
from helpers.shipped_bundles import FUNDUS, PROSTATE, TRAIN, Bundle
from monai.transforms import LoadImage, Orientation
from PIL import Image

from monai_fairfl.cli import main

# Without their dependencies, which bring gigabytes of CUDA: only what they import here.
LABEL = [
    *("monailabel==0.8.5", "expiring_dict", "pydantic", "pydantic-core", "annotated-types"),
    *("typing-inspection", "pydantic-settings", "python-dotenv", "pynrrd", "shapely"),
    *("itk==5.4.7", "itk-core==5.4.7", "itk-numerics==5.4.7", "itk-io==5.4.7"),
    *("itk-filtering==5.4.7", "itk-registration==5.4.7", "itk-segmentation==5.4.7"),
    *("cachetools", "fastapi", "starlette", "pydicom-seg", "einops"),
]
DEPLOY = [
    *("monai-deploy-app-sdk==4.0.0", "holoscan-cu13==4.6.0", "wheel-axle-runtime"),
    *("nvidia-cuda-runtime", "typeguard", "colorama", "tritonclient", "python-rapidjson"),
    *("geventhttpclient", "gevent", "greenlet", "brotli", "zope.event", "zope.interface"),
]

PROGRAMS = CHECKOUT / "tests" / "consumers" / "programs"


@dataclass(frozen=True)
class Environment:
    """A virtual environment that also sees the packages of this one.

    Args:
        folder: of the environment.
    """

    folder: Path

    def run(self, program: str, *words: str | Path) -> str:
        """What a program of this folder prints."""
        cuda_runtime = self.folder.glob("lib/python*/site-packages/nvidia/*/lib")
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in cuda_runtime),
        }
        done = subprocess.run(
            [self.folder / "bin" / "python", PROGRAMS / program, *words],
            capture_output=True,
            text=True,
            env=environment,
            # MONAI Deploy takes a folder "models" of the working folder for its models.
            cwd=self.folder,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def environment_with(packages: Sequence[str]) -> Callable[[Path], None]:
    """The maker of an environment with these packages; a reason beside it where it cannot be."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        (site_packages,) = folder.glob("lib/python*/site-packages")
        (site_packages / "host.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
        done = subprocess.run([*install, *packages], capture_output=True, text=True)
        if done.returncode:
            (folder / "missing").write_text(done.stderr.strip().splitlines()[-1])

    return make


def require(name: str, packages: Sequence[str], made_once: MadeOnce) -> Environment:
    if sys.platform != "linux":
        pytest.skip(f"{name} is tried on Linux")
    folder = made_once(name, environment_with(packages))
    if (folder / "missing").exists():
        pytest.skip(f"{name} cannot be installed: {(folder / 'missing').read_text()}")
    return Environment(folder)


@pytest.fixture(scope="module")
def monai_label(made_once: MadeOnce) -> Environment:
    return require("MONAI_Label", LABEL, made_once)


@pytest.fixture(scope="module")
def monai_deploy(made_once: MadeOnce) -> Environment:
    return require("MONAI_Deploy", DEPLOY, made_once)


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
