# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Fig. 7: how the loss rises around the last global model, along a filter-normalised
direction.

The direction is Gaussian, every filter scaled to the length of the model's own (Li et al., NeurIPS
2018); biases and normalisation stay. Training loss of clean and of corrupted clients, noise at 20 %
of the clients, means over folds, the same direction for all models; a rise is the mean of both
ways.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import panels
from matplotlib.figure import Figure
from reading import markdown, measurement, over_folds, words
from study import ROOT, Cell, Study
from torch import nn

from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.protocol.values import value_of
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.files import read_state_dict
from monai_fairfl.valuation.utility import Panel

STUDIES = ("quality",)
METHODS = ("FedAvg", "FedAvg-SALT", "SAGA", "FedISM")
STEPS = np.linspace(-1, 1, 9)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Method -> group -> fold -> mean loss at every step; needs the study's models in the folder of
    runs.
    """
    study = Study.read("quality")
    groups = study.settings["noise20"]["arguments"]["groups"]
    found: dict[str, dict[str, list[list[float]]]] = {
        method: {group: [] for group in groups} for method in METHODS
    }
    for fold in range(study.folds):
        panel = _panel(
            study, Cell("noise20", METHODS[0], fold), data, runs
        )  # all methods have the same clients
        for method in METHODS:
            network = _network(study, Cell("noise20", method, fold), runs)
            weights, along = network.state_dict(), direction(network)
            losses = [
                panel.measure(
                    {n: w + t * along[n] if n in along else w for n, w in weights.items()},
                    "global_loss",
                )
                for t in STEPS
            ]
            for group, sites in groups.items():
                found[method][group].append(
                    [float(np.mean([value_of(loss[s]) for s in sites])) for loss in losses]
                )
        panel.close()
    return {"steps": STEPS.tolist(), "losses": found}


def direction(network: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    """For every convolution a Gaussian direction whose filters, one per output channel, are as long
    as the model's.
    """
    generator, along = torch.Generator().manual_seed(seed), {}
    for name, module in sorted(network.named_modules()):
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim > 1:
            drawn = torch.randn(weight.shape, generator=generator)
            inside = [
                axis for axis in range(weight.ndim) if axis != int(isinstance(module, TRANSPOSED))
            ]
            lengths = [
                tensor.detach().square().sum(inside, keepdim=True).sqrt()
                for tensor in (weight, drawn)
            ]
            along[f"{name}.weight"] = drawn * lengths[0] / lengths[1].clamp_min(1e-12)
    return along


def table() -> str:
    """Loss, and its rise at half and at the whole direction, mean of both signs."""
    rows, middle = [], len(STEPS) // 2
    for method, groups in measurement("fedism_figure7")["losses"].items():
        cells = []
        for folds in groups.values():
            losses = np.array(folds)
            cells.append(words(over_folds(list(losses[:, middle]), np.mean)))
            for k in (middle // 2, middle):
                rise = (losses[:, middle - k] + losses[:, middle + k]) / 2 - losses[:, middle]
                cells.append(words(over_folds(list(rise), np.mean), signed=True))
        rows.append([method, *cells])
    return markdown(
        [
            "method",
            *(f"{g}, {what}" for g in groups for what in ("loss", "rise at 0.5", "rise at 1")),
        ],
        rows,
    )


def figure() -> Figure:
    """A panel per group."""
    found = measurement("fedism_figure7")
    drawn, axes = panels([f"{group} clients" for group in found["losses"]["FedAvg"]], across=2)
    for axis, group in zip(axes, found["losses"]["FedAvg"]):
        for method, groups in found["losses"].items():
            axis.plot(found["steps"], np.mean(groups[group], axis=0), label=method)
        axis.set_xlabel("distance along the direction")
        axis.set_ylabel("training loss")
    axes[0].legend(fontsize=6)
    return drawn


def _network(study: Study, cell: Cell, runs: Path) -> nn.Module:
    """A finished run's global model."""
    overrides = {key: study.overrides_of(cell)[key] for key in ("channels",)}
    network: nn.Module = train_config(
        ROOT / "bundles" / study.bundle, overrides
    ).get_parsed_content("network_def")
    network.load_state_dict(read_state_dict(study.model(cell, runs)))
    return network


def _panel(study: Study, cell: Cell, data: Path, runs: Path) -> Panel:
    """The study's clients, asked apart from any federation."""
    arguments = study.arguments_of(cell)
    overrides = study.overrides_of(cell) | {"pool": [str(data / "fundus" / "DrishtiGS1")]}
    root, private = (
        study.sites_root(data, runs).absolute(),
        (runs / "landscape" / cell.name).absolute(),
    )

    def client(name: str) -> Any:
        return bundle_client(
            ROOT / "bundles" / study.bundle, name, private / name, dataset_dir=root / name,
            groups=arguments["groups"], config=arguments["config"], overrides=overrides,
        )  # fmt: skip

    names = overrides["clients"]
    return Panel(InProcess({name: lambda name=name: client(name) for name in names}), names)
