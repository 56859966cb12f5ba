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

from monai_fairfl.transports.engines.wire import Packed

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


def model_of(packed: Packed) -> FLModel:
    """Return a request or reply as NVFlare carries it.

    An update is a ``DIFF``, which is what NVFlare's privacy filters look for.
    """
    plain, tensors = packed
    meta: dict[str, Any] = {META: plain}
    # NVFlare shows both numbers.
    about = {"current_round": max(plain["round"], 0), "total_rounds": plain.get("rounds")}
    if "model" not in tensors:
        return FLModel(metrics={}, meta=meta, **about)
    kind = ParamsType.FULL
    if "buffers" in tensors:
        kind, meta[BUFFERS] = ParamsType.DIFF, dict(tensors["buffers"])
    return FLModel(kind, dict(tensors["model"]), meta=meta, **about)


def packed_of(model: FLModel) -> Packed:
    """Return the request or reply that NVFlare has brought.

    Raises:
        KeyError: when it is not of this package.
        TypeError: when something in it is no tensor.
    """
    tensors = {}
    if model.params is not None:
        tensors["model"] = tensors_of(model.params)
    if BUFFERS in model.meta:
        tensors["buffers"] = tensors_of(model.meta[BUFFERS])
    return model.meta[META], tensors
