# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replies of one exchange, weighted averages of what they carry, and the policy for buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from monai_fairfl.geometry import Geometry, UpdateMatrix
from monai_fairfl.messages import ModelSpec, Reply, Request, Weights

__all__ = [
    "BUFFER_POLICIES",
    "Aggregation",
    "Replies",
    "normalise",
    "prior",
    "sample_shares",
    "uniform",
]

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


class Replies(list[Reply]):
    """Replies of one exchange, sorted by (client, id), checked and guarded.

    Args:
        replies: in any order.
        requests: the requests answered; their weights are what each client started from.
        spec: the model's tensors.
        missing: client -> why it is not here ("timeout", "refused: ...", "error: ...").
        matrix: the updates as rows in the order of the sorted replies; built here when not given.
    """

    def __init__(
        self,
        replies: Iterable[Reply],
        requests: Iterable[Request],
        spec: ModelSpec,
        missing: Mapping[str, str] | None = None,
        matrix: UpdateMatrix | None = None,
    ):
        super().__init__(sorted(replies, key=lambda reply: (reply.client, reply.id)))
        self.requests = {request.id: request for request in requests}
        self.spec, self.missing = spec, dict(missing or {})
        self._matrix = matrix

    @property
    def clients(self) -> list[str]:
        """Names of those who answered, sorted."""
        return sorted({reply.client for reply in self})

    def start(self, reply: Reply) -> Weights:
        """The weights that ``reply``'s client was sent."""
        return self.requests[reply.id].weights

    def local(self, reply: Reply) -> dict[str, torch.Tensor]:
        """``reply``'s client's own trained model: what it was sent plus its update, with its own
        buffers.
        """
        sent, update = self.start(reply), reply.update or {}
        return {
            **sent,
            **{name: sent[name] + change for name, change in update.items()},
            **(reply.buffers or {}),
        }

    @cached_property
    def matrix(self) -> UpdateMatrix:
        """The updates as rows, in the order of the replies."""
        if self._matrix is None:
            self._matrix = UpdateMatrix(self.start(self[0]), self.spec.parameters, len(self))
            for row, reply in enumerate(self):
                assert reply.update is not None
                self._matrix.put(row, reply.update)
        return self._matrix

    @cached_property
    def geometry(self) -> Geometry:
        """Inner products of the updates."""
        return Geometry(self.matrix, self.spec, self.labelled)

    @cached_property
    def labelled(self) -> np.ndarray | None:
        """(N, classes): which reply was trained on which class of the output layer; ``None``: all
        on all.
        """
        classes = max((len(reply.labelled) for reply in self), default=0)
        told = np.array([reply.labelled or (True,) * classes for reply in self], dtype=bool)
        return None if told.all() else told

    def without(self, excluded: Mapping[int, str]) -> Replies:
        """These replies less those whose id is in ``excluded`` (id -> reason), which become
        missing.
        """
        if not excluded:
            return self
        rows = [row for row, reply in enumerate(self) if reply.id not in excluded]
        return Replies(
            [self[row] for row in rows],
            self.requests.values(),
            self.spec,
            {
                **self.missing,
                **{reply.client: excluded[reply.id] for reply in self if reply.id in excluded},
            },
            self._matrix.select(rows) if self._matrix is not None else None,
        )

    def average(
        self,
        weights: Aggregation | None = None,
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: Mapping[str, float] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The averaged model: start + sum_i rho_i s_i update_i for parameters, ``buffers`` policy
        for the rest.

        Where some clients do not label a class, its row of the output layer is averaged over those
        who do.

        Args:
            weights: rho, client -> weight or layer -> client -> weight; uniform when ``None``.
            buffers: one of :data:`BUFFER_POLICIES`.
            start: the model that the steps are added to; ``None``: what the clients started from,
                averaged with the same weights where these differ.
            scale: s, client -> factor of its update (a unit length, a step size); 1 when ``None``.
        """
        weights = uniform(self.clients) if weights is None else weights
        factor = torch.tensor(
            [1.0 if scale is None else scale[reply.client] for reply in self], dtype=torch.float64
        )
        averaged: dict[str, torch.Tensor] = {}
        for name, columns in self.matrix.columns.items():
            rho = self._rho(weights, name)
            origin = self._start(name, rho) if start is None else start[name]
            if (
                self.labelled is not None
                and self.spec.output
                and self.spec.layers.get(name) == self.spec.output[0]
            ):
                step = self._step_by_class(name, rho, factor)
            else:
                step = (rho * factor).to(self.matrix.rows.dtype) @ self.matrix.rows[:, columns]
            averaged[name] = (origin.to(step.dtype) + step.view(origin.shape)).to(origin.dtype)
        return averaged | self._buffers(weights, buffers)

    def _step_by_class(self, name: str, rho: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The step of an output layer's parameter: a class is averaged over those who label it."""
        assert self.labelled is not None and self.spec.output is not None
        axis = self.spec.output[1] if name.endswith("weight") else 0
        share = rho[:, None] * torch.as_tensor(self.labelled)
        share = share * (rho.sum() / share.sum(0).clamp(min=1e-300)) * factor[:, None]
        part = self.matrix.by_class(name, axis)
        return torch.einsum("nc,nc...->c...", share.to(part.dtype), part).movedim(0, axis)

    def _rho(self, weights: Aggregation, name: str) -> torch.Tensor:
        layer = weights.get(self.spec.layers.get(name, name))
        by_client = layer if isinstance(layer, Mapping) else weights
        if any(isinstance(value, Mapping) for value in by_client.values()):
            by_client = uniform(self.clients)  # a layer that was not scored
        return torch.tensor([float(by_client.get(reply.client, 0.0)) for reply in self], dtype=torch.float64)  # type: ignore[arg-type]

    def _start(self, name: str, rho: torch.Tensor) -> torch.Tensor:
        starts = [self.start(reply)[name] for reply in self]
        if all(start is starts[0] for start in starts):
            return starts[0]
        return weighted_mean(starts, rho)

    def _buffers(self, weights: Aggregation, policy: str) -> dict[str, torch.Tensor]:
        averaged = {}
        for name in self.spec.buffers if policy != "local" else ():
            holders = [row for row, reply in enumerate(self) if name in (reply.buffers or {})]
            if not holders:
                continue
            values = [self[row].buffers[name] for row in holders]  # type: ignore[index]
            if not values[0].is_floating_point():
                averaged[name] = (
                    torch.stack(values).amax(0) if values[0].ndim else torch.stack(values).max()
                )
                continue
            rho = self._rho(weights if policy == "aggregation" else sample_shares(self), name)[
                holders
            ]
            averaged[name] = weighted_mean(values, rho if rho.any() else torch.ones_like(rho))
        return averaged


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
