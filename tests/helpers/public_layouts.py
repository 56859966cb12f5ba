# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny sites in each layout of public data sets, with real files of their kinds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from PIL import Image

GREY = (0, 128, 255)
PALETTE = (0, 1, 2)
DOFE = (255, 128, 0)


def photo(number: int, size: int = 48) -> np.ndarray:
    """Coloured noise, different for each number."""
    return np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)


def mask(
    number: int, values: Sequence[int] = GREY, size: int = 48, radius: float = 15, cup: float = 7
) -> np.ndarray:
    """Background, a disc and, with a third value, a cup inside it; shifted by the number."""
    rows, columns = np.mgrid[:size, :size]
    distance = np.hypot(rows - size / 2 + number % 5, columns - size / 2 - number // 5 % 5)
    levels = np.where(distance < radius, values[1], values[0])
    if len(values) > 2:
        levels = np.where(distance < cup, values[2], levels)
    return levels.astype(np.uint8)


def write(path: Path, pixels: np.ndarray, **options: object) -> Path:
    """A picture, or a volume where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith((".nii", ".nii.gz")):
        nib.save(nib.Nifti1Image(pixels, np.diag([0.6, 0.6, 3.6, 1])), path)
    else:
        Image.fromarray(pixels).save(path, **options)
    return path


def touch(folder: Path, *names: str, text: str = "") -> Path:
    """Files of this text, without any by default."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def volume(number: int, channels: int = 0) -> np.ndarray:
    """A volume of 8 x 8 x 4 voxels, with channels on a fourth axis."""
    shape = (8, 8, 4, channels) if channels else (8, 8, 4)
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def gland(number: int) -> np.ndarray:
    label = np.zeros((8, 8, 4), np.uint8)
    label[2:5, 2 + number % 3 : 6, 1:3] = 1
    return label


def saml(site: Path, cases: int = 4) -> Path:
    for n in range(cases):
        write(site / f"Case{n:02d}.nii.gz", volume(n))
        write(site / f"Case{n:02d}_segmentation.nii.gz", gland(n))
    return site


def folders(
    site: Path,
    cases: int = 4,
    endings: Sequence[str] = (".png", ".png"),
    values: Sequence[int] = GREY,
    first: int = 0,
) -> Path:
    """A site whose ``dataset.json`` names the values, where there are more than two."""
    for n in range(first, first + cases):
        write(site / "images" / f"eye{n:02d}{endings[0]}", photo(n))
        write(site / "masks" / f"eye{n:02d}{endings[1]}", mask(n, values))
    if len(values) > 2:
        inner = [min(values[1:]), max(values[1:])]
        labels = {"background": values[0], "disc": inner, "cup": values[2]}
        (site / "dataset.json").write_text(json.dumps({"labels": labels}))
    return site


def dofe(site: Path, train: int = 6) -> Path:
    for part, numbers in (("train", range(train)), ("test", range(train, train + 2))):
        for n in numbers:
            write(site / part / "ROIs" / "image" / f"V{n:04d}.png", photo(n))
            write(site / part / "ROIs" / "mask" / f"V{n:04d}.png", mask(n, DOFE))
    return site


def nvflare(root: Path, images: str = "dataset_2D") -> Path:
    """Two slices of each of four cases: two cases train, one validates, one tests.

    Beside the clients' lists there is the one that merges them.
    """
    lists: dict[str, dict[str, list[Any]]] = {}
    for name in ("I2CVB", "MSD", "All"):
        lists[name] = {"training": [], "validation": [], "testing": []}
    for number, client in enumerate(("I2CVB", "MSD")):
        for case, part in enumerate(("training", "training", "validation", "testing")):
            for slice_ in range(2):
                n = 100 * number + 10 * case + slice_
                image, label = (
                    f"{client}/{key}/Case{case}/{slice_}.png" for key in ("Image", "Mask")
                )
                write(root / images / image, photo(n)[..., 0])
                write(root / images / label, mask(n, (0, 255)))
                for name in (client, "All"):
                    lists[name][part].append({"image": image, "label": label})
    (root / "datalist_2D").mkdir(parents=True, exist_ok=True)
    for name, content in lists.items():
        (root / "datalist_2D" / f"client_{name}.json").write_text(json.dumps(content))
    return root


def msd(site: Path) -> Path:
    listed = []
    for n in range(4):
        write(site / "imagesTr" / f"prostate_{n:02d}.nii.gz", volume(n, 2))
        write(site / "labelsTr" / f"prostate_{n:02d}.nii.gz", gland(n))
        listed.append({key: f"./{key}sTr/prostate_{n:02d}.nii.gz" for key in ("image", "label")})
    about = {
        "name": "PROSTATE",
        "modality": {"0": "T2", "1": "ADC"},
        "training": listed,
        "test": ["./imagesTs/x.nii.gz"],
    }
    (site / "dataset.json").write_text(json.dumps(about))
    return site


def nnunet(site: Path) -> Path:
    for n in range(4):
        for channel in range(2):
            write(site / f"imagesTr/case_{n:03d}_{channel:04d}.nii.gz", volume(n + 50 * channel))
        write(site / f"labelsTr/case_{n:03d}.nii.gz", gland(n))
    about = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {}, "file_ending": ".nii.gz"}
    (site / "dataset.json").write_text(json.dumps(about))
    return site


ONE_SITE: dict[str, Callable[[Path], Path]] = {
    "saml": saml,
    "folders": folders,
    "dofe": dofe,
    "nvflare": lambda root: nvflare(root) / "datalist_2D" / "client_MSD.json",
    "msd": msd,
    "nnunet": nnunet,
}
