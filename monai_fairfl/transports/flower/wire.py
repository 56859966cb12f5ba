# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as the content of Flower's messages.

Plain values travel as JSON in a ``ConfigRecord``, tensors in ``ArrayRecord``s as safetensors.
Flower's own arrays are NumPy's, which has no bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load

from monai_fairfl.messages import Reply, Request, Weights
from monai_fairfl.transports.engines.wire import (
    plain_reply,
    plain_request,
    reply_from,
    request_from,
    unreadable,
)
from monai_fairfl.utils.files import tensors_as_bytes
from monai_fairfl.utils.plain_values import object_of_json

PLAIN = "fairfl"
"""Name of the record with all plain values of a message."""
TEXT = "json"
"""Its one key."""
WEIGHTS = "weights"
UPDATE = "update"
BUFFERS = "buffers"
"""Names of the records with tensors."""

TENSORS = "tensors"
"""Name of the one array of such a record: all tensors together."""
STYPE = "safetensors"
"""How its bytes are written."""


# --- requests


def request_content(request: Request, rounds: int) -> RecordDict:
    """Return a request as it goes to a site.

    Args:
        request: with its id, run, round and seed.
        rounds: of the run, in all.
    """
    plain = {**plain_request(request), "rounds": rounds, "site": request.client}
    content = _record(plain)
    content[WEIGHTS] = _arrays(request.weights)
    return content


def request_of(content: RecordDict, site: str) -> tuple[Request, int]:
    """Return the request that ``site`` received, and the number of rounds of its run.

    Raises:
        ValueError: when it is no request of this package, or is to another site.
    """
    plain = plain_of(content)
    if plain["site"] != site:
        raise ValueError(
            f"the server knows this site's key as {plain['site']!r}, and its own node-config says "
            f"{site!r}: the consortium's lead and the site must agree on the name"
        )
    weights = _tensors(content[WEIGHTS])
    return request_from(plain, weights, site), int(plain["rounds"])


# --- replies


def reply_content(reply: Reply) -> RecordDict:
    """Return a reply as it goes to the server."""
    content = _record(plain_reply(reply))
    if reply.update is not None:
        content[UPDATE] = _arrays(reply.update)
        content[BUFFERS] = _arrays(reply.buffers or {})
    return content


def reply_of(content: RecordDict, request: Request) -> Reply:
    """Return the reply to ``request``; whatever cannot be read becomes a reply with an ``error``.

    The client is the one that was asked, not one that the message names.
    """
    try:
        update, buffers = None, None
        if UPDATE in content:
            update, buffers = _tensors(content[UPDATE]), _tensors(content[BUFFERS])
        return reply_from(plain_of(content), update, buffers, request)
    except Exception as error:  # it must not end the run of the others
        return unreadable(request, error)


# --- plain values and tensors


def plain_of(content: RecordDict) -> dict[str, Any]:
    """Return the plain values of a message.

    Raises:
        ValueError: when they are no JSON object, or the message is not of this package.
    """
    record = content.get(PLAIN)
    if not isinstance(record, ConfigRecord):
        raise ValueError("the message is not of monai_fairfl: another app runs at the other end")
    return object_of_json(str(record[TEXT]))


def _record(plain: Mapping[str, Any]) -> RecordDict:
    """Return a message of plain values alone."""
    return RecordDict({PLAIN: ConfigRecord({TEXT: json.dumps(plain)})})


def _arrays(weights: Weights) -> ArrayRecord:
    """Return tensors as Flower carries them: the same bits in the same type."""
    data = tensors_as_bytes(weights)
    return ArrayRecord({TENSORS: Array("uint8", (len(data),), STYPE, data)})


def _tensors(record: Any) -> dict[str, torch.Tensor]:
    """Invert :func:`_arrays`.

    Raises:
        TypeError: when the record holds something else than these tensors.
        ValueError: when their bytes are damaged.
    """
    if not isinstance(record, ArrayRecord):
        raise TypeError(f"tensors are a {type(record).__name__}, not an ArrayRecord")
    array = record[TENSORS]
    if array.stype != STYPE:
        raise TypeError(f"tensors are written as {array.stype!r}, not as {STYPE!r}")
    try:
        return load(array.data)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"what came are no tensors ({error})") from error
