# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as plain values, and back: all of a message but its tensors.

Each engine carries tensors in its own way, and the plain values beside them. What the values of a
reply may be is checked where every transport's replies are: :func:`monai_fairfl.messages.accepted`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.messages import Estimate, Measurement, Reply, Request, Weights, failed

FORMAT = 1
"""Number of the format of messages."""

REQUEST_FIELDS = {entry.name for entry in fields(Request)} - {"client", "weights"}
REPLY_FIELDS = {entry.name for entry in fields(Reply)} - {"client", "update", "buffers", "error"}
"""What a message says beside its tensors and who sends it."""

TYPES: Mapping[str, Any] = {
    "id": int,
    "run": str,
    "run_id": str,
    "round": int,
    "digest": str,
    "state_round": (int, type(None)),
}
"""Types of the fields that look something up, name a file, or go into a record as they are."""

PRECISIONS = ("", "bfloat16", "float32")


def plain_request(request: Request) -> dict[str, Any]:
    """Return all of a request but its weights, and whom it asks."""
    plain = {name: getattr(request, name) for name in REQUEST_FIELDS}
    plain["measure"] = list(request.measure)
    plain["context"] = dict(request.context)
    return {**plain, "format": FORMAT, "package": __version__}


def request_from(plain: Mapping[str, Any], weights: Weights, site: str) -> Request:
    """Return the request that ``site`` received.

    Args:
        plain: what :func:`plain_request` returned at the server.
        weights: that came with it; they are the site's own from now on.
        site: that received it.

    Raises:
        ValueError: when a field is impossible, or the server has another format of messages.
        KeyError: when one is missing.
        TypeError: when one has another type.
    """
    found = _fields(plain, REQUEST_FIELDS, "the server")
    found["measure"] = tuple(found["measure"])
    return Request(site, weights=weights, **found)


def plain_reply(reply: Reply) -> dict[str, Any]:
    """Return all of a reply but its tensors, and who sends it."""
    plain = {name: getattr(reply, name) for name in REPLY_FIELDS}
    plain["labelled"] = list(reply.labelled)
    plain["measurements"] = {name: _plain(value) for name, value in reply.measurements.items()}
    return {**plain, "error": reply.error, "format": FORMAT, "package": __version__}


def reply_from(
    plain: Mapping[str, Any], update: Weights | None, buffers: Weights | None, request: Request
) -> Reply:
    """Return the reply to ``request``.

    The client is the one that was asked, not one that a message names.

    Args:
        plain: what :func:`plain_reply` returned at the site.
        update: that came with it.
        buffers: that came with it.
        request: that it answers.

    Raises:
        KeyError: when a field is missing.
        TypeError: when one has another type.
        ValueError: when the site has another format of messages.
    """
    if plain["error"] is not None:
        # A client that failed to read the request knows no id of it.
        return failed(request, str(plain["error"]))
    found = _fields(plain, REPLY_FIELDS, "this site")
    if found["precision"] not in PRECISIONS:
        raise ValueError(f"precision is none of {', '.join(PRECISIONS[1:])}")
    found["labelled"] = tuple(map(bool, found["labelled"]))
    measurements = found["measurements"].items()
    found["measurements"] = {name: _measurement(value) for name, value in measurements}
    return Reply(request.client, update, buffers=buffers, **found)


def unreadable(request: Request, error: Exception) -> Reply:
    """Return the reply of a client whose answer could not be read."""
    return failed(request, f"its answer cannot be read ({type(error).__name__}: {error})")


def _fields(plain: Mapping[str, Any], names: Collection[str], sender: str) -> dict[str, Any]:
    """Return the fields of a message, if the other end writes them as this one does."""
    if plain.get("format") != FORMAT:
        package = str(plain.get("package", "of another version"))[:20]
        raise ValueError(
            f"{sender} has monai_fairfl {package} (messages of format "
            f"{str(plain.get('format'))[:20]}), and the other end has {__version__} (format "
            f"{FORMAT}): install one version everywhere"
        )
    found = {name: plain[name] for name in names}
    for name, value in found.items():
        if name in TYPES and not isinstance(value, TYPES[name]):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return found


def _plain(value: Measurement) -> Any:
    """Return an estimate as a list and a mapping of measurements as a mapping."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, Estimate):
        return [value.value, value.stderr, value.n]
    return value


def _measurement(value: Any) -> Any:
    """Invert :func:`_plain`; what is no measurement stays as it is, and will not be believed."""
    if isinstance(value, Mapping):
        return {name: _estimate(part) for name, part in value.items()}
    return _estimate(value)


def _estimate(value: Any) -> Any:
    is_estimate = isinstance(value, (list, tuple)) and len(value) == 3
    return Estimate(*value) if is_estimate else value
