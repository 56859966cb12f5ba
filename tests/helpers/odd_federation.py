# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation of a model with tensors of every odd shape, for any strategy, and odd clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers import tiny_networks
from helpers.tiny_networks import STATISTICS

from monai_fairfl import Federation, ModelSpec, Reply, Request, Strategy

SHAPES: dict[str, tuple[int, ...]] = {
    "body.weight": (6, 5),
    "body.scale": (),
    "body.nothing": (0, 3),
    "head.weight": (2, 6),
    "head.bias": (2,),
    "tail.one": (1,),
}
BUFFERS = tuple(sorted(f"body.{name}" for name in STATISTICS))
SPEC = ModelSpec(
    tuple(sorted(SHAPES)),
    buffers=BUFFERS,
    layers={name: name.partition(".")[0] for name in (*SHAPES, *BUFFERS)},
    output=("head", 0),
)


def start(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The initial model, whose parameters and statistics have this type."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in SHAPES.items():
        weights[name] = torch.randn(shape, generator=generator).to(dtype)
    weights["body.running_mean"] = torch.zeros(6, dtype=dtype)
    weights["body.running_var"] = torch.ones(6, dtype=dtype)
    weights["body.num_batches_tracked"] = torch.tensor(0)
    return weights


def federation(
    strategy: Strategy,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    faults: dict[str, Any] | None = None,
    **settings: Any,
) -> Federation:
    """A federation; ``faults``: client -> what arrives in place of its replies."""

    def fault(request: Request, reply: Reply) -> Any:
        change = (faults or {}).get(request.client)
        return reply if change is None else change(request, reply)

    first = lambda: (start(dtype), SPEC)  # noqa: E731
    return tiny_networks.federation(strategy, folder, fault, initial=first, **settings)
