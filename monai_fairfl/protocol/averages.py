# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Weights that sum to one, and averages by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard

import torch

from monai_fairfl.protocol.messages import Reply

Aggregation = Mapping[str, float] | Mapping[str, Mapping[str, float]]
"""client -> weight, or layer -> client -> weight."""

BUFFER_POLICIES = ("aggregation", "samples", "local")
"""How the server averages buffers, see :meth:`monai_fairfl.protocol.Replies.average`."""


def is_by_layer(weights: Aggregation) -> TypeGuard[Mapping[str, Mapping[str, float]]]:
    """Whether weights are of each layer by itself.

    >>> is_by_layer({"A": 1.0}), is_by_layer({"conv": {"A": 1.0}})
    (False, True)
    """
    return any(isinstance(value, Mapping) for value in weights.values())


def mean_over_layers(weights: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Layer -> client -> weight, as client -> plain mean over the layers.

    >>> mean_over_layers({"conv": {"A": 0.25, "B": 0.75}, "fc": {"A": 0.75, "B": 0.25}})
    {'A': 0.5, 'B': 0.5}
    """
    clients = {client for of_layer in weights.values() for client in of_layer}
    means = {}
    for client in sorted(clients):
        total = sum(of_layer.get(client, 0.0) for of_layer in weights.values())
        means[client] = total / len(weights)
    return means


def weights_of_model(weights: Aggregation) -> dict[str, float]:
    """client -> weight in the whole model: the mean over the layers where weights are by layer.

    >>> weights_of_model({"conv": {"A": 0.5, "B": 0.5}, "fc": {"B": 1.0}})
    {'A': 0.25, 'B': 0.75}
    """
    if is_by_layer(weights):
        return mean_over_layers(weights)
    return dict(weights)  # type: ignore[arg-type]


def in_each_layer(
    weights: Aggregation, change: Callable[[Mapping[str, float]], dict[str, float]]
) -> Aggregation:
    """Change weights, those of each layer by themselves where they are by layer.

    >>> in_each_layer({"conv": {"A": 1.0, "B": 3.0}}, normalise)
    {'conv': {'A': 0.25, 'B': 0.75}}
    """
    if is_by_layer(weights):
        return {layer: change(of_layer) for layer, of_layer in weights.items()}
    return change(weights)  # type: ignore[arg-type]


def normalise(values: Mapping[str, float], floor: float = 0.0) -> dict[str, float]:
    r"""Divide scores by their sum, so that they sum to one.

    .. math:: \rho_i = \max(v_i, f) / \sum_j \max(v_j, f)

    Args:
        values: client -> finite score.
        floor: f, at least 0: a lower score counts as f. With 0, a negative score counts as 0.

    Returns:
        client -> weight, between 0 and 1; the same weight for all if every score counts as 0.

    Raises:
        ValueError: if a score is not finite; the text names the client.

    >>> normalise({"A": 1.0, "B": 3.0, "C": -1.0})
    {'A': 0.25, 'B': 0.75, 'C': 0.0}
    """
    clipped = {client: max(float(value), floor) for client, value in values.items()}
    for client, value in clipped.items():
        if not math.isfinite(value):
            raise ValueError(f"client {client!r}: score {values[client]!r} must be a finite number")
    total = sum(clipped.values())
    if total <= 0:
        return uniform(clipped)
    if math.isinf(total):
        # Each score is finite, and their sum is too large for a float.
        largest = max(clipped.values())
        return normalise({client: value / largest for client, value in clipped.items()})
    return {client: value / total for client, value in clipped.items()}


def capped(weights: Mapping[str, float], most: float) -> dict[str, float]:
    r"""Weights of which none is above a limit; what is cut off goes to the others in proportion.

    .. math:: \rho'_i = \min(\lambda \rho_i, L), \qquad \sum_i \rho'_i = \sum_i \rho_i

    with the one :math:`\lambda` that keeps the sum. Where all others have no weight, they share
    what is cut off equally.

    Args:
        weights: client -> weight, from 0.
        most: from 1 on, the limit in multiples of the equal share 1/N; below 1, the limit as a
            share of the whole, and at least 1/N.

    >>> capped({"A": 5.0, "B": 2.0, "C": 1.0}, 1.5)
    {'A': 4.0, 'B': 2.6666666666666665, 'C': 1.3333333333333333}
    >>> capped({"A": 1.0, "B": 0.0, "C": 0.0}, 0.5)
    {'A': 0.5, 'B': 0.25, 'C': 0.25}
    """
    total = sum(weights.values())
    equal = 1 / max(len(weights), 1)
    share = most * equal if most >= 1 else max(most, equal)
    limit = share * total
    found = dict(weights)
    at_limit: set[str] = set()
    while True:
        above = {client for client in found if client not in at_limit and found[client] > limit}
        if not above:
            return found
        at_limit |= above
        free = [client for client in weights if client not in at_limit]
        rest = total - limit * len(at_limit)
        sum_of_free = sum(weights[client] for client in free)
        for client in at_limit:
            found[client] = limit
        for client in free:
            if sum_of_free > 0:
                # The quotient first: the product of a tiny weight may be 0.
                found[client] = weights[client] / sum_of_free * rest
            else:
                found[client] = rest / len(free)


def unit_of_powers(values: Mapping[str, float], power: float) -> float:
    """The unit in which the powers of ``values`` can be added up: 1, if floats can hold them.

    Else it is the largest value: a loss of 100 to the power 200 is too large for a float, and one
    of 0.01 is too small. Shares of the powers do not depend on the unit.

    >>> unit_of_powers({"A": 2.0, "B": 3.0}, 2), unit_of_powers({"A": 2.0, "B": 100.0}, 200)
    (1.0, 100.0)
    """
    try:
        total = sum(value**power for value in values.values())
    except OverflowError:
        total = math.inf
    largest = max(values.values())
    if 0 < total < math.inf or largest <= 0:
        return 1.0
    return largest


def uniform(clients: Iterable[str]) -> dict[str, float]:
    """The same weight for every client, 1 / N.

    >>> uniform(["A", "B"])
    {'A': 0.5, 'B': 0.5}
    """
    names = list(clients)
    return {client: 1 / len(names) for client in names}


def sample_shares(replies: Iterable[Reply]) -> dict[str, float]:
    r"""FedAvg's weights :math:`p_i = n_i / \sum_j n_j`, n the images of one local epoch.

    >>> from monai_fairfl.protocol import Reply
    >>> sample_shares([Reply("A", {}, num_samples=30), Reply("B", {}, num_samples=10)])
    {'A': 0.75, 'B': 0.25}
    """
    return normalise({reply.client: reply.num_samples for reply in replies})


def prior_weights(previous: Mapping[str, float], clients: Iterable[str]) -> dict[str, float]:
    """Each client's previous weight, or 1 / (known clients + 1) for one that was never seen.

    These need not sum to one: FedCE's cosines do not depend on their scale.

    >>> prior_weights({"A": 0.6, "B": 0.4}, ["A", "C"])
    {'A': 0.6, 'C': 0.3333333333333333}
    """
    newcomer = 1 / (len(previous) + 1)
    return {client: previous.get(client, newcomer) for client in clients}


def renormalised_previous(
    previous: Mapping[str, float], clients: Iterable[str]
) -> dict[str, float]:
    """The previous weights of the present ``clients``, which sum to one.

    A client that was never seen gets the mean of the previous weights. The weights of the same
    clients are returned as they are: if those do not sum to one, the caller normalises them.

    >>> renormalised_previous({"A": 0.5, "B": 0.3, "C": 0.2}, ["A", "B", "C"])
    {'A': 0.5, 'B': 0.3, 'C': 0.2}
    >>> renormalised_previous({"A": 0.25, "B": 0.75}, ["B", "C"])
    {'B': 0.6, 'C': 0.4}
    """
    newcomer = _mean(previous) if previous else 1.0
    weights = {client: previous.get(client, newcomer) for client in clients}

    # Where nobody is absent and nobody is new, nothing is divided: the same bits.
    if set(weights) == set(previous):
        return weights
    return normalise(weights)


def merge_with_absent(
    previous: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """The new ``weights`` of the present clients and the previous ones of the absent, of sum one.

    The present clients divide among them the share that they had before, so that a client loses
    nothing by its absence.

    >>> merge_with_absent({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 0.5, "B": 0.5})
    {'A': 0.4, 'B': 0.4, 'C': 0.2}
    """
    absent = {client: weight for client, weight in previous.items() if client not in weights}
    if not absent:
        return dict(weights)

    # The share of all present clients, where one that was never seen counts as the mean.
    newcomer = _mean(previous)
    present_share = sum(previous.get(client, newcomer) for client in weights)

    merged = dict(absent)
    for client, weight in weights.items():
        merged[client] = present_share * weight

    # Sorted, so that the bits of the sum do not depend on who was absent.
    return normalise(dict(sorted(merged.items())))


def weighted_mean(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    r"""The mean :math:`\sum_i w_i t_i / \sum_i w_i`, summed in float64, in the tensors' own type.

    A weight of 0 leaves its tensor out, so that a value that is not finite does no harm there.

    >>> tensors = [torch.tensor([value]) for value in (1.0, 3.0, math.inf)]
    >>> weighted_mean(tensors, torch.tensor([1.0, 1.0, 0.0])).tolist()
    [2.0]
    """
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for weight, tensor in zip(weights, tensors, strict=True):
        if weight:
            total = total + weight * tensor.double()
    mean = total / weights.sum()
    return mean.to(tensors[0].dtype)


def _mean(weights: Mapping[str, float]) -> float:
    return sum(weights.values()) / len(weights)
