# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as NVFlare's ``FLModel``: tensors in ``params``, everything else plain
values in ``meta``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from monai_fairfl.protocol.messages import Reply, Request, failed
from monai_fairfl.protocol.values import Estimate, Measurement

META, BUFFERS = "fairfl", "fairfl_buffers"
ASKED = ("task", "measure", "context", "id", "run", "round", "seed", "ledger_head")
TOLD = ("num_samples", "num_cases", "num_steps", "labelled", "id", "run", "round", "error")


def register_tensors() -> None:
    """Let NVFlare carry torch tensors; both ends must, else the other waits for ever. Never a
    pickle: safetensors.

    NVFlare's own types come first: a type that is met before it is registered would be carried in
    another way.
    """
    flare_decomposers.register()
    fobs.register(TensorDecomposer)


class Arriving(Mapping[str, torch.Tensor]):
    """Tensors of a received model: arrays become tensors, and what NVFlare left on disk is read
    when it is looked at.

    >>> Arriving({"w": np.ones(2, np.float32)})["w"]
    tensor([1., 1.])
    >>> Arriving({"w": object()})["w"]
    Traceback (most recent call last):
    ...
    TypeError: 'w' is a object, not a tensor
    """

    def __init__(self, params: Mapping[str, Any]):
        self._params = params

    def __getitem__(self, name: str) -> torch.Tensor:
        value = self._params[name]
        value = value.materialize() if hasattr(value, "materialize") else value
        if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            raise TypeError(f"{name!r} is a {type(value).__name__}, not a tensor")
        return torch.as_tensor(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def request_model(request: Request, rounds: int) -> FLModel:
    """A request on its way to a client."""
    asked = {name: getattr(request, name) for name in ASKED} | {"measure": list(request.measure)}
    asked["context"] = dict(request.context)
    params = dict(request.weights)
    return FLModel(
        ParamsType.FULL,
        params,
        current_round=request.round,
        total_rounds=rounds,
        meta={META: asked},
    )


def request_of(model: FLModel, site: str) -> Request:
    """What ``site`` was asked; its weights are its own from now on.

    Raises:
        ValueError: when it is not a request of this package.
    """
    asked = (model.meta or {}).get(META)
    if not isinstance(asked, Mapping):
        raise ValueError(
            "this task is not of a FairFLController: the job's server runs another workflow"
        )
    asked = {**asked, "measure": tuple(asked["measure"])}
    weights = dict(Arriving(model.params or {}))
    return Request(site, weights=weights, **{name: asked[name] for name in ASKED})


def reply_model(reply: Reply) -> FLModel:
    """A reply on its way to the server: an update as ``DIFF``, which is what NVFlare's privacy
    filters look for.
    """
    told = {name: getattr(reply, name) for name in TOLD} | {"labelled": list(reply.labelled)}
    told["measurements"] = {name: _plain(value) for name, value in reply.measurements.items()}
    meta: dict[str, Any] = {META: told}
    if reply.update is None:
        return FLModel(metrics={}, current_round=max(reply.round, 0), meta=meta)
    meta |= {
        BUFFERS: dict(reply.buffers or {}),
        FLMetaKey.NUM_STEPS_CURRENT_ROUND: max(reply.num_steps, 1),
    }
    return FLModel(
        ParamsType.DIFF, dict(reply.update), current_round=max(reply.round, 0), meta=meta
    )


def reply_of(model: FLModel, request: Request) -> Reply:
    """What came back from the client that was sent ``request``; what it calls itself is not looked
    at.

    Nothing of it is trusted: what cannot be read is a reply with an ``error``.
    """
    try:
        told, meta = model.meta[META], model.meta
        if (
            told["error"] is not None
        ):  # which request it answers it may not know, having failed to read it
            return failed(request, str(told["error"]))
        known = {name: told[name] for name in TOLD} | {
            "labelled": tuple(map(bool, told["labelled"]))
        }
        update = None if model.params is None else Arriving(model.params)
        buffers = dict(Arriving(meta[BUFFERS])) if BUFFERS in meta else None
        measurements = {
            str(name): _measurement(value) for name, value in told["measurements"].items()
        }
        return Reply(request.client, update, measurements=measurements, buffers=buffers, **known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return failed(request, f"its answer cannot be read ({type(error).__name__}: {error})")


def _plain(value: Measurement) -> Any:
    """An estimate as a list, a mapping as a mapping."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [value.value, value.stderr, value.n] if isinstance(value, Estimate) else value


def _measurement(value: Any) -> Measurement:
    if isinstance(value, Mapping):
        return {str(name): _measurement(item) for name, item in value.items()}  # type: ignore[misc]
    return Estimate(*value) if isinstance(value, (list, tuple)) else value
