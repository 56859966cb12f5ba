# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Weights that sum to one, and averages by them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from monai_fairfl.protocol.messages import Reply

Aggregation = Mapping[str, float] | Mapping[str, Mapping[str, float]]
"""client -> weight, or layer -> client -> weight."""


BUFFER_POLICIES = ("aggregation", "samples", "local")


def normalise(values: Mapping[str, float], floor: float = 0.0) -> dict[str, float]:
    """``max(value, floor)`` divided by their sum, so that the result sums to one; uniform when all
    are zero.

    Args:
        values: client -> finite score.
        floor: least score, at least 0, applied before dividing.

    Raises:
        ValueError: when a score is not finite; the client is named.

    >>> normalise({"A": 1.0, "B": 3.0})
    {'A': 0.25, 'B': 0.75}
    """
    clipped = {client: max(float(value), floor) for client, value in values.items()}
    for client, value in clipped.items():
        if not math.isfinite(value):
            raise ValueError(f"client {client!r}: score {values[client]!r} must be a finite number")
    total = sum(clipped.values())
    return (
        {client: value / total for client, value in clipped.items()}
        if total > 0
        else uniform(clipped)
    )


def uniform(clients: Iterable[str]) -> dict[str, float]:
    """The same weight for every client.

    >>> uniform(["A", "B"])
    {'A': 0.5, 'B': 0.5}
    """
    names = list(clients)
    return {client: 1 / len(names) for client in names}


def prior(known: Mapping[str, float], clients: Iterable[str]) -> dict[str, float]:
    """client -> its weight of before; 1 / (known clients + 1) for one that was never seen. They
    need not sum to one.

    >>> prior({"A": 0.6, "B": 0.4}, ["A", "C"])
    {'A': 0.6, 'C': 0.3333333333333333}
    """
    return {client: known.get(client, 1 / (len(known) + 1)) for client in clients}


def place(known: Mapping[str, float], clients: Iterable[str]) -> dict[str, float]:
    """Weights of before of those who are here, of sum one: the known ones, their mean for one never
    seen.

    >>> place({"A": 0.5, "B": 0.3, "C": 0.2}, ["A", "B", "C"])
    {'A': 0.5, 'B': 0.3, 'C': 0.2}
    >>> place({"A": 0.25, "B": 0.75}, ["B", "C"])
    {'B': 0.6, 'C': 0.4}
    """
    newcomer = sum(known.values()) / len(known) if known else 1.0
    before = {client: known.get(client, newcomer) for client in clients}
    return before if set(before) == set(known) else normalise(before)


def beside_absent(known: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """The new ``weights`` of those who are here beside the ``known`` ones of those who are away, of
    sum one.

    Those who are here divide among them what they had before, so that nobody loses its place by
    being away.

    >>> beside_absent({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 0.5, "B": 0.5})
    {'A': 0.4, 'B': 0.4, 'C': 0.2}
    """
    away = {client: weight for client, weight in known.items() if client not in weights}
    if not away:
        return dict(weights)
    newcomer = sum(known.values()) / len(known)
    theirs = sum(known.get(client, newcomer) for client in weights)
    return normalise(
        dict(
            sorted(
                {**away, **{client: theirs * weight for client, weight in weights.items()}}.items()
            )
        )
    )


def weighted_mean(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """sum_i w_i t_i / sum_i w_i, accumulated in float64, in the tensors' own type; a weight of 0
    leaves a tensor out.

    >>> tensors = [torch.tensor([value]) for value in (1.0, 3.0, math.inf)]
    >>> weighted_mean(tensors, torch.tensor([1.0, 1.0, 0.0])).tolist()
    [2.0]
    """
    total = sum(
        weight * tensor.double() for weight, tensor in zip(weights, tensors, strict=True) if weight
    )
    return torch.as_tensor(total / weights.sum()).to(tensors[0].dtype)


def sample_shares(replies: Iterable[Reply]) -> dict[str, float]:
    """p_i = n_i / sum_j n_j, n the images of one local epoch."""
    return normalise({reply.client: reply.num_samples for reply in replies})
