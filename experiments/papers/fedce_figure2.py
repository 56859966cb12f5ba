# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Fig. 2: the hospitals' images differ: histograms of intensity.

Every image is scaled to its own percentiles 0.5 and 99.5, as in training: raw maxima differ by a
factor of 80 between the prostate cases. Of photographs the red channel is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from figures import panels
from matplotlib.figure import Figure
from PIL import Image
from reading import measurement

from monai_fairfl.data import site_datalist
from monai_fairfl.data.layouts import site_folders

STUDIES: tuple[str, ...] = ()
TASKS = {"prostate": None, "fundus": ["disc", "cup"]}
BINS = 40


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Task -> site -> mean density of its images in equal bins from 0 to 1."""
    found: dict[str, Any] = {}
    for task, structures in TASKS.items():
        for site, folder in sorted(site_folders(data / task).items()):
            parts = site_datalist(folder, structures=structures)
            files = [folder / case["image"] for part in parts.values() for case in part]
            found.setdefault(task, {})[site] = np.mean(
                [_density(_read(file)) for file in files], axis=0
            ).tolist()
    return found


def figure() -> Figure:
    """A panel per task, a line per site."""
    found = measurement("fedce_figure2")
    drawn, axes = panels(list(TASKS), across=2, share=False)
    for axis, task in zip(axes, TASKS):
        for site, density in found[task].items():
            axis.plot((np.arange(BINS) + 0.5) / BINS, density, label=site)
        axis.set_xlabel("intensity, scaled")
        axis.set_ylabel("density")
        axis.legend(fontsize=6)
    return drawn


def _read(file: Path) -> np.ndarray:
    if file.name.endswith((".nii", ".nii.gz")):
        return np.asarray(nib.load(file).dataobj, dtype=float)
    return np.asarray(Image.open(file).convert("RGB").reduce(4), dtype=float)[..., 0]


def _density(image: np.ndarray) -> np.ndarray:
    low, high = np.percentile(image, [0.5, 99.5])
    return np.histogram((image - low) / (high - low), bins=BINS, range=(0, 1), density=True)[0]
