# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as NVFlare's ``FLModel``.

Tensors travel in ``params``, everything else as plain values in ``meta``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from monai_fairfl.messages import Reply, Request
from monai_fairfl.transports.engines.wire import plain_reply, plain_request, reply_from

logger = logging.getLogger(__name__)

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


class Arriving(Mapping[str, torch.Tensor]):
    """Tensors of a received model, each read when it is looked at.

    Arrays become tensors. NVFlare may have left a tensor on disk; it is then loaded.

    >>> Arriving({"w": np.ones(2, np.float32)})["w"]
    tensor([1., 1.])
    >>> Arriving({"w": object()})["w"]
    Traceback (most recent call last):
    ...
    TypeError: 'w' is a object, not a tensor: switch encryption off
    """

    def __init__(self, params: Mapping[str, Any]):
        self.params = params

    def __getitem__(self, name: str) -> torch.Tensor:
        value = self.params[name]
        if hasattr(value, "materialize"):
            value = value.materialize()
        if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            kind = type(value).__name__
            raise TypeError(f"{name!r} is a {kind}, not a tensor: switch encryption off")
        return torch.as_tensor(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)


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
    return plain, dict(Arriving(model.params or {}))


def reply_model(reply: Reply) -> FLModel:
    """Return a reply as it goes to the server.

    An update is a ``DIFF``, which is what NVFlare's privacy filters look for.
    """
    meta: dict[str, Any] = {META: plain_reply(reply)}
    number = max(reply.round, 0)
    if reply.update is None:
        return FLModel(metrics={}, current_round=number, meta=meta)
    meta[BUFFERS] = dict(reply.buffers or {})
    meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] = reply.num_steps
    return FLModel(ParamsType.DIFF, dict(reply.update), current_round=number, meta=meta)


def reply_of(model: FLModel, request: Request) -> Reply:
    """Return the reply to ``request``; what cannot be read becomes one with an ``error``."""

    def read() -> tuple[Any, Arriving | None, dict[str, torch.Tensor] | None]:
        meta = model.meta
        update = None if model.params is None else Arriving(model.params)
        if any(hasattr(value, "materialize") for value in (model.params or {}).values()):
            logger.info("the update of %s waits on disk", request.client)
        buffers = dict(Arriving(meta[BUFFERS])) if BUFFERS in meta else None
        return meta[META], update, buffers

    return reply_from(request, read)
