# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Figs 8 and 9: the methods' outlines side by side, on a test image of every generated
hospital.

The middle slice of the first test volume of one fold, and its first test photograph, as the network
outlines them, before the largest part is kept; real images are not published here.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import PALETTE
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from monai.bundle import ConfigParser
from reading import measurement
from study import ROOT, Cell, Study

from monai_fairfl.utils.files import read_state_dict

STUDIES = ("six_prostate", "six_fundus")
FOLD = 2
METHODS = ("Standalone", "FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM")


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Study -> site -> image, truth and predictions of 64 x 64, as bits; needs the models in the
    folder of runs.
    """
    return {name: _of_study(Study.read(name), data, runs) for name in STUDIES}


def figure() -> Figure:
    """A row per hospital, a column per method: truth white, prediction coloured."""
    found = measurement("fedce_figures8_9")
    rows = [(study, site) for study in STUDIES for site in found[study]]
    drawn, grid = plt.subplots(
        len(rows),
        len(METHODS),
        figsize=(1.1 * len(METHODS), 1.15 * len(rows)),
        layout="constrained",
    )
    for (study, site), axes in zip(rows, grid):
        shown = found[study][site]
        image = np.frombuffer(base64.b64decode(shown["image"]), np.uint8).reshape(64, 64)
        for method, axis in zip(METHODS, axes):
            axis.imshow(image.T, cmap="gray", interpolation="none")
            for number, (truth, mask) in enumerate(
                zip(_masks(shown["truth"]), _masks(shown[method]))
            ):
                axis.contour(truth.T, [0.5], colors="white", linewidths=0.8)
                axis.contour(mask.T, [0.5], colors=PALETTE[1 + 3 * number], linewidths=0.8)
            axis.set_axis_off()
            axis.set_title(f"{method if site == rows[0][1] else ''}", fontsize=7)
        axes[0].text(
            -0.1,
            0.5,
            site,
            transform=axes[0].transAxes,
            rotation=90,
            va="center",
            ha="right",
            fontsize=7,
        )
    return drawn


def _of_study(study: Study, data: Path, runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for site, folder in sorted(
        (path.name, path) for path in study.sites_root(data, runs).iterdir() if path.is_dir()
    ):
        bundle = ROOT / "bundles" / study.bundle
        parser = ConfigParser()
        parser.read_config(str(bundle / "configs" / "train.json"))
        parser.update(study.overrides_of(Cell("", "FedAvg", FOLD)))
        parser.update({"dataset_dir": str(folder), "bundle_root": str(bundle)})
        case = dict(parser.get_parsed_content("datalist")["testing"][0])
        loaded = parser.get_parsed_content("validate#preprocessing")(case)
        image, label = torch.as_tensor(loaded["image"])[None], torch.as_tensor(loaded["label"])
        inferer, network = parser.get_parsed_content("validate#inferer"), parser.get_parsed_content(
            "network_def"
        )
        shown: dict[str, Any] = {}
        for method in METHODS:
            model = study.model(Cell("", method, FOLD), runs, site)
            network.load_state_dict(read_state_dict(model))
            with torch.no_grad():
                shown[method] = _bits(_slice(inferer(image, network.eval())[0] > 0))
        found[site] = {
            "image": _grey(_slice(image[0])[:1]),
            "truth": _bits(_slice(label) > 0),
            **shown,
        }
    return found


def _slice(volume: torch.Tensor) -> torch.Tensor:
    """The middle slice of a volume, a photograph as it is, at 64 x 64."""
    plane = volume[..., volume.shape[-1] // 2] if volume.ndim == 4 else volume
    return torch.nn.functional.interpolate(plane[None].float(), (64, 64), mode="nearest-exact")[0]


def _grey(image: torch.Tensor) -> str:
    low, high = np.percentile(image, [1, 99])
    return base64.b64encode(
        np.uint8(255 * np.clip((image[0].numpy() - low) / (high - low), 0, 1)).tobytes()
    ).decode()


def _bits(masks: torch.Tensor) -> list[str]:
    return [base64.b64encode(np.packbits(mask.numpy() > 0.5).tobytes()).decode() for mask in masks]


def _masks(bits: list[str]) -> list[np.ndarray]:
    return [
        np.unpackbits(np.frombuffer(base64.b64decode(each), np.uint8)).reshape(64, 64)
        for each in bits
    ]
