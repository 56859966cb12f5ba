# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as plain values, and back: all of a message but its tensors.

Each engine carries tensors in its own way, and the plain values beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.messages import (
    MOST_NAME,
    MOST_VALUES,
    Estimate,
    Measurement,
    Reply,
    Request,
    Weights,
    failed,
)
from monai_fairfl.utils.settings import is_whole

FORMAT = 1
"""Number of the format of messages."""

PRECISIONS = ("", "bfloat16", "float32")

REQUEST_FIELDS = (
    "task",
    "measure",
    "context",
    "id",
    "run",
    "run_id",
    "round",
    "seed",
    "ledger_head",
)
REPLY_FIELDS = (
    "num_samples",
    "num_cases",
    "num_steps",
    "labelled",
    "id",
    "run",
    "round",
    "error",
    "digest",
    "state_round",
    "precision",
)
MOST_CLASSES = 100_000
"""Classes of an output layer."""

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)
"""Exceptions that reading somebody else's message raises. PyTorch's own are a ``RuntimeError``."""


# --- requests


def plain_request(request: Request) -> dict[str, Any]:
    """Return all of a request but its weights, and whom it asks."""
    plain = {name: getattr(request, name) for name in REQUEST_FIELDS}
    plain["measure"] = list(request.measure)
    plain["context"] = dict(request.context)
    return {**plain, **_version()}


def request_from(plain: Mapping[str, Any], weights: Weights, site: str) -> Request:
    """Return the request that ``site`` received.

    Args:
        plain: what :func:`plain_request` returned at the server.
        weights: that came with it; they are the site's own from now on.
        site: that received it.

    Raises:
        ValueError: when a field is impossible, or the server has another format of messages.
        KeyError: when one is missing.
        TypeError: when the run's id is no text.
    """
    _require_format(plain, "the server")
    fields = {name: plain[name] for name in REQUEST_FIELDS}
    fields["measure"] = tuple(fields["measure"])
    fields["run_id"] = _text(plain["run_id"], "run_id")
    return Request(site, weights=weights, **fields)


# --- replies


def plain_reply(reply: Reply) -> dict[str, Any]:
    """Return all of a reply but its tensors, and who sends it."""
    plain = {name: getattr(reply, name) for name in REPLY_FIELDS}
    plain["labelled"] = list(reply.labelled)
    plain["measurements"] = {name: _plain(value) for name, value in reply.measurements.items()}
    return {**plain, **_version()}


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
        ValueError: when one is too large, or the site has another format of messages.
    """
    if plain["error"] is not None:
        # A client that failed to read the request knows no id of it.
        return failed(request, _text(plain["error"], "error"))
    _require_format(plain, "this site")

    fields = {name: plain[name] for name in REPLY_FIELDS}
    # The server looks the request up by these three.
    fields["id"] = _whole_number(plain["id"], "id")
    fields["run"] = _text(plain["run"], "run")
    fields["round"] = _whole_number(plain["round"], "round")
    _check_size("labelled", plain["labelled"], MOST_CLASSES)
    fields["labelled"] = tuple(map(bool, plain["labelled"]))
    fields["digest"] = _text(plain["digest"], "digest")
    if plain["state_round"] is not None:
        fields["state_round"] = _whole_number(plain["state_round"], "state_round")
    if plain["precision"] not in PRECISIONS:
        raise ValueError(f"precision is none of {', '.join(PRECISIONS[1:])}")
    _check_measurements(plain["measurements"])
    measurements = {}
    for name, value in plain["measurements"].items():
        measurements[name] = _measurement(value)
    return Reply(request.client, update, measurements=measurements, buffers=buffers, **fields)


def unreadable(request: Request, error: Exception) -> Reply:
    """Return the reply of a client whose answer could not be read."""
    return failed(request, f"its answer cannot be read ({type(error).__name__}: {error})")


# --- versions


def _version() -> dict[str, Any]:
    """Return what a message says of the package that wrote it."""
    return {"format": FORMAT, "package": __version__}


def _require_format(plain: Mapping[str, Any], sender: str) -> None:
    """Refuse a message whose fields may mean something else.

    Raises:
        ValueError: naming both versions.
    """
    written = plain.get("format")
    if written == FORMAT:
        return
    package = str(plain.get("package", "of another version"))[:20]
    raise ValueError(
        f"{sender} has monai_fairfl {package} (messages "
        f"of format {str(written)[:20]}), and the other end has {__version__} (format {FORMAT}): "
        "install one version everywhere"
    )


# --- measurements


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
    if name != _text(name, "a measurement's name"):
        raise ValueError(f"a measurement's name holds half of a character: {name!a}")


def _check_size(what: str, value: Any, most: int) -> None:
    if len(value) > most:
        raise ValueError(f"{what} has {len(value)} entries, at most {most} are read")


def _text(value: Any, what: str) -> str:
    """Return a text that came; the check of a reply shortens what it quotes of it.

    JSON can hold half of a character, which no file in UTF-8 can: the report could not be written.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}, not a text")
    return value.encode("utf-8", "replace").decode("utf-8")


def _whole_number(value: Any, what: str) -> int:
    """Return a whole number that came. A truth value is none."""
    if not is_whole(value):
        raise TypeError(f"{what} is a {type(value).__name__}, not a whole number")
    return value
