# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""FedISM, Fig. 7: how the loss rises around the last global model, along a filter-normalised direction.

The direction is Gaussian, every filter scaled to the length of the model's own (Li et al., NeurIPS 2018); biases and
normalisation stay. Training loss of clean and of corrupted clients, noise at 20 % of the clients, first fold, the same
direction for all models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import panels
from matplotlib.figure import Figure
from reading import markdown, measurement
from study import ROOT, Cell, Study

from monai_fairfl.messages import Weights, value_of
from monai_fairfl.site import bundle_client
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.valuation.utility import Panel

STUDIES = ("quality",)
METHODS = ("FedAvg", "FedAvg-SALT", "SAGA", "FedISM")
STEPS = np.linspace(-1, 1, 21)


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Method -> group -> mean loss at every step; needs the study's models in the folder of runs."""
    study, found = Study.read("quality"), {}
    groups = study.settings["noise20"]["arguments"]["groups"]
    panel = _panel(study, Cell("noise20", METHODS[0], 0), data, runs)  # all methods have the same clients
    for method in METHODS:
        cell = Cell("noise20", method, 0)
        weights = torch.load(study.model(cell, runs), weights_only=True)
        along = direction(weights)
        losses = [
            panel.measure({n: w + t * along[n] if n in along else w for n, w in weights.items()}, "global_loss")
            for t in STEPS
        ]
        found[method] = {
            g: [float(np.mean([value_of(loss[site]) for site in sites])) for loss in losses]
            for g, sites in groups.items()
        }
    panel.close()
    return {"steps": STEPS.tolist(), "losses": found}


def direction(weights: Weights, seed: int = 0) -> dict[str, torch.Tensor]:
    """For every convolution a Gaussian direction whose filters are as long as the model's."""
    generator, along = torch.Generator().manual_seed(seed), {}
    for name in sorted(weights):
        weight = weights[name]
        if weight.ndim > 1:
            drawn = torch.randn(weight.shape, generator=generator)
            lengths = [tensor.flatten(1).norm(dim=1).clamp_min(1e-12) for tensor in (weight, drawn)]
            along[name] = drawn * (lengths[0] / lengths[1]).reshape(-1, *[1] * (weight.ndim - 1))
    return along


def table() -> str:
    """Rise of the loss at half and at the whole direction, mean of both signs."""
    rows, middle = [], len(STEPS) // 2
    for method, groups in measurement("fedism_figure7")["losses"].items():
        cells = []
        for losses in groups.values():
            rise = [np.mean([losses[middle - k], losses[middle + k]]) - losses[middle] for k in (5, 10)]
            cells += [f"{losses[middle]:.3f}", *(f"{value:+.3f}" for value in rise)]
        rows.append([method, *cells])
    return markdown(
        ["method", *(f"{g}, {what}" for g in groups for what in ("loss", "rise at 0.5", "rise at 1"))], rows
    )


def figure() -> Figure:
    """A panel per group."""
    found = measurement("fedism_figure7")
    drawn, axes = panels([f"{group} clients" for group in found["losses"]["FedAvg"]], across=2)
    for axis, group in zip(axes, found["losses"]["FedAvg"]):
        for method, groups in found["losses"].items():
            axis.plot(found["steps"], groups[group], label=method)
        axis.set_xlabel("distance along the direction")
        axis.set_ylabel("training loss")
    axes[0].legend(fontsize=6)
    return drawn


def _panel(study: Study, cell: Cell, data: Path, runs: Path) -> Panel:
    """The study's clients, asked apart from any federation."""
    arguments = study.arguments_of(cell)
    overrides = study.overrides_of(cell) | {"pool": [str(data / "fundus" / "DrishtiGS1")]}
    root, private = study.sites_root(data, runs).absolute(), (runs / "landscape" / cell.name).absolute()

    def client(name: str) -> Any:
        return bundle_client(
            ROOT / "bundles" / study.bundle, name, private / name, dataset_dir=root / name,
            groups=arguments["groups"], config=arguments["config"], overrides=overrides,
        )  # fmt: skip

    names = overrides["clients"]
    return Panel(InProcess({name: lambda name=name: client(name) for name in names}), names)
