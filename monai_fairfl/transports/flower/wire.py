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
from safetensors.torch import load

from monai_fairfl.messages import Reply, Request, Weights
from monai_fairfl.transports.engines.wire import plain_reply, plain_request, reply_from
from monai_fairfl.utils.files import tensors_as_bytes
from monai_fairfl.utils.plain_values import object_of_json

PLAIN = "fairfl"
"""Name of the record with all plain values of a message, under the key ``json``."""

TENSORS = "safetensors"
"""Name of the one array of a record with tensors: all of them together, in this format."""


def request_content(request: Request, rounds: int) -> RecordDict:
    """Return a request as it goes to a site, of a run of so many rounds."""
    return _content(plain_request(request, rounds), weights=request.weights)


def read_request(content: RecordDict) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the plain values and the weights of a request.

    Raises:
        ValueError: when it is no request of this package.
    """
    return plain_of(content), _tensors(content["weights"])


def reply_content(reply: Reply) -> RecordDict:
    """Return a reply as it goes to the server."""
    if reply.update is None:
        return _content(plain_reply(reply))
    return _content(plain_reply(reply), update=reply.update, buffers=reply.buffers or {})


def reply_of(content: RecordDict, request: Request) -> Reply:
    """Return the reply to ``request``; what cannot be read becomes one with an ``error``."""

    def read() -> tuple[dict[str, Any], Weights | None, Weights | None]:
        plain = plain_of(content)
        if "update" not in content:
            return plain, None, None
        return plain, _tensors(content["update"]), _tensors(content["buffers"])

    return reply_from(request, read)


def plain_of(content: RecordDict) -> dict[str, Any]:
    """Return the plain values of a message.

    Raises:
        ValueError: when they are no JSON object, or the message is not of this package.
    """
    record = content.get(PLAIN)
    if not isinstance(record, ConfigRecord):
        raise ValueError("the message is not of monai_fairfl: another app runs at the other end")
    return object_of_json(str(record["json"]))


def _content(plain: Mapping[str, Any], **tensors: Weights) -> RecordDict:
    """Return a message of plain values, and tensors with the same bits in the same type."""
    content = RecordDict({PLAIN: ConfigRecord({"json": json.dumps(plain)})})
    for name, weights in tensors.items():
        data = tensors_as_bytes(weights)
        content[name] = ArrayRecord({TENSORS: Array("uint8", (len(data),), TENSORS, data)})
    return content


def _tensors(record: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a record.

    Raises:
        TypeError: when the record holds something else.
        ValueError: when their bytes are damaged.
    """
    found = record[TENSORS].stype if isinstance(record, ArrayRecord) else type(record).__name__
    if found != TENSORS:
        raise TypeError(f"tensors are written as {found!r}, not as {TENSORS!r}")
    try:
        return load(record[TENSORS].data)
    except Exception as error:  # several kinds
        raise ValueError(f"what came are no tensors ({error})") from error
