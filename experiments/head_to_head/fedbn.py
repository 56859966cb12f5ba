# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedBN by its published description (Li et al., ICLR 2021), without our engine.

Everything but the normalisation layers is averaged, the average is copied into every site's model,
and each site goes on with its own optimizer: so do the authors' code and FL-MedSegBench's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from head_to_head.task import PlainSite, Task, copied_state
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, torch.Tensor]


def names_of_norms(network: torch.nn.Module) -> set[str]:
    """List the tensors of a network's BatchNorm layers, under every name that they have."""
    names: set[str] = set()
    for layer, module in network.named_modules(remove_duplicate=False):
        if isinstance(module, _BatchNorm):
            names.update(f"{layer}.{tensor}" for tensor in module.state_dict())
    return names


def shared_average(
    states: Mapping[str, State], images: Mapping[str, int], local: set[str]
) -> State:
    """Average all tensors but the ``local`` ones, by the sites' images."""
    total = sum(images.values())
    average = {}
    for name, first in next(iter(states.values())).items():
        if name not in local:
            average[name] = torch.zeros_like(first, dtype=torch.float64)
            for site, state in states.items():
                average[name] += images[site] / total * state[name].double()
    return average


def fedbn(task: Task, folder: Path, first: State) -> tuple[dict[str, State], dict[str, State]]:
    """Train.

    Args:
        task: what is trained.
        folder: for the sites' data lists.
        first: the first model of all sites.

    Returns:
        The sites' models after the last round; and the models that FL-MedSegBench would test: each
        site's best on its own validation volumes, after a round of the second half.
    """
    sites = {name: PlainSite(task, name, folder / name) for name in task.sites}
    local = names_of_norms(next(iter(sites.values())).network)
    best_dice = dict.fromkeys(sites, -1.0)
    best: dict[str, State] = {}
    for site in sites.values():
        site.network.load_state_dict(first)
    for number in range(task.rounds):
        images = {name: site.train(number) for name, site in sites.items()}
        states = {name: copied_state(site.network) for name, site in sites.items()}
        average = shared_average(states, images, local)
        for name, site in sites.items():
            site.network.load_state_dict(average, strict=False)
            if number > task.rounds // 2 or number == task.rounds - 1:
                dice = site.dice(site.network)
                if dice > best_dice[name]:
                    best_dice[name] = dice
                    best[name] = copied_state(site.network)
    return {name: copied_state(site.network) for name, site in sites.items()}, best
