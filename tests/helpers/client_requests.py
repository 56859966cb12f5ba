# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Asks clients of the prostate bundle to train and measure, as a federation would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from helpers.checkout import CHECKOUT, DEVICE, TINY

from monai_fairfl import FairMonaiAlgo, ModelSpec, Reply, Request
from monai_fairfl.bundle import initial_model

PROSTATE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
NETWORK = {"size": TINY["size"], "channels": TINY["channels"]}


def tiny_model(**overrides: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights and specification of the bundle's network.

    Args:
        **overrides: of the bundle's configuration, such as ``out_channels=2, softmax=True``; give
            the client the same ones.
    """
    torch.manual_seed(0)
    weights, spec = initial_model(PROSTATE, {**NETWORK, **overrides})
    return dict(weights), spec


def tiny_settings(images: Path, folder: Path) -> dict[str, Any]:
    """Overrides for a site with these images, whose files go below ``folder``."""
    return {
        "dataset_dir": str(images),
        "datalist_file": str(folder.parent / f"{folder.name}.json"),
        "ckpt_dir": str(folder / "models"),
        "output_dir": str(folder / "eval"),
        "device": f"$torch.device('{DEVICE}')",
        **TINY,
    }


def tiny_client(
    hospitals: Path,
    folder: Path,
    site: str = "alder",
    state: str = "state",
    bundle: str | Path = PROSTATE,
    **overrides: Any,
) -> FairMonaiAlgo:
    """A client of the prostate bundle; its state is in ``folder/SITE/STATE``."""
    settings = {**tiny_settings(hospitals / site, folder / site), **overrides}
    state_dir = folder / site / state
    return FairMonaiAlgo(str(bundle), state_dir, train_kwargs=settings, eval_kwargs=settings)


def train(
    client: FairMonaiAlgo,
    weights: Any,
    number: int = 0,
    measure: tuple[str, ...] = (),
    **context: float,
) -> Reply:
    """Ask the client to train in round ``number``."""
    return client.answer(
        Request("alder", "train", weights, measure, context, run="r", round=number, seed=number + 7)
    )


def measure(
    client: FairMonaiAlgo, weights: Any, *names: str, number: int = 9, **context: float
) -> Mapping[str, Any]:
    """Ask the client to measure in round ``number``; returns what it measured."""
    request = Request(
        "alder", "measure", weights, names, context, run="r", round=number, seed=number + 7
    )
    return client.answer(request).measurements


def after(weights: Any, reply: Reply) -> dict[str, torch.Tensor]:
    """The model that ``reply``'s client trained."""
    assert reply.update is not None
    trained = dict(weights)
    for name, change in reply.update.items():
        trained[name] = weights[name] + change
    return {**trained, **(reply.buffers or {})}


def same(one: Any, two: Any) -> bool:
    """Whether two models or updates have the same tensors, to the bit, on whichever device."""
    if set(one) != set(two):
        return False
    return all(torch.equal(one[name].cpu(), two[name].cpu()) for name in one)


def stored_state(folder: Path, number: int, name: str = "state") -> dict[str, Any]:
    """What the client of ``tiny_client(..., folder, state=name)`` stored after round ``number``."""
    file = folder / "alder" / name / f"r-round-{number:04d}.pt"
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def equal_states(one: Any, two: Any) -> bool:
    """Whether two nested states are equal, to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return set(one) == set(two) and all(equal_states(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(equal_states, one, two))
    return bool(one == two)


def counters_of(spec: ModelSpec) -> list[str]:
    """BatchNorm's counters of batches."""
    return [name for name in spec.buffers if name.endswith("num_batches_tracked")]
