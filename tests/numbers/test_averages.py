# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The average of an exchange: parameters, buffers by every policy, layers, and bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import drive, vector
from helpers.given_strategy import Given

from monai_fairfl import ModelSpec, Replies, Reply, Request
from monai_fairfl.replies import sample_shares

NAMES = ("bn.count", "bn.mean", "bn.var", "bn.weight", "fc.weight")
SPEC = ModelSpec(
    ("bn.weight", "fc.weight"),
    buffers=("bn.count", "bn.mean", "bn.var"),
    layers={name: name.split(".")[0] for name in NAMES},
)
START = {
    "fc.weight": torch.zeros(2),
    "bn.weight": torch.ones(1),
    "bn.mean": torch.tensor([-1.0]),
    "bn.var": torch.tensor([1.0]),
    "bn.count": torch.tensor(0),
}
SENT = {"A": (1.0, 30, 2.0, 4.0, 7), "B": (-1.0, 10, 6.0, 1.0, 9)}
"""client -> change of each parameter, images, mean, variance, count."""


CASES: list[tuple[dict[str, Any], str, list[float]]] = [
    ({"A": 0.25, "B": 0.75}, "aggregation", [-0.5, 0.5, 5.0, 1.75, 9]),
    ({"A": 0.25, "B": 0.75}, "samples", [-0.5, 0.5, 3.0, 3.25, 9]),
    ({"A": 0.25, "B": 0.75}, "local", [-0.5, 0.5, -1.0, 1.0, 0]),
    ({"A": 2.0, "B": 1.0}, "local", [1.0, 2.0, -1.0, 1.0, 0]),
    ({"fc": {"A": 1.0}, "bn": {"B": 1.0}}, "aggregation", [1.0, 0.0, 6.0, 1.0, 9]),
    # A layer that was not scored is averaged uniformly.
    ({"fc": {"A": 1.0}}, "aggregation", [1.0, 1.0, 4.0, 2.5, 9]),
]
"""Weights, policy of buffers, and the new weights, mean, variance and count."""


@pytest.mark.parametrize(("weights", "policy", "expected"), CASES)
def test_weights_move_the_parameters_of_their_layer_and_buffers_follow_their_policy(
    weights: dict[str, Any], policy: str, expected: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: Request) -> Reply:
        change, images, mean, variance, count = SENT[request.client]
        update = {"fc.weight": torch.full((2,), change), "bn.weight": torch.full((1,), change)}
        buffers = {
            "bn.mean": torch.tensor([mean]),
            "bn.var": torch.tensor([variance]),
            "bn.count": torch.tensor(count),
        }
        return request.reply(update, images, buffers=buffers)

    strategy = Given(weights, {"A": 0.5, "B": 0.5})
    strategy.buffers = policy
    strategy.start(START, "AB", SPEC)
    found = drive(strategy, "AB", answer, SPEC)[0].weights
    assert found["bn.count"].dtype == torch.int64
    names = ("fc.weight", "bn.weight", "bn.mean", "bn.var", "bn.count")
    assert [float(found[name].flatten()[-1]) for name in names] == expected
    # Weights that are no shares are logged.
    assert ("sum to 3" in caplog.text) == (weights == {"A": 2.0, "B": 1.0})


def exchange_of(
    updates: Mapping[str, torch.Tensor], starts: Mapping[str, torch.Tensor] | torch.Tensor
) -> tuple[list[Reply], list[Request]]:
    """Replies of a model that is one tensor."""
    replies, requests = [], []
    for number, (client, update) in enumerate(updates.items()):
        start = starts if isinstance(starts, torch.Tensor) else starts[client]
        requests.append(Request(client, "train", {"w": start}, id=number))
        replies.append(Reply(client, {"w": update}, number + 1, id=number))
    return replies, requests


ONE = ModelSpec(("w",), layers={"w": "w"})


def test_clients_that_started_from_own_models_average_these_models() -> None:
    starts = {"A": vector([1.0]), "B": vector([3.0])}
    replies = Replies(*exchange_of(dict.fromkeys("AB", vector([0.5])), starts), ONE)
    assert replies.average(np.array([0.25, 0.75]))["w"].tolist() == [3.0]
    # Shares of images: the second client has two.
    assert sample_shares(replies) == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_average_is_one_product_added_to_the_start_and_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    start, *changes = torch.randn(6, 7, 1001, generator=generator).to(dtype)
    shares = [0.1, 0.2, 0.3, 0.15, 0.25]
    updates = dict(zip("ABCDE", changes, strict=True))
    found = Replies(*exchange_of(updates, start), ONE).average(np.array(shares))["w"]
    steps = [share * change.double() for share, change in zip(shares, changes, strict=True)]
    exact = start.double() + sum(steps)
    # Half precision is computed in float32 and rounded once.
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    slack = 8 * torch.finfo(computed).eps + 0.5 * torch.finfo(dtype).eps
    assert found.dtype == dtype
    assert float(((found.double() - exact).abs() / exact.abs().clamp(min=1)).max()) <= slack
