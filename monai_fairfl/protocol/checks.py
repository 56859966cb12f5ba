# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a reply, before it reaches a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate, Measurement, Weights

LEAST_COUNTS = {"num_samples": 1, "num_cases": 0, "num_steps": 0}
"""The counts of a reply that trained, and the least value of each."""


def refusal(request: Request, reply: Reply, spec: ModelSpec) -> str | None:
    """Why ``reply`` must not reach a strategy; ``None`` where it may.

    Only the form is checked here. Values of an update are checked by the guards, measurements by
    :class:`~monai_fairfl.protocol.replies.Replies`.

    >>> refusal(Request("A", "measure", {}, id=3), Reply("A", None, 1, id=2), ModelSpec(()))
    'answers request 2 of run  round -1, asked was request 3 of run  round -1'
    """
    if reply.error is not None:
        return f"error: {reply.error}"
    if (reply.id, reply.run, reply.round) != (request.id, request.run, request.round):
        return (
            f"answers request {reply.id} of run {reply.run} round {reply.round}, "
            f"asked was request {request.id} of run {request.run} round {request.round}"
        )
    if request.task == "measure":
        if reply.update is not None:
            return "measured, and sent an update that was not asked for"
        return None
    for name, least in LEAST_COUNTS.items():
        count = getattr(reply, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            return f"{name} must be a whole number of at least {least}, got {count!r}"
    if reply.update is None:
        return "trained but sent no update"
    if reply.labelled:
        classes = spec.classes(request.weights)
        if len(reply.labelled) != classes:
            return (
                f"labelled must name {classes} classes of the output layer, got "
                f"{list(reply.labelled)}"
            )
    difference = _difference("update", reply.update, request.weights, spec.parameters)
    if difference is not None:
        return difference
    buffers = reply.buffers or {}
    sent = [name for name in spec.buffers if name in buffers]
    return _difference("buffers", buffers, request.weights, sent)


def _difference(
    what: str, tensors: Weights, reference: Weights, names: Sequence[str]
) -> str | None:
    """How ``tensors`` differ in names, shapes or types from the model's; ``None`` where they fit.

    Args:
        what: the tensors are, for the text.
        tensors: of a reply.
        reference: the model that was sent; tensors that it lacks are not compared.
        names: that ``tensors`` must have, and no others.
    """
    missing = sorted(set(names) - set(tensors))
    extra = sorted(set(tensors) - set(names))
    if missing or extra:
        return (
            f"{what} has other tensors than the model: missing {missing[:3]}, unexpected "
            f"{extra[:3]}"
        )
    for name in names:
        tensor = tensors[name]
        # Looked up once: it may be read from disk.
        expected = reference.get(name)
        if expected is None:
            continue
        if tensor.shape != expected.shape:
            return (
                f"{what} {name!r} has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
            )
        if tensor.is_floating_point() != expected.is_floating_point():
            return f"{what} {name!r} has type {tensor.dtype}, expected {expected.dtype}"
    return None


def usable_measurements(reply: Reply) -> tuple[dict[str, Measurement], list[str]]:
    """The finite measurements of a reply, and the names of the others, which never enter a mean.

    A measurement is a plain number, an :class:`Estimate` of one, or a mapping of these that holds
    ``"mean"``; what is anything else counts as not finite.

    >>> usable_measurements(Reply("A", None, 1, {"score": float("nan"), "train_loss": 0.3}))
    ({'train_loss': 0.3}, ['score'])
    """
    usable = {name: value for name, value in reply.measurements.items() if _is_finite(value)}
    return usable, sorted(set(reply.measurements) - set(usable))


def _is_finite(value: object) -> bool:
    """Whether a measurement is finite, and so is everything in it."""
    if isinstance(value, Mapping):
        return "mean" in value and all(_is_estimate(item) for item in value.values())
    return _is_estimate(value)


def _is_estimate(value: object) -> bool:
    if not isinstance(value, Estimate):
        return _is_number(value)
    has_stderr = value.stderr is None or _is_number(value.stderr)
    return _is_number(value.value) and has_stderr and isinstance(value.n, int)


def _is_number(value: object) -> bool:
    """Whether ``value`` is a finite number, and no truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False
