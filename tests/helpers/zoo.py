# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of MONAI's model zoo, read from a checkout of it, and generated images for them.

``MONAI_FAIRFL_MODEL_ZOO`` names a checkout of Project-MONAI/model-zoo.
Nothing of a bundle is stored in this project: the digest of ``train.json`` pins its version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

VARIABLE = "MONAI_FAIRFL_MODEL_ZOO"
COMMIT = "dfae206df112837d817e78d3727c9f32b3b52e82"

DIGESTS = {
    "spleen_ct_segmentation": "7a51ae10c5413868",
    "prostate_mri_anatomy": "7975ba98c3b36b30",
    "endoscopic_tool_segmentation": "393d77faf2c2fe1f",
}
"""Bundle -> first digits of the SHA-256 of its ``configs/train.json`` at :data:`COMMIT`."""


def zoo_bundle(name: str, folder: Path) -> Path:
    """A copy of a bundle of the zoo as it is; skips the test where there is no checkout of it."""
    zoo = os.environ.get(VARIABLE)
    if not zoo:
        pytest.skip(f"{name}: {VARIABLE} names no checkout of the model zoo")
    source = Path(zoo) / "models" / name
    file = source / "configs" / "train.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    if not digest.startswith(DIGESTS[name]):
        pytest.skip(f"{name}: {zoo} is not the model zoo at {COMMIT[:8]}")
    shutil.copytree(source, folder / name)
    return folder / name


def write_spleens(root: Path) -> Path:
    """Volumes in the folders of the Decathlon's Task09_Spleen."""
    for site in "AB":
        for case in range(4):
            image, label = _ball(seed=case, structures=1)
            spacing = np.diag([1.5, 1.5, 2, 1])
            _save(image, root / site / "imagesTr" / f"spleen_{case}.nii.gz", spacing)
            _save(label, root / site / "labelsTr" / f"spleen_{case}.nii.gz", spacing)
    return root


def write_prostates(root: Path) -> Path:
    """Volumes as in Prostate158: a folder for each case, and tables of both parts."""
    spacing = np.diag([0.5, 0.5, 0.5, 1])
    for site in "AB":
        rows = []
        for case in range(5):
            folder = f"train/{case:03d}"
            image, label = _ball(seed=case, structures=2)
            rows.append(f"{case},{folder}/t2.nii.gz,{folder}/t2_anatomy_reader1.nii.gz")
            _save(image, root / site / folder / "t2.nii.gz", spacing)
            _save(label, root / site / folder / "t2_anatomy_reader1.nii.gz", spacing)
        head = "ID,t2,t2_anatomy_reader1"
        (root / site / "train.csv").write_text("\n".join([head, *rows[:3]]))
        (root / site / "valid.csv").write_text("\n".join([head, *rows[3:]]))
    return root


def write_frames(root: Path) -> Path:
    """Frames of videos, a folder for each video; masks lie beside them."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:96, :128]
    for site in "AB":
        for part, videos in (("train", 3), ("val", 1)):
            for video in range(videos):
                folder = root / site / part / f"video{video}"
                folder.mkdir(parents=True)
                for frame in range(2):
                    centre = rng.uniform(30, 66, 2)
                    inside = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < 400
                    picture = rng.normal(90, 20, (96, 128, 3)) + inside[..., None] * 100
                    picture = np.clip(picture, 0, 255).astype(np.uint8)
                    mask = inside.astype(np.uint8) * 255
                    Image.fromarray(picture).save(folder / f"frame{frame}.jpg")
                    Image.fromarray(mask).save(folder / f"frame{frame}_seg.jpg", quality=95)
    return root


def _ball(seed: int, structures: int, side: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """A noisy ball of nested structures, and its labels."""
    rng = np.random.default_rng(seed)
    centre = rng.uniform(0.4 * side, 0.6 * side, size=(3, 1, 1, 1))
    distances = np.sqrt(((np.indices((side, side, side)) - centre) ** 2).sum(0))
    label = np.zeros(distances.shape, np.uint8)
    for structure in range(structures):
        label[distances < 0.25 * side * (1 - 0.4 * structure)] = structure + 1
    image = label * 60 + rng.normal(0, 15, label.shape)
    return image.astype(np.float32), label


def _save(volume: np.ndarray, file: Path, affine: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(volume, affine), file)
