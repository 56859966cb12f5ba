# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Fig. 2: the hospitals' images differ: histograms of intensity.

Every image is scaled to its own percentiles 0.5 and 99.5, as volumes are in training: raw maxima
differ by a factor of 80 between the prostate cases. Of photographs the red channel is drawn.
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
TASKS = {"prostate": (), "fundus": ("disc", "cup")}
BINS = 40


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Task -> site -> mean density of its images in equal bins from 0 to 1."""
    found: dict[str, Any] = {}
    for task, structures in TASKS.items():
        found[task] = {}
        for site, folder in sorted(site_folders(data / task).items()):
            densities = []
            for cases in site_datalist(folder, structures=structures).values():
                for case in cases:
                    densities.append(_density(_read(folder / case["image"])))
            found[task][site] = np.mean(densities, axis=0).tolist()
    return found


def figure() -> Figure:
    """A panel per task, a line per site."""
    found = measurement("fedce_figure2")
    drawn, axes = panels(list(TASKS), across=2, share=False)
    centres = (np.arange(BINS) + 0.5) / BINS
    for axis, task in zip(axes, TASKS):
        for site, density in found[task].items():
            axis.plot(centres, density, label=site)
        axis.set_xlabel("intensity, scaled")
        axis.set_ylabel("density")
        axis.legend(fontsize=6)
    return drawn


def _read(file: Path) -> np.ndarray:
    """Read a volume, or the red channel of a photograph at a quarter of its size."""
    if file.name.endswith((".nii", ".nii.gz")):
        volume = nib.load(file)
        return np.asarray(volume.dataobj, dtype=float)  # type: ignore[attr-defined]
    return np.asarray(Image.open(file).convert("RGB").reduce(4), dtype=float)[..., 0]


def _density(image: np.ndarray) -> np.ndarray:
    """Compute the histogram of intensities between the image's own percentiles."""
    low, high = np.percentile(image, [0.5, 99.5])
    scaled = (image - low) / (high - low)
    return np.histogram(scaled, bins=BINS, range=(0, 1), density=True)[0]
