# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as NVFlare's ``FLModel``.

Tensors travel in ``params``, everything else as plain values in ``meta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from monai_fairfl.messages import Reply, Request, Weights
from monai_fairfl.transports.engines.wire import plain_reply, plain_request, reply_from

META = "fairfl"
"""Key of ``meta`` with all plain values of a message."""
BUFFERS = "fairfl_buffers"
"""Key of ``meta`` with the buffers of a reply, which no privacy filter changes."""


def register_tensors() -> None:
    """Let NVFlare carry torch tensors, as safetensors and never as a pickle.

    Both ends must call it, else the other one waits for ever. NVFlare's own types are registered
    first: it carries a type that it meets before in another way.
    """
    flare_decomposers.register()
    fobs.register(TensorDecomposer)


def tensors_of(params: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a received model.

    Arrays become tensors. NVFlare may have left a tensor on disk; it is then loaded.

    >>> tensors_of({"w": np.ones(2, np.float32)})["w"]
    tensor([1., 1.])
    >>> tensors_of({"w": object()})
    Traceback (most recent call last):
    ...
    TypeError: 'w' is a object, not a tensor: switch encryption off
    """
    found = {}
    for name, value in params.items():
        if hasattr(value, "materialize"):
            value = value.materialize()
        if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            kind = type(value).__name__
            raise TypeError(f"{name!r} is a {kind}, not a tensor: switch encryption off")
        found[name] = torch.as_tensor(value)
    return found


def request_model(request: Request, rounds: int) -> FLModel:
    """Return a request as it goes to a client.

    Args:
        request: with its id, run, round and seed.
        rounds: of the run, in all; NVFlare shows them.
    """
    return FLModel(
        ParamsType.FULL,
        dict(request.weights),
        current_round=request.round,
        total_rounds=rounds,
        meta={META: plain_request(request, rounds)},
    )


def read_request(model: FLModel) -> tuple[Mapping[str, Any], dict[str, torch.Tensor]]:
    """Return the plain values and the weights of a request.

    Raises:
        ValueError: when it is not a request of this package.
    """
    plain = (model.meta or {}).get(META)
    if not isinstance(plain, Mapping):
        raise ValueError(
            "this task is not of a FairFLController: the job's server runs another workflow"
        )
    return plain, tensors_of(model.params or {})


def reply_model(reply: Reply) -> FLModel:
    """Return a reply as it goes to the server.

    An update is a ``DIFF``, which is what NVFlare's privacy filters look for.
    """
    meta: dict[str, Any] = {META: plain_reply(reply)}
    number = max(reply.round, 0)
    if reply.update is None:
        return FLModel(metrics={}, current_round=number, meta=meta)
    meta[BUFFERS] = dict(reply.buffers or {})
    return FLModel(ParamsType.DIFF, dict(reply.update), current_round=number, meta=meta)


def reply_of(model: FLModel, request: Request) -> Reply:
    """Return the reply to ``request``; what cannot be read becomes one with an ``error``."""

    def read() -> tuple[Any, Weights | None, Weights | None]:
        update = None if model.params is None else tensors_of(model.params)
        buffers = tensors_of(model.meta[BUFFERS]) if BUFFERS in model.meta else None
        return model.meta[META], update, buffers

    return reply_from(request, read)
