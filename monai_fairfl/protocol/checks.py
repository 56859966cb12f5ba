# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a reply, before it reaches a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate, Measurement, Weights


def refusal(request: Request, reply: Reply, spec: ModelSpec) -> str | None:
    """Why ``reply`` must not reach a strategy, or ``None``. Values are the guards' business; form
    is checked here.

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
        return (
            None if reply.update is None else "measured, and sent an update that was not asked for"
        )
    least = {"num_samples": 1, "num_cases": 0, "num_steps": 0}
    for name, minimum in least.items():
        count = getattr(reply, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < minimum:
            return f"{name} must be a whole number of at least {minimum}, got {count!r}"
    if reply.update is None:
        return "trained but sent no update"
    if reply.labelled and len(reply.labelled) != (classes := spec.classes(request.weights)):
        return (
            f"labelled must name {classes} classes of the output layer, got {list(reply.labelled)}"
        )
    return _differs("update", reply.update, request.weights, spec.parameters) or _differs(
        "buffers",
        reply.buffers or {},
        request.weights,
        [name for name in spec.buffers if name in (reply.buffers or {})],
    )


def _differs(what: str, sent: Weights, reference: Weights, names: Sequence[str]) -> str | None:
    missing, extra = sorted(set(names) - set(sent)), sorted(set(sent) - set(names))
    if missing or extra:
        return f"{what} has other tensors than the model: missing {missing[:3]}, unexpected {extra[:3]}"
    for name in names:
        tensor, expected = sent[name], reference.get(
            name
        )  # looked up once: it may be read from disk
        if expected is not None and tensor.shape != expected.shape:
            return (
                f"{what} {name!r} has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
            )
        if expected is not None and tensor.is_floating_point() != expected.is_floating_point():
            return f"{what} {name!r} has type {tensor.dtype}, expected {expected.dtype}"
    return None


def usable_measurements(reply: Reply) -> tuple[dict[str, Measurement], list[str]]:
    """The finite measurements of a reply, and the names of those that are not (dropped, never
    averaged).

    A measurement is a plain number, an :class:`Estimate` of one, or a mapping of these that holds
    ``"mean"``; what is anything else counts as not finite.

    >>> usable_measurements(Reply("A", None, 1, {"score": float("nan"), "train_loss": 0.3}))
    ({'train_loss': 0.3}, ['score'])
    """
    usable = {name: value for name, value in reply.measurements.items() if _is_finite(value)}
    return usable, sorted(set(reply.measurements) - set(usable))


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return "mean" in value and all(_is_estimate(item) for item in value.values())
    return _is_estimate(value)


def _is_estimate(value: object) -> bool:
    if not isinstance(value, Estimate):
        return _is_number(value)
    return (
        _is_number(value.value)
        and (value.stderr is None or _is_number(value.stderr))
        and isinstance(value.n, int)
    )


def _is_number(value: object) -> bool:
    try:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:  # an integer too large for a float
        return False
