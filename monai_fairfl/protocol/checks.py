# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a reply, before it reaches a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.texts import printable
from monai_fairfl.protocol.values import Weights

LEAST_COUNTS = {"num_samples": 1, "num_cases": 0, "num_steps": 0}
"""The counts of a reply that trained, and the least value of each."""

MOST_SAMPLES = 1_000_000
"""Images of one site in one local epoch, and its cases, that are believed."""

MOST_STEPS = 1_000_000_000
"""Optimizer steps of one round that are believed."""

RUNNING_STATISTICS = ("running_mean", "running_var")
"""How the names of batch normalisation's statistics end."""

MOST_TEXT = 1000
"""Characters of a reason, which a client's reply may have made long."""


def refusal(
    request: Request, reply: Reply, spec: ModelSpec, most_samples: int = MOST_SAMPLES
) -> str | None:
    """Why ``reply`` must not reach a strategy; ``None`` where it may.

    Only the form is checked here. Values of an update are checked by the guards, measurements by
    :class:`~monai_fairfl.protocol.replies.Replies`.

    Args:
        request: that it answers.
        reply: of a client.
        spec: the model's tensors.
        most_samples: images of one site in one local epoch, and cases, that are believed.

    >>> refusal(Request("A", "measure", {}, id=3), Reply("A", None, 1, id=2), ModelSpec(()))
    'answers request 2 of run  round -1, asked was request 3 of run  round -1'
    """
    reason = _refusal(request, reply, spec, most_samples)
    if reason is None:
        return None
    # It may quote what the client sent.
    reason = printable(reason)
    if len(reason) > MOST_TEXT:
        return reason[:MOST_TEXT] + "..."
    return reason


def _refusal(request: Request, reply: Reply, spec: ModelSpec, most_samples: int) -> str | None:
    """As :func:`refusal`, in as many words as it takes."""
    if reply.error is not None:
        return f"error: {reply.error}"
    if (reply.id, reply.run, reply.round) != (request.id, request.run, request.round):
        return (
            f"answers request {reply.id} of run {reply.run} round {reply.round}, "
            f"asked was request {request.id} of run {request.run} round {request.round}"
        )
    if not isinstance(reply.measurements, Mapping):
        return f"measurements must be a mapping, got {type(reply.measurements).__name__}"
    if request.task == "measure":
        if reply.update is not None:
            return "measured, and sent an update that was not asked for"
        return None
    problem = _problem_of_counts(reply, most_samples)
    if problem is not None:
        return problem
    if reply.update is None:
        return "trained but sent no update"
    if not isinstance(reply.labelled, (tuple, list)):
        return f"labelled must be a tuple, got {type(reply.labelled).__name__}"
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


def unsent_statistics(request: Request, reply: Reply, spec: ModelSpec) -> list[str]:
    """Running statistics of batch normalisation that a training reply lacks and its request had.

    Without them the averaged model keeps those that it had, unless another client sends some.

    Args:
        request: that it answers.
        reply: of a client.
        spec: the model's tensors.

    >>> import torch
    >>> spec = ModelSpec(("w",), buffers=("n.running_mean", "n.table"))
    >>> model = dict.fromkeys(("w", "n.running_mean", "n.table"), torch.zeros(1))
    >>> reply = Reply("A", {"w": model["w"]}, 1)
    >>> unsent_statistics(Request("A", "train", model), reply, spec)
    ['n.running_mean']
    >>> unsent_statistics(Request("A", "train", {"w": model["w"]}), reply, spec)  # they stay there
    []
    """
    if reply.update is None:
        return []
    unsent = []
    for name in spec.buffers:
        if name.endswith(RUNNING_STATISTICS) and name in request.weights:
            if name not in (reply.buffers or {}):
                unsent.append(name)
    return unsent


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
    if not isinstance(tensors, Mapping):
        return f"{what} must be a mapping of tensors, got {type(tensors).__name__}"
    missing = sorted(set(names) - set(tensors))
    extra = sorted(set(tensors) - set(names))
    if missing or extra:
        return (
            f"{what} has other tensors than the model: missing {missing[:3]}, unexpected "
            f"{extra[:3]}"
        )
    for name in names:
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor):
            return f"{what} {name!r} is a {type(tensor).__name__}, not a tensor"
        if tensor.layout is not torch.strided or tensor.is_meta:
            return f"{what} {name!r} is sparse, or has no data: send a dense tensor"
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


def _problem_of_counts(reply: Reply, most_samples: int) -> str | None:
    """What is wrong with the counts of a reply that trained; ``None`` where nothing is."""
    for name, least in LEAST_COUNTS.items():
        count = getattr(reply, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            return f"{name} must be a whole number of at least {least}, got {count!r}"
    for name in ("num_samples", "num_cases"):
        count = getattr(reply, name)
        if count > most_samples:
            return (
                f"{name} is {_in_words(count)}, and most_samples allows a site {most_samples}: "
                "correct the site's count, or raise most_samples"
            )
    if reply.num_steps > MOST_STEPS:
        return f"num_steps is {_in_words(reply.num_steps)}, and at most {MOST_STEPS} are believed"
    return None


def _in_words(count: int) -> str:
    """A count as a text; one of thousands of digits, which Python refuses to write, by its size."""
    return str(count) if count.bit_length() <= 64 else f"a number of {count.bit_length()} bits"
