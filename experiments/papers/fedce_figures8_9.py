# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Figs 8 and 9: the methods' outlines side by side, on a test image of every generated
hospital.

The middle slice of the first test volume of one fold, and its first test photograph, as the network
outlines them, before smaller parts are removed; real images are not published here.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import PALETTE
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from monai.bundle import ConfigParser
from reading import measurement
from study import ROOT, Cell, Study

from monai_fairfl.utils.saved_files import read_state_dict

STUDIES = ("six_prostate", "six_fundus")
FOLD = 2
SIDE = 64  # pixels of the pictures
METHODS = ("Standalone", "FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM")


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Study -> site -> image, truth and predictions of 64 x 64, as bits.

    The models must be in the folder of runs.
    """
    return {name: _of_study(Study.read(name), data, runs) for name in STUDIES}


def figure() -> Figure:
    """A row per hospital, a column per method: truth white, prediction coloured."""
    found = measurement("fedce_figures8_9")
    rows = []
    for study in STUDIES:
        for site in found[study]:
            rows.append((study, site))
    drawn, grid = plt.subplots(
        len(rows),
        len(METHODS),
        figsize=(1.1 * len(METHODS), 1.15 * len(rows)),
        layout="constrained",
    )
    first_site = rows[0][1]
    for (study, site), axes in zip(rows, grid):
        shown = found[study][site]
        image = np.frombuffer(base64.b64decode(shown["image"]), np.uint8).reshape(SIDE, SIDE)
        for method, axis in zip(METHODS, axes):
            axis.imshow(image.T, cmap="gray", interpolation="none")
            truths = _masks(shown["truth"])
            predictions = _masks(shown[method])
            for number, (truth, prediction) in enumerate(zip(truths, predictions)):
                colour = PALETTE[1 + 3 * number]
                axis.contour(truth.T, [0.5], colors="white", linewidths=0.8)
                axis.contour(prediction.T, [0.5], colors=colour, linewidths=0.8)
            axis.set_axis_off()
            title = ""
            if site == first_site:
                title = method
            axis.set_title(title, fontsize=7)
        _name_row(axes[0], site)
    return drawn


def _name_row(axis: Axes, site: str) -> None:
    axis.text(
        -0.1,
        0.5,
        site,
        transform=axis.transAxes,
        rotation=90,
        va="center",
        ha="right",
        fontsize=7,
    )


def _of_study(study: Study, data: Path, runs: Path) -> dict[str, Any]:
    """Outline one test image of every site with every method's model."""
    root = study.sites_root(data, runs)
    found: dict[str, Any] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        parser = _configuration(study, folder)
        case = dict(parser.get_parsed_content("datalist")["testing"][0])
        loaded = parser.get_parsed_content("validate#preprocessing")(case)
        image = torch.as_tensor(loaded["image"])[None]
        label = torch.as_tensor(loaded["label"])
        inferer = parser.get_parsed_content("validate#inferer")
        network = parser.get_parsed_content("network_def")
        shown: dict[str, Any] = {
            "image": _grey(_slice(image[0])[:1]),
            "truth": _bits(_slice(label) > 0),
        }
        for method in METHODS:
            model = study.model(Cell("", method, FOLD), runs, folder.name)
            network.load_state_dict(read_state_dict(model))
            with torch.no_grad():
                logits = inferer(image, network.eval())[0]
            shown[method] = _bits(_slice(logits > 0))
        found[folder.name] = shown
    return found


def _configuration(study: Study, site: Path) -> ConfigParser:
    """Return the training configuration of a site, as its runs had it."""
    bundle = ROOT / "bundles" / study.bundle
    parser = ConfigParser()
    cell = Cell("", "FedAvg", FOLD)
    parser.read_config([str(bundle / file) for file in study.arguments_of(cell)["config"]])
    parser.update(study.overrides_of(cell))
    parser.update({"dataset_dir": str(site), "bundle_root": str(bundle)})
    return parser


def _slice(volume: torch.Tensor) -> torch.Tensor:
    """Take the middle slice of a volume, or a photograph as it is, at 64 x 64."""
    plane = volume
    if volume.ndim == 4:
        plane = volume[..., volume.shape[-1] // 2]
    resized = torch.nn.functional.interpolate(
        plane[None].float(), (SIDE, SIDE), mode="nearest-exact"
    )
    return resized[0]


def _grey(image: torch.Tensor) -> str:
    """Encode a picture, its percentiles 1 and 99 as black and white."""
    low, high = np.percentile(image, [1, 99])
    scaled = (image[0].numpy() - low) / (high - low)
    grey = np.uint8(255 * np.clip(scaled, 0, 1))
    return base64.b64encode(grey.tobytes()).decode()


def _bits(masks: torch.Tensor) -> list[str]:
    """Encode masks, a bit for each pixel."""
    encoded = []
    for mask in masks:
        bits = np.packbits(mask.numpy() > 0.5)
        encoded.append(base64.b64encode(bits.tobytes()).decode())
    return encoded


def _masks(encoded: list[str]) -> list[np.ndarray]:
    """Decode what :func:`_bits` encoded."""
    masks = []
    for text in encoded:
        bits = np.frombuffer(base64.b64decode(text), np.uint8)
        masks.append(np.unpackbits(bits).reshape(SIDE, SIDE))
    return masks
