# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Asks clients of the prostate bundle to train and measure, as a federation would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from helpers.checkout import CHECKOUT, DEVICE, TINY
from ignite.engine import Events
from monai.fl.client import MonaiAlgo
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl import FairMonaiAlgo, Reply, Request
from monai_fairfl.bundle import initial_model
from monai_fairfl.model_files import state_of_file

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


def tiny_client(
    hospitals: Path,
    folder: Path,
    site: str = "alder",
    state: str = "state",
    bundle: str | Path = PROSTATE,
    kind: type[MonaiAlgo] = FairMonaiAlgo,
    arguments: Mapping[str, Any] = {},
    **overrides: Any,
) -> Any:
    """A client of the prostate bundle; its state is in ``folder/SITE/STATE``.

    Args:
        hospitals: the folder of all sites' images.
        folder: of the site's files.
        site: its name.
        state: its private folder's name; another one makes a client without a past.
        bundle: the bundle's folder.
        kind: ours, or MONAI's own.
        arguments: of the client.
        **overrides: of the configuration.
    """
    settings = {
        "dataset_dir": str(hospitals / site),
        "datalist_file": str(folder / f"{site}.json"),
        "ckpt_dir": str(folder / site / "models"),
        "output_dir": str(folder / site / "eval"),
        "device": f"$torch.device('{DEVICE}')",
        "decay_epochs": 4,
        **TINY,
        **overrides,
    }
    given = {"train_kwargs": settings, "eval_kwargs": dict(settings), **arguments}
    if kind is FairMonaiAlgo:
        given["state_dir"] = folder / site / state
    return kind(bundle_root=str(bundle), **given)


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


def monai_training(client: Any, weights: Any, seed: int = 3) -> ExchangeObject:
    """What MONAI's own calls send after a training whose random numbers follow from ``seed``."""
    torch.manual_seed(seed)
    client.trainer.data_loader.dataset.transform.set_random_state(seed)
    client.train(ExchangeObject(weights=dict(weights)))
    sent: ExchangeObject = client.get_weights()
    return sent


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


def own_model(folder: Path, state: str = "state") -> dict[str, torch.Tensor]:
    """The model that the client stored for itself when a run ended."""
    [file] = (folder / "alder" / state).glob("*own.pt")
    return dict(state_of_file(file))


def broken(function: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """``function``, whose call number ``at`` raises."""
    calls = count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error
        return function(*args, **kwargs)

    return call


def abort_at(client: Any, engine: Any, step: int = 1) -> None:
    """Let somebody call ``client.abort()`` after this step of ``engine``, once."""
    steps = count(1)

    def abort() -> None:
        if next(steps) == step:
            client.abort()

    engine.add_event_handler(Events.ITERATION_COMPLETED, abort)
