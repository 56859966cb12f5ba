# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Asks clients of the prostate bundle to train and measure, as a federation would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from helpers.checkout import CHECKOUT, TINY

from monai_fairfl.bundle.federation import initial_model
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Reply, Request

NETWORK = {"size": TINY["size"], "channels": TINY["channels"]}


def tiny_model(**overrides: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights and specification of the bundle's network.

    Args:
        **overrides: of the bundle's configuration, such as ``out_channels=2, softmax=True``; give
            the client the same ones.
    """
    torch.manual_seed(0)
    bundle = CHECKOUT / "bundles" / "prostate_mri_segmentation"
    weights, spec = initial_model(bundle, {**NETWORK, **overrides})
    return dict(weights), spec


def train(
    client: FairMonaiAlgo,
    weights: Any,
    number: int = 0,
    measure: tuple[str, ...] = (),
    **context: float,
) -> Reply:
    return client.answer(
        Request("alder", "train", weights, measure, context, run="r", round=number, seed=number + 7)
    )


def measure(
    client: FairMonaiAlgo, weights: Any, *names: str, number: int = 9, **context: float
) -> Mapping[str, Any]:
    request = Request(
        "alder", "measure", weights, names, context, run="r", round=number, seed=number + 7
    )
    return client.answer(request).measurements


def after(weights: Any, reply: Reply) -> dict[str, torch.Tensor]:
    """The model that ``reply``'s client trained."""
    assert reply.update is not None
    return {
        **weights,
        **{k: weights[k] + v for k, v in reply.update.items()},
        **(reply.buffers or {}),
    }


def same(one: Any, two: Any) -> bool:
    return set(one) == set(two) and all(torch.equal(one[k], two[k]) for k in one)
