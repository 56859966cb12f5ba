# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation of a model with tensors of every odd shape, for any strategy, and one odd client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from monai_fairfl import Estimate, Federation, InProcess, ModelSpec, Reply, Request, Strategy

CLIENTS = ("ash", "beech", "elm", "oak")
IMAGES = {"ash": 40, "beech": 10, "elm": 20, "oak": 30}
SHAPES: dict[str, tuple[int, ...]] = {
    "body.weight": (6, 5),
    "body.scale": (),
    "body.nothing": (0, 3),
    "head.weight": (2, 6),
    "head.bias": (2,),
    "tail.one": (1,),
}
SPEC = ModelSpec(
    tuple(sorted(SHAPES)),
    buffers=("body.count", "body.running_mean", "body.running_var"),
    layers={
        name: name.partition(".")[0]
        for name in (*SHAPES, "body.count", "body.running_mean", "body.running_var")
    },
    output=("head", 0),
)
LAYERS = ("body", "head", "tail")

Fault = Callable[[Request, Reply], Reply]


def start(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The initial model, whose parameters and statistics have this type."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in SHAPES.items():
        weights[name] = torch.randn(shape, generator=generator).to(dtype)
    weights["body.running_mean"] = torch.zeros(6, dtype=dtype)
    weights["body.running_var"] = torch.ones(6, dtype=dtype)
    weights["body.count"] = torch.tensor(0)
    return weights


class OddClient:
    """A client with an update of its own, which measures whatever it is asked.

    Args:
        name: of the client.
        fault: changes its replies.
        dtype: in which it computes; ``None``: that of the model.
    """

    def __init__(self, name: str, fault: Fault | None = None, dtype: torch.dtype | None = None):
        self.name = name
        self.fault = fault
        self.dtype = dtype

    def answer(self, request: Request) -> Reply:
        reply = self._honest(request)
        return reply if self.fault is None else self.fault(request, reply)

    def _honest(self, request: Request) -> Reply:
        number = CLIENTS.index(self.name)
        measured = {}
        for name in request.measure:
            measured[name] = self._value(name, request.round)
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(self.name, None, 0, measured, **echo)

        common = torch.Generator().manual_seed(100 + request.round)
        own = torch.Generator().manual_seed(1000 * (number + 1) + request.round)
        update = {}
        for name, shape in SHAPES.items():
            change = torch.randn(shape, generator=common) + torch.randn(shape, generator=own)
            update[name] = (0.1 * change).to(self.dtype or request.weights[name].dtype)
        buffers = {}
        for name in ("body.running_mean", "body.running_var"):
            tensor = request.weights[name]
            buffers[name] = (0.9 * tensor + 0.1 * number).to(self.dtype or tensor.dtype)
        buffers["body.count"] = torch.tensor(request.round + number)
        return Reply(
            self.name, update, IMAGES[self.name], measured, buffers, 3, 2, id=request.id,
            run=request.run, round=request.round,
        )  # fmt: skip

    def _value(self, name: str, round: int) -> Any:
        value = 0.5 + 0.05 * CLIENTS.index(self.name) - 0.01 * round
        if name in ("cka", "feature_cosine"):
            return {"mean": value, **dict.fromkeys(LAYERS, value)}
        if name.endswith("score"):
            return {"mean": Estimate(value, 0.1, 5), "gland": Estimate(value, 0.1, 5)}
        return value


def federation(
    strategy: Strategy,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    faults: dict[str, Fault] | None = None,
    client_dtypes: dict[str, torch.dtype] | None = None,
    **settings: Any,
) -> Federation:
    """A federation of three rounds."""
    makers = {}
    for name in CLIENTS:
        fault = (faults or {}).get(name)
        makers[name] = partial(OddClient, name, fault, (client_dtypes or {}).get(name))
    settings = {"rounds": 3, **settings}
    return Federation(
        strategy,
        InProcess(makers),
        initial=lambda: (start(dtype), SPEC),
        run_dir=folder,
        **settings,
    )
