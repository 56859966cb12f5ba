# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The replies of one exchange, the averages of what they carry, and the policy for buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from monai_fairfl.protocol.averages import Aggregation, sample_shares, uniform, weighted_mean
from monai_fairfl.protocol.checks import usable_measurements
from monai_fairfl.protocol.geometry import Geometry, UpdateMatrix
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Weights


class Replies(list[Reply]):
    """Replies of one exchange, sorted by (client, id), checked and guarded.

    This is the one place where measurements are checked: whatever engine brought a reply, those
    that are malformed or not finite are dropped here and listed in :attr:`not_finite`. Whoever
    reads ``reply.measurements`` of a reply in this list needs no check of its own.

    Args:
        replies: in any order.
        requests: the requests answered; their weights are what each client started from.
        spec: the model's tensors.
        missing: client -> why it is not here ("timeout", "refused: ...", "error: ...").
        matrix: the updates as rows in the order of the sorted replies; built here when not given.
        not_finite: id of a reply -> names of measurements that were dropped from it earlier.

    >>> request = Request("A", "measure", {})
    >>> reply = Reply("A", None, 1, {"score": float("nan"), "train_loss": 0.3})
    >>> replies = Replies([reply], [request], ModelSpec(()))
    >>> replies[0].measurements, replies.not_finite
    ({'train_loss': 0.3}, {0: ['score']})
    """

    def __init__(
        self,
        replies: Iterable[Reply],
        requests: Iterable[Request],
        spec: ModelSpec,
        missing: Mapping[str, str] | None = None,
        matrix: UpdateMatrix | None = None,
        not_finite: Mapping[int, list[str]] | None = None,
    ):
        super().__init__()
        self.not_finite = dict(not_finite or {})
        for reply in sorted(replies, key=lambda reply: (reply.client, reply.id)):
            usable, dropped = usable_measurements(reply)
            if dropped:
                reply = replace(reply, measurements=usable)
                self.not_finite[reply.id] = dropped
            self.append(reply)
        self.requests = {request.id: request for request in requests}
        self.spec = spec
        self.missing = dict(missing or {})
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
            self.not_finite,
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
