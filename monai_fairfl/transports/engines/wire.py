# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as plain values and tensors, and back.

Each engine carries both in its own way. What the values of a reply may be is checked where every
transport's replies are: :meth:`monai_fairfl.messages.Expected.accepted`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.messages import Reply, Request, Weights, measurement_of_json, to_json

FORMAT = 1
STAMP: Mapping[str, Any] = {"format": FORMAT, "package": __version__}
"""Number of the format of messages, and what both ends must agree on."""

REQUEST_FIELDS = {entry.name for entry in fields(Request)} - {"client", "weights"}
REPLY_FIELDS = {entry.name for entry in fields(Reply)} - {"client", "update", "buffers", "error"}
"""What a message says beside its tensors and who sends it."""

PRECISIONS = ("", "bfloat16", "float32")

Packed = tuple[Mapping[str, Any], Mapping[str, Weights]]
"""Plain values, and tensors: ``"model"``, which is what a client receives or its update of that,
and the ``"buffers"`` of an update.
"""


def packed_request(request: Request, rounds: int) -> Packed:
    """Return a request as an engine carries it.

    Args:
        request: with its id, run, round and seed.
        rounds: of the run, in all.
    """
    plain = {**STAMP, **{name: getattr(request, name) for name in REQUEST_FIELDS}}
    plain |= {"measure": list(request.measure), "context": dict(request.context)}
    plain |= {"site": request.client, "rounds": rounds}
    return plain, {"model": request.weights}


def request_from(packed: Packed, site: str) -> tuple[Request, int]:
    """Return the request that ``site`` received, and the number of rounds of its run.

    Args:
        packed: what :func:`packed_request` returned at the server; its tensors are the site's own
            from now on.
        site: that received it.

    Raises:
        ValueError: when a field is impossible, the request is to another site, or the server has
            another format of messages.
        KeyError: when one is missing.
    """
    plain, tensors = packed
    found = _fields(plain, REQUEST_FIELDS, "the server")
    if plain["site"] != site:
        raise ValueError(
            f"the server knows this site as {plain['site']!r}, and its own configuration says "
            f"{site!r}: the consortium's lead and the site must agree on the name"
        )
    found["measure"] = tuple(found["measure"])
    return Request(site, weights=tensors.get("model", {}), **found), int(plain["rounds"])


def packed_reply(reply: Reply) -> Packed:
    """Return a reply as an engine carries it. It does not say who sends it."""
    plain = {**STAMP, **{name: getattr(reply, name) for name in (*REPLY_FIELDS, "error")}}
    plain |= {"labelled": list(reply.labelled), "measurements": to_json(reply.measurements)}
    if reply.update is None:
        return plain, {}
    return plain, {"model": reply.update, "buffers": reply.buffers or {}}


def reply_from(request: Request, read: Callable[[], Packed]) -> Reply:
    """Return the reply to ``request``; whatever cannot be read becomes a reply with an ``error``.

    The client is the one that was asked, not one that a message names.

    Args:
        request: that was sent.
        read: returns what :func:`packed_reply` returned at the site.
    """
    try:
        plain, tensors = read()
        if plain["error"] is not None:
            # A client that failed to read the request knows no id of it.
            return request.reply(error=str(plain["error"]))
        found = _fields(plain, REPLY_FIELDS, "this site")
        if found["precision"] not in PRECISIONS:
            raise ValueError(f"precision is none of {', '.join(PRECISIONS[1:])}")
        found["labelled"] = tuple(map(bool, found["labelled"]))
        found["measurements"] = measurement_of_json(found["measurements"])
        buffers = tensors.get("buffers")
        return Reply(request.client, tensors.get("model"), buffers=buffers, **found)
    except Exception as error:  # whatever reading somebody's message raises
        return unreadable(request, error)


def unreadable(request: Request, error: Exception) -> Reply:
    """Return the reply of a client whose answer could not be read."""
    return request.reply(error=f"its answer cannot be read ({type(error).__name__}: {error})")


def _fields(plain: Mapping[str, Any], names: Collection[str], sender: str) -> dict[str, Any]:
    """Return the fields of a message, if the other end writes them as this one does."""
    if plain.get("format") != FORMAT:
        package = str(plain.get("package", "of another version"))[:20]
        raise ValueError(
            f"{sender} has monai_fairfl {package} (messages of format "
            f"{str(plain.get('format'))[:20]}), and the other end has {__version__} (format "
            f"{FORMAT}): install one version everywhere"
        )
    return {name: plain[name] for name in names}
