# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as NVFlare's ``FLModel``.

Tensors travel in ``params``, everything else as plain values in ``meta``.
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

from monai_fairfl.protocol.measured import MOST_NAME, MOST_VALUES
from monai_fairfl.protocol.messages import Reply, Request, failed
from monai_fairfl.protocol.values import Estimate, Measurement

META = "fairfl"
"""Key of ``meta`` with all plain values of a message."""
BUFFERS = "fairfl_buffers"
"""Key of ``meta`` with the buffers of a reply, which no privacy filter changes."""

REQUEST_FIELDS = ("task", "measure", "context", "id", "run", "round", "seed", "ledger_head")
REPLY_FIELDS = (
    "num_samples",
    "num_cases",
    "num_steps",
    "labelled",
    "id",
    "run",
    "round",
    "error",
)
MOST_CLASSES = 100_000
"""Classes of an output layer."""


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
    TypeError: 'w' is a object, not a tensor
    """

    def __init__(self, params: Mapping[str, Any]):
        self._params = params

    def __getitem__(self, name: str) -> torch.Tensor:
        value = self._params[name]
        if waits_on_disk(value):
            value = value.materialize()
        if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            raise TypeError(f"{name!r} is a {type(value).__name__}, not a tensor")
        return torch.as_tensor(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def waits_on_disk(value: Any) -> bool:
    """Return whether NVFlare left this tensor of a received model on disk."""
    return hasattr(value, "materialize")


def request_model(request: Request, rounds: int) -> FLModel:
    """Return a request as it goes to a client.

    Args:
        request: with its id, run, round and seed.
        rounds: of the run, in all; NVFlare shows them.
    """
    plain = {name: getattr(request, name) for name in REQUEST_FIELDS}
    plain["measure"] = list(request.measure)
    plain["context"] = dict(request.context)
    return FLModel(
        ParamsType.FULL,
        dict(request.weights),
        current_round=request.round,
        total_rounds=rounds,
        meta={META: plain},
    )


def request_of(model: FLModel, site: str) -> Request:
    """Return the request that ``site`` received, with weights that are its own from now on.

    Raises:
        ValueError: when it is not a request of this package.
    """
    plain = (model.meta or {}).get(META)
    if not isinstance(plain, Mapping):
        raise ValueError(
            "this task is not of a FairFLController: the job's server runs another workflow"
        )
    fields = {name: plain[name] for name in REQUEST_FIELDS}
    fields["measure"] = tuple(fields["measure"])
    weights = dict(Arriving(model.params or {}))
    return Request(site, weights=weights, **fields)


def reply_model(reply: Reply) -> FLModel:
    """Return a reply as it goes to the server.

    An update is a ``DIFF``, which is what NVFlare's privacy filters look for.
    """
    plain = {name: getattr(reply, name) for name in REPLY_FIELDS}
    plain["labelled"] = list(reply.labelled)
    plain["digest"] = reply.digest
    plain["measurements"] = {name: _plain(value) for name, value in reply.measurements.items()}
    meta: dict[str, Any] = {META: plain}
    number = max(reply.round, 0)
    if reply.update is None:
        return FLModel(metrics={}, current_round=number, meta=meta)
    meta[BUFFERS] = dict(reply.buffers or {})
    meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] = max(reply.num_steps, 1)
    return FLModel(ParamsType.DIFF, dict(reply.update), current_round=number, meta=meta)


def reply_of(model: FLModel, request: Request) -> Reply:
    """Return the reply to ``request``; whatever cannot be read becomes a reply with an ``error``.

    The client is the one that was asked, not the one that the message names.
    """
    try:
        return _read_reply(model, request)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return unreadable(request, error)


def unreadable(request: Request, error: Exception) -> Reply:
    """Return the reply of a client whose answer could not be read."""
    return failed(request, f"its answer cannot be read ({type(error).__name__}: {error})")


def _read_reply(model: FLModel, request: Request) -> Reply:
    meta = model.meta
    plain = meta[META]
    if plain["error"] is not None:
        # A client that failed to read the request knows no id of it.
        return failed(request, _text(plain["error"], "error"))

    fields = {name: plain[name] for name in REPLY_FIELDS}
    fields["run"] = _text(plain["run"], "run")
    _check_size("labelled", plain["labelled"], MOST_CLASSES)
    fields["labelled"] = tuple(map(bool, plain["labelled"]))
    # A site with an earlier version of this package states none.
    fields["digest"] = str(plain.get("digest", ""))
    update = None
    if model.params is not None:
        update = Arriving(model.params)
    buffers = None
    if BUFFERS in meta:
        buffers = dict(Arriving(meta[BUFFERS]))
    _check_measurements(plain["measurements"])
    measurements = {}
    for name, value in plain["measurements"].items():
        measurements[name] = _measurement(value)
    return Reply(request.client, update, measurements=measurements, buffers=buffers, **fields)


def _plain(value: Measurement) -> Any:
    """Return an estimate as a list and a mapping of measurements as a mapping."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Estimate):
        return [value.value, value.stderr, value.n]
    return value


def _measurement(value: Any) -> Measurement:
    """Invert :func:`_plain`."""
    if isinstance(value, Mapping):
        return {name: _measurement(item) for name, item in value.items()}  # type: ignore[misc]
    if isinstance(value, (list, tuple)):
        return Estimate(*value)
    return value


def _check_measurements(found: Any) -> None:
    """Refuse measurements that are too many or too deep, before anything is made of them.

    A measurement is a number, a list of an estimate's three, or a mapping of these.

    Raises:
        ValueError: naming what is too large; for this client only.
    """
    if not isinstance(found, Mapping):
        raise TypeError(f"measurements are a {type(found).__name__}, not a mapping")
    values = 0
    for name, value in found.items():
        _check_name(name)
        parts = value if isinstance(value, Mapping) else {"mean": value}
        values += max(len(parts), 1)
        if values > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} measurements")
        for part, number in parts.items():
            _check_name(part)
            if isinstance(number, Mapping):
                raise ValueError(f"measurement {name!r} is nested deeper than one level")
            if isinstance(number, (list, tuple)):
                _check_size(f"measurement {name!r}", number, 3)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or len(name) > MOST_NAME:
        raise ValueError(f"a measurement's name is no text of at most {MOST_NAME} characters")


def _check_size(what: str, value: Any, most: int) -> None:
    if len(value) > most:
        raise ValueError(f"{what} has {len(value)} entries, at most {most} are read")


def _text(value: Any, what: str) -> str:
    """Return a text that a client sent; the check of the reply shortens what it quotes of it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}, not a text")
    return value
