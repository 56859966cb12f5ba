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

from collections.abc import Iterator
from functools import partial
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
from monai_fairfl.utils.saved_files import read_state_dict
from monai_fairfl.valuation.utility import Panel

STUDIES = ("quality",)
METHODS = ("FedAvg", "FedAvg-SALT", "SAGA", "FedISM")
STEPS = np.linspace(-1, 1, 9)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Method -> group -> fold -> mean loss at every step.

    The study's models must be in the folder of runs.
    """
    study = Study.read("quality")
    groups = study.settings["noise20"]["arguments"]["groups"]
    found: dict[str, dict[str, list[list[float]]]] = {}
    for method in METHODS:
        found[method] = {group: [] for group in groups}
    for fold in range(study.folds):
        # All methods have the same clients.
        panel = _panel(study, Cell("noise20", METHODS[0], fold), data, runs)
        for method in METHODS:
            network = _network(study, Cell("noise20", method, fold), runs)
            losses = []
            for weights in _weights_along(network):
                losses.append(panel.measure(weights, "global_loss"))
            for group, sites in groups.items():
                means = []
                for loss in losses:
                    means.append(float(np.mean([value_of(loss[site]) for site in sites])))
                found[method][group].append(means)
        panel.close()
    return {"steps": STEPS.tolist(), "losses": found}


def _weights_along(network: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the model's weights at every step along the direction."""
    along = direction(network)
    for step in STEPS:
        weights = {}
        for name, weight in network.state_dict().items():
            weights[name] = weight
            if name in along:
                weights[name] = weight + step * along[name]
        yield weights


def direction(network: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw a Gaussian direction for every convolution.

    Its filters, one per output channel, are as long as the model's.
    """
    generator = torch.Generator().manual_seed(seed)
    along = {}
    for name, module in sorted(network.named_modules()):
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim < 2:
            continue
        drawn = torch.randn(weight.shape, generator=generator)
        output_axis = 0
        if isinstance(module, TRANSPOSED):
            output_axis = 1
        filter_axes = [axis for axis in range(weight.ndim) if axis != output_axis]
        length_of_weight = weight.detach().square().sum(filter_axes, keepdim=True).sqrt()
        length_of_drawn = drawn.square().sum(filter_axes, keepdim=True).sqrt()
        along[f"{name}.weight"] = drawn * length_of_weight / length_of_drawn.clamp_min(1e-12)
    return along


def table() -> str:
    """Loss, and its rise at half and at the whole direction, mean of both signs."""
    found = measurement("fedism_figure7")["losses"]
    middle = len(STEPS) // 2
    rows = []
    for method, groups in found.items():
        row = [method]
        for folds in groups.values():
            losses = np.array(folds)
            at_model = losses[:, middle]
            row.append(words(over_folds(list(at_model), np.mean)))
            for distance in (middle // 2, middle):
                both_ways = (losses[:, middle - distance] + losses[:, middle + distance]) / 2
                rise = both_ways - at_model
                row.append(words(over_folds(list(rise), np.mean), signed=True))
        rows.append(row)
    head = ["method"]
    for group in found[METHODS[0]]:
        head += [f"{group}, loss", f"{group}, rise at 0.5", f"{group}, rise at 1"]
    return markdown(head, rows)


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
    overrides = {"channels": study.overrides_of(cell)["channels"]}
    files = study.arguments_of(cell)["config"]
    parser = train_config(ROOT / "bundles" / study.bundle, overrides, files)
    network: nn.Module = parser.get_parsed_content("network_def")
    network.load_state_dict(read_state_dict(study.model(cell, runs)))
    return network


def _panel(study: Study, cell: Cell, data: Path, runs: Path) -> Panel:
    """The study's clients, which measure without any federation."""
    arguments = study.arguments_of(cell)
    overrides = study.overrides_of(cell)
    overrides["pool"] = [str(data / "fundus" / "DrishtiGS1")]
    root = study.sites_root(data, runs).absolute()
    private = (runs / "landscape" / cell.name).absolute()

    def client(name: str) -> Any:
        return bundle_client(
            ROOT / "bundles" / study.bundle,
            name,
            private / name,
            dataset_dir=root / name,
            groups=arguments["groups"],
            config=arguments["config"],
            overrides=overrides,
        )

    names = overrides["clients"]
    return Panel(InProcess({name: partial(client, name) for name in names}), names)
