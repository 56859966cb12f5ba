# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Models of coalitions by one matrix product, beside sums in float64 and one model at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import FedAvg
from monai_fairfl.strategies.coalitions import all_coalitions, coalition_model, coalition_models

SHAPES = {"body.weight": (300, 400), "head.weight": (3, 7), "head.bias": (3,)}
SPEC = ModelSpec(
    tuple(SHAPES),
    buffers=("body.count", "body.mean"),
    layers={
        "body.weight": "body",
        "head.weight": "head",
        "head.bias": "head",
        "body.count": "body",
        "body.mean": "body",
    },
    output=("head", 0),
)
IMAGES = {"A": 10, "B": 70, "C": 20, "D": 33}
ROUNDING = 2.0**-24
"""Of a float32 number, relative."""


def trained(**changed: Any) -> tuple[FedAvg, Replies]:
    """A strategy, and the replies of four clients; ``changed`` are fields of client C's."""
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    start |= {"body.count": torch.tensor(3), "body.mean": torch.zeros(5)}
    strategy = FedAvg()
    strategy.start(start, list(IMAGES), SPEC)
    requests, replies = [], []
    for number, (client, images) in enumerate(IMAGES.items()):
        update = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        buffers = {"body.count": torch.tensor(number), "body.mean": torch.full((5,), number + 0.5)}
        fields = {"update": update, "buffers": buffers, **(changed if client == "C" else {})}
        requests.append(Request(client, "train", start, id=number))
        replies.append(Reply(client, num_samples=images, id=number, **fields))
    return strategy, Replies(replies, requests, SPEC)


def test_they_are_as_accurate_as_one_model_at_a_time() -> None:
    strategy, local = trained()
    coalitions = all_coalitions(IMAGES)
    errors = []
    models = coalition_models(strategy, local, coalitions)
    for coalition, model in zip(coalitions, models, strict=True):
        alone = coalition_model(strategy, local, coalition)
        assert set(model) == set(alone) == {*SHAPES, "body.count", "body.mean"}
        for name in ("body.count", "body.mean"):
            assert torch.equal(model[name], alone[name])
        total = sum(IMAGES[client] for client in coalition)
        for name in SHAPES:
            oracle = strategy.weights[name].double()
            for reply in local:
                if reply.client in coalition:
                    assert reply.update is not None
                    oracle = oracle + reply.update[name].double() * reply.num_samples / total
            size = oracle.abs().clamp(min=1)
            error, error_alone = (
                float(((tensor - oracle).abs() / size).max()) / ROUNDING
                for tensor in (model[name], alone[name])
            )
            errors.append((error, error_alone))
    largest, largest_alone = np.max(errors, axis=0)
    # In units of float32's rounding: each sum has at most four products and five terms.
    assert largest < 5 and largest <= largest_alone * 1.25


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_spoils_the_models_of_its_coalitions_only(
    value: float,
) -> None:
    update = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    update["head.bias"][1] = value
    strategy, local = trained(update=update)
    coalitions = all_coalitions(IMAGES)
    models = coalition_models(strategy, local, coalitions)
    for coalition, model in zip(coalitions, models, strict=True):
        assert bool(torch.isfinite(model["head.bias"]).all()) == ("C" not in coalition)


def test_classes_that_some_do_not_label_are_averaged_over_those_who_do() -> None:
    strategy, local = trained(labelled=(True, False, True))
    coalitions = all_coalitions(IMAGES)
    models = coalition_models(strategy, local, coalitions)
    for coalition, model in zip(coalitions, models, strict=True):
        alone = coalition_model(strategy, local, coalition)
        for name in model:
            assert torch.equal(model[name], alone[name])
