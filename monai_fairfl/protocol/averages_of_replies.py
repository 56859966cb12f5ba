# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""The averages of one exchange: of its updates, and of the buffers that came with them.

.. math:: w = w_0 + \sum_i \rho_i s_i \Delta_i

:math:`w_0` is what the clients started from, :math:`\rho` their weights, s the factors of their
updates. :class:`~monai_fairfl.protocol.replies.Replies` has these averages as methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from monai_fairfl.protocol.averages import (
    Aggregation,
    is_by_layer,
    sample_shares,
    uniform,
    weighted_mean,
)
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.update_matrix import UpdateMatrix
from monai_fairfl.protocol.values import Weights

LEAST_SHARE = 1e-300  # in place of 0 where nobody who labels a class has any weight

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""A rule that looks at each coordinate by itself: values of shape (N, ...) -> shape (...)."""


class Averaging:
    """Averages of the updates of one exchange.

    Args:
        clients: of the updates, in the order of the matrix's rows.
        starts: the model that each of them was sent.
        matrix: the updates, one row each.
        labelled: which update was trained on which class of the output layer, shape (N, classes);
            ``None``: all on all. A class is averaged over those who label it.
        spec: names the layers and the output layer.
    """

    def __init__(
        self,
        clients: Sequence[str],
        starts: Sequence[Weights],
        matrix: UpdateMatrix,
        labelled: np.ndarray | None,
        spec: ModelSpec,
    ):
        self.clients = clients
        self.starts = starts
        self.matrix = matrix
        self.labelled = labelled
        self.spec = spec

    def average(
        self, weights: Aggregation, start: Weights | None, scale: Mapping[str, float] | None
    ) -> dict[str, torch.Tensor]:
        """The averaged parameters, see :meth:`Replies.average`."""
        if start is None:
            start = self._common_model()
        rho_of = rho_of_tensors(self.matrix.columns, weights, self.clients, self.spec)
        scales = self._scales(scale)
        averaged: dict[str, torch.Tensor] = {}
        for name, rho in rho_of.items():
            origin = self._mean_start(name, rho) if start is None else start[name]
            moved = self._step(name, rho, scales)
            # In place: the step lies in memory of its own.
            moved += origin
            averaged[name] = moved.to(origin.dtype)
        return averaged

    def averages(
        self, weights: Sequence[Mapping[str, float]], start: Weights
    ) -> list[dict[str, torch.Tensor]]:
        """The parameters of several averages, see :meth:`Replies.averages`."""
        rho = torch.stack([_vector(of_average, self.clients) for of_average in weights])
        rho = rho.to(self.matrix.dtype)
        found: list[dict[str, torch.Tensor]] = [{} for _ in weights]
        for name, shape in self.matrix.shapes.items():
            origin = start[name]
            moved = self.matrix.weighted_sums(name, rho)
            moved += origin.reshape(-1)
            for average, vector in zip(found, moved, strict=True):
                average[name] = vector.view(shape).to(origin.dtype)
        return found

    def reduced(
        self, reduce: Reduce, start: Weights | None, scale: Mapping[str, float] | None
    ) -> dict[str, torch.Tensor]:
        """The parameters of a rule for each coordinate, see :meth:`Replies.reduced`."""
        scales = self._scales(scale)
        found: dict[str, torch.Tensor] = {}
        for name, shape in self.matrix.shapes.items():
            updates = self.matrix.updates_of(name)
            values = (scales[:, None] * updates).to(updates.dtype)
            origin = self._common_start(name) if start is None else start[name]
            if origin is None:
                # The rule sees the clients' models.
                starts = torch.stack([model[name].flatten() for model in self.starts])
                origin = torch.zeros(shape, dtype=starts.dtype)
                values = starts.to(values.dtype) + values
            step = self._reduced_by_class(name, values.view(len(self.clients), *shape), reduce)
            found[name] = (origin.to(step.dtype) + step).to(origin.dtype)
        return found

    # ---- what the clients started from

    def _common_model(self) -> Weights | None:
        """The model that all clients were sent; ``None`` where they were sent different ones."""
        first = self.starts[0]
        return first if all(model is first for model in self.starts) else None

    def _common_start(self, name: str) -> torch.Tensor | None:
        """The tensor that all clients started from; ``None`` where they differ."""
        first = self.starts[0][name]
        for model in self.starts:
            tensor = model[name]
            # One tensor of several models is several after a resume.
            if tensor is not first and not torch.equal(tensor, first):
                return None
        return first

    def _mean_start(self, name: str, rho: torch.Tensor) -> torch.Tensor:
        """What the clients started from; averaged where they were sent different tensors."""
        common = self._common_start(name)
        if common is not None:
            return common
        return weighted_mean([model[name] for model in self.starts], rho)

    # ---- the step of one tensor

    def _scales(self, scale: Mapping[str, float] | None) -> torch.Tensor:
        """The factors of the updates, shape (N,)."""
        if scale is None:
            return torch.ones(len(self.clients), dtype=torch.float64)
        return torch.tensor([scale[client] for client in self.clients], dtype=torch.float64)

    def _step(self, name: str, rho: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the updates of one tensor, in its shape; in memory of its own."""
        class_axis = self._class_axis(name)
        if class_axis is not None:
            return self._step_by_class(name, class_axis, rho, scales)

        matrix = self.matrix
        factors = (rho * scales).to(matrix.dtype)
        columns = matrix.columns[name]
        step = torch.empty(columns.stop - columns.start, dtype=matrix.dtype)
        for place, block in matrix.blocks(name):
            torch.mv(block.T, factors, out=step[place])
        return step.view(matrix.shapes[name])

    def _step_by_class(
        self, name: str, class_axis: int, rho: torch.Tensor, scales: torch.Tensor
    ) -> torch.Tensor:
        """As :meth:`_step` for the output layer: a class is averaged over its labellers."""
        # The weights of the clients that label a class have the same sum as those of all clients.
        share = rho[:, None] * torch.as_tensor(self.labelled)
        compensation = rho.sum() / share.sum(0).clamp(min=LEAST_SHARE)
        share = share * compensation * scales[:, None]

        updates = self.matrix.by_class(name, class_axis)
        step = torch.einsum("nc,nc...->c...", share.to(updates.dtype), updates)
        return step.movedim(0, class_axis)

    def _reduced_by_class(self, name: str, values: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        """The rule applied to one tensor, for each class to those who label it.

        Args:
            name: of the tensor.
            values: of all clients, shape (N, ...).
            reduce: the rule.
        """
        class_axis = self._class_axis(name)
        if class_axis is None:
            return reduce(values)
        assert self.labelled is not None
        by_class = values.movedim(1 + class_axis, 1)
        reduced = []
        for number in range(by_class.shape[1]):
            labellers = torch.as_tensor(self.labelled[:, number])
            if not labellers.any():
                labellers = torch.ones_like(labellers)
            reduced.append(reduce(by_class[labellers, number]))
        return torch.stack(reduced).movedim(0, class_axis)

    def _class_axis(self, name: str) -> int | None:
        """The axis of a tensor's classes, if some clients do not label all of them; else none."""
        return None if self.labelled is None else self.spec.class_axis(name)


def averaged_buffers(
    replies: Sequence[Reply], spec: ModelSpec, weights: Aggregation, policy: str
) -> dict[str, torch.Tensor]:
    """The buffers that at least one client sent, averaged over those that sent them.

    Args:
        replies: of one exchange.
        spec: names the buffers and their layers.
        weights: client -> weight, or layer -> client -> weight.
        policy: one of :data:`BUFFER_POLICIES`.
    """
    averaged: dict[str, torch.Tensor] = {}
    if policy == "local":
        return averaged
    if policy != "aggregation":
        weights = sample_shares(replies)
    clients = [reply.client for reply in replies]
    rho_of = rho_of_tensors(spec.buffers, weights, clients, spec)

    # Buffers that the same replies sent, with the same weights -> their names.
    alike: dict[tuple[tuple[int, ...], tuple[float, ...], torch.dtype], list[str]] = {}
    for name in spec.buffers:
        rows = []
        values = []
        for row, reply in enumerate(replies):
            if reply.buffers is not None and name in reply.buffers:
                rows.append(row)
                values.append(reply.buffers[name])
        if not values:
            continue
        if values[0].is_floating_point():
            rho = rho_of[name][rows]
            key = (tuple(rows), tuple(rho.tolist()), values[0].dtype)
            alike.setdefault(key, []).append(name)
        else:
            # A counter: a fraction of it means nothing, so the largest is taken.
            averaged[name] = torch.stack(values).amax(0)
    for (rows_of_all, factors, _), names in alike.items():
        sent = [replies[row].buffers or {} for row in rows_of_all]
        averaged.update(_mean_buffers(names, sent, factors))
    return averaged


def reduced_buffers(
    replies: Sequence[Reply], spec: ModelSpec, reduce: Reduce, policy: str
) -> dict[str, torch.Tensor]:
    """The buffers of a rule for each coordinate, see :meth:`Replies.reduced`.

    Args:
        replies: of one exchange.
        spec: names the buffers.
        reduce: the rule.
        policy: one of :data:`BUFFER_POLICIES`.
    """
    clients = {reply.client for reply in replies}
    reduced = averaged_buffers(replies, spec, uniform(clients), policy)
    for name, averaged in reduced.items():
        if averaged.is_floating_point():
            sent = [(reply.buffers or {}).get(name) for reply in replies]
            reduced[name] = reduce(torch.stack([tensor for tensor in sent if tensor is not None]))
    return reduced


def _mean_buffers(
    names: Sequence[str], sent: Sequence[Weights], factors: Sequence[float]
) -> dict[str, torch.Tensor]:
    """The weighted means of some buffers, as one vector: a model may have hundreds of them.

    Args:
        names: of the buffers, of one type.
        sent: the buffers of each client that sent these.
        factors: weights of these clients.
    """
    vectors = []
    for buffers in sent:
        vectors.append(torch.cat([buffers[name].reshape(-1) for name in names]))
    rho = torch.tensor(factors, dtype=torch.float64)
    if not rho.any():
        # Only clients of weight 0 sent them: their plain mean.
        rho = torch.ones_like(rho)
    mean = weighted_mean(vectors, rho)

    found = {}
    first = sent[0]
    sizes = [first[name].numel() for name in names]
    for name, part in zip(names, mean.split(sizes), strict=True):
        # Of its own memory: the parts of a vector would hold all of it.
        found[name] = part.clone().view(first[name].shape)
    return found


def rho_of_tensors(
    names: Iterable[str], weights: Aggregation, clients: Sequence[str], spec: ModelSpec
) -> dict[str, torch.Tensor]:
    """Tensor -> the weights of the clients in its layer, shape (N,).

    Clients have the same weight in a layer that was not scored.

    Args:
        names: of the tensors.
        weights: client -> weight, or layer -> client -> weight.
        clients: in the order of the vectors; one that has no weight counts as 0.
        spec: names the layers.

    >>> spec = ModelSpec(("w", "b"), layers={"w": "fc", "b": "other"})
    >>> rho_of = rho_of_tensors(("w", "b"), {"fc": {"A": 1.0}}, ["A", "B"], spec)
    >>> {name: rho.tolist() for name, rho in rho_of.items()}
    {'w': [1.0, 0.0], 'b': [0.5, 0.5]}
    """
    if not is_by_layer(weights):
        # Of a model that has hundreds of tensors, most methods weigh all alike.
        same = _vector(weights, clients)  # type: ignore[arg-type]
        return dict.fromkeys(names, same)
    equal = uniform(set(clients))
    rho_of = {}
    for name in names:
        layer = spec.layers.get(name, name)
        rho_of[name] = _vector(weights.get(layer, equal), clients)
    return rho_of


def _vector(weights: Mapping[str, float], clients: Sequence[str]) -> torch.Tensor:
    """client -> weight as a vector in the order of the clients, shape (N,)."""
    rho = [float(weights.get(client, 0.0)) for client in clients]
    return torch.tensor(rho, dtype=torch.float64)
