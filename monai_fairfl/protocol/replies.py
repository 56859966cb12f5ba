# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The replies of one exchange, and the averages of what they carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from monai_fairfl.protocol.averages import (
    Aggregation,
    is_by_layer,
    sample_shares,
    uniform,
    weighted_mean,
)
from monai_fairfl.protocol.geometry import Geometry, SumGeometry
from monai_fairfl.protocol.measured import Expected
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.update_matrix import UpdateMatrix
from monai_fairfl.protocol.values import Weights

EXPECTED = Expected()
LEAST_SHARE = 1e-300  # in place of 0 where nobody who labels a class has any weight


class Replies(list[Reply]):
    """Replies of one exchange, sorted by (client, id), checked and guarded.

    This is the one place where measurements are checked: whatever engine brought a reply, those
    that are malformed or not finite are dropped here and listed in :attr:`not_finite`; those that
    are outside of their range, or that nobody asked for, are listed in :attr:`dropped` with the
    reason. So code that reads ``reply.measurements`` of a reply in this list need not check again.

    Args:
        replies: in any order.
        requests: the requests answered; their weights are what each client started from.
        spec: the model's tensors.
        missing: client -> why it is absent ("timeout", "refused: ...", "ignored: ...",
            "error: ...", "quarantined: ...").
        matrix: the updates as rows in the order of the sorted replies; built here when not given.
        not_finite: id of a reply -> names of measurements that were dropped from it earlier.
        expected: the measurements that are taken.
        dropped: id of a reply -> name -> why that measurement was dropped from it earlier.
        gram: whether the inner products of all pairs of updates may be computed.
        shortened: clients whose updates a guard has multiplied, see :meth:`scaled`.
        blended: clients that count as one with others and hold another model than the mean that
            entered for them, see :meth:`merged`.

    >>> request = Request("A", "measure", {}, ("score", "local_score", "train_loss"))
    >>> sent = {"score": float("nan"), "local_score": 85.0, "train_loss": 0.3}
    >>> replies = Replies([Reply("A", None, 1, sent)], [request], ModelSpec(()))
    >>> replies[0].measurements, replies.not_finite
    ({'train_loss': 0.3}, {0: ['score']})
    >>> replies.dropped[0]["local_score"]
    '85, outside of 0 to 1 (Dice): the setting ranges allows others'
    """

    def __init__(
        self,
        replies: Iterable[Reply],
        requests: Iterable[Request],
        spec: ModelSpec,
        missing: Mapping[str, str] | None = None,
        matrix: UpdateMatrix | None = None,
        not_finite: Mapping[int, list[str]] | None = None,
        expected: Expected = EXPECTED,
        dropped: Mapping[int, Mapping[str, str]] | None = None,
        gram: bool = True,
        shortened: Iterable[str] = (),
        blended: Iterable[str] = (),
    ):
        super().__init__()
        self.gram = gram
        self.shortened = frozenset(shortened)
        self.blended = frozenset(blended)
        self.parts: Mapping[str, Mapping[str, float]] = {}
        """First client of a group that counts as one -> each of its clients -> its part of what the
        group earns. The engine sets it on the replies that a strategy receives.
        """
        self.requests = {request.id: request for request in requests}
        self.expected = expected
        self.not_finite = dict(not_finite or {})
        self.dropped = dict(dropped or {})
        for reply in sorted(replies, key=lambda reply: (reply.client, reply.id)):
            found = expected.checked(reply, self.requests.get(reply.id))
            if found.not_finite:
                self.not_finite[reply.id] = found.not_finite
            if found.dropped:
                self.dropped[reply.id] = found.dropped
            self.append(replace(reply, measurements=found.usable))
        self.spec = spec
        self.missing = dict(missing or {})
        self._matrix = matrix

    @property
    def clients(self) -> list[str]:
        """Names of the present clients, sorted."""
        return sorted({reply.client for reply in self})

    def why_dropped(self, name: str) -> dict[str, str]:
        """client -> why its measurement ``name`` was dropped, of those that sent one."""
        reasons: dict[str, str] = {}
        for id, request in self.requests.items():
            if name in self.not_finite.get(id, ()):
                reasons[request.client] = "no finite number"
            elif name in self.dropped.get(id, {}):
                reasons[request.client] = self.dropped[id][name]
        return dict(sorted(reasons.items()))

    def start(self, reply: Reply) -> Weights:
        """The weights that ``reply``'s client was sent."""
        return self.requests[reply.id].weights

    def local(self, reply: Reply) -> dict[str, torch.Tensor]:
        """The client's own trained model: what it was sent plus its update, and its own buffers."""
        model = dict(self.start(reply))
        for name, change in (reply.update or {}).items():
            # An update in the matrix may have a longer type than the model.
            start = model[name]
            model[name] = (start + change).to(start.dtype)
        model.update(reply.buffers or {})
        return model

    @cached_property
    def matrix(self) -> UpdateMatrix:
        """The updates as rows, in the order of the replies."""
        if self._matrix is None:
            self._matrix = UpdateMatrix(self.start(self[0]), self.spec.parameters, len(self))
            for row, reply in enumerate(self):
                assert reply.update is not None
                self._matrix.adopt(row, reply.update)
        return self._matrix

    @cached_property
    def geometry(self) -> Geometry:
        """Inner products of the updates."""
        if not self.gram:
            return SumGeometry(self.matrix, self.spec, self.labelled)
        return Geometry(self.matrix, self.spec, self.labelled)

    @cached_property
    def labelled(self) -> np.ndarray | None:
        """Which reply was trained on which class of the output layer, shape (N, classes).

        ``None``: all were trained on all classes. A reply that names no class counts as trained on
        all of them.
        """
        classes = max((len(reply.labelled) for reply in self), default=0)
        all_classes = (True,) * classes
        labelled = np.array([reply.labelled or all_classes for reply in self], dtype=bool)
        return None if labelled.all() else labelled

    def without(self, excluded: Mapping[int, str]) -> Replies:
        """These replies without the excluded ones, whose clients become missing.

        Args:
            excluded: id of a reply -> reason.
        """
        if not excluded:
            return self
        rows = []
        missing = dict(self.missing)
        for row, reply in enumerate(self):
            if reply.id in excluded:
                missing[reply.client] = excluded[reply.id]
            else:
                rows.append(row)
        remaining = [self[row] for row in rows]
        matrix = None if self._matrix is None else self._matrix.select(rows)
        return self.rebuilt(remaining, missing, matrix)

    def rebuilt(
        self,
        replies: Iterable[Reply],
        missing: Mapping[str, str],
        matrix: UpdateMatrix | None,
        requests: Iterable[Request] | None = None,
    ) -> Replies:
        """Some of the replies of the same exchange; what was dropped of any stays on record.

        Args:
            replies: some of these.
            missing: client -> why it is absent.
            matrix: the updates of ``replies`` that trained, in their order.
            requests: in place of these, with the same ids; ``None``: these.
        """
        return Replies(
            replies,
            self.requests.values() if requests is None else requests,
            self.spec,
            missing,
            matrix,
            self.not_finite,
            self.expected,
            self.dropped,
            self.gram,
            self.shortened,
            self.blended,
        )

    def scaled(self, factors: Mapping[int, float]) -> Replies:
        """These replies with some updates multiplied, whose clients are then :attr:`shortened`.

        Args:
            factors: id of a reply -> factor of its update.
        """
        if not factors:
            return self
        scaled: dict[int, Weights] = {}
        shortened = set(self.shortened)
        for row, reply in enumerate(self):
            if reply.id in factors:
                factor = factors[reply.id]
                views = self.matrix.views(row)
                scaled[row] = {name: view * factor for name, view in views.items()}
                shortened.add(reply.client)
        changed = self._with(self, scaled)
        changed.shortened = frozenset(shortened)
        return changed

    def merged(self, groups: Sequence[Sequence[str]]) -> Replies:
        """These replies with each group as one: its first client, with the mean of the updates.

        A class of the output layer that some of the group do not label is averaged over those who
        do, as in :meth:`average`. The images are the group's mean, too; buffers and measurements
        are the first client's. The others become missing, with the reason. All are then
        :attr:`blended`, but a first client whose update is the mean.

        Args:
            groups: the clients that count as one, of at least two each.
        """
        if not groups:
            return self
        row_of = {reply.client: row for row, reply in enumerate(self)}
        changed = list(self)
        excluded: dict[int, str] = {}
        means: dict[int, Weights] = {}
        blended = set(self.blended)
        for group in groups:
            rows = sorted(row_of[client] for client in group)
            first = rows[0]
            together = self._chosen(rows)
            means[first] = together._mean_update()
            images = sum(self[row].num_samples for row in rows)
            changed[first] = replace(
                self[first],
                num_samples=max(1, images // len(rows)),
                labelled=together._labelled_by_any(),
            )
            blended.update(group)
            if _are_close(means[first], self.matrix.views(first)):
                blended.discard(self[first].client)
            for row in rows[1:]:
                excluded[self[row].id] = f"shares one weight with {self[first].client}"
        merged = self._with(changed, means).without(excluded)
        merged.blended = frozenset(blended)
        return merged

    def _chosen(self, rows: Sequence[int]) -> Replies:
        """Some of these replies, with their own rows of the matrix."""
        return Replies(
            [self[row] for row in rows],
            self.requests.values(),
            self.spec,
            matrix=self.matrix.select(rows),
            expected=self.expected,
            gram=self.gram,
        )

    def _mean_update(self) -> dict[str, torch.Tensor]:
        """The mean of the updates, in the parameters' shapes."""
        equal = torch.full((len(self),), 1 / len(self), dtype=torch.float64)
        unscaled = self._scales(None)
        means: dict[str, torch.Tensor] = {}
        for name, shape in self.matrix.shapes.items():
            if self._differs_by_class(name):
                means[name] = self._step_by_class(name, equal, unscaled).reshape(shape)
            else:
                means[name] = self._step(name, equal, unscaled).view(shape)
        return means

    def _labelled_by_any(self) -> tuple[bool, ...]:
        """For each class, whether one of the replies labels it; empty: all classes."""
        if self.labelled is None:
            return ()
        labelled: list[bool] = self.labelled.max(axis=0).tolist()
        return tuple(labelled)

    def _with(self, replies: Sequence[Reply], updates: Mapping[int, Weights]) -> Replies:
        """Other replies in the same order, whose inner products are computed again.

        Args:
            replies: in the order of these.
            updates: row -> its new update.
        """
        matrix = self.matrix.replaced(updates)
        changed = list(replies)
        for row in updates:
            changed[row] = replace(changed[row], update=matrix.views(row))
        return self.rebuilt(changed, self.missing, matrix)

    def average(
        self,
        weights: Aggregation | None = None,
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: Mapping[str, float] | None = None,
    ) -> dict[str, torch.Tensor]:
        r"""The averaged model: parameters by the weights, buffers by their policy.

        .. math:: w = w_0 + \sum_i \rho_i s_i \Delta_i

        Where some clients do not label a class, its row of the output layer is averaged over those
        who do.

        Args:
            weights: :math:`\rho`, client -> weight or layer -> client -> weight; uniform when
                ``None``.
            buffers: one of :data:`BUFFER_POLICIES`: ``"aggregation"``, by the weights of their
                layer; ``"samples"``, by the shares of images; ``"local"``, not at all.
            start: :math:`w_0`, the model that the steps are added to; ``None``: what the clients
                started from, averaged with the same weights where these differ.
            scale: s, client -> factor of its update (a unit length, a step size); 1 when ``None``.
        """
        if weights is None:
            weights = uniform(self.clients)
        if start is None:
            start = self._common_model()
        scales = self._scales(scale)
        # Of a model that has hundreds of tensors, most methods weigh all alike.
        same_rho = None
        if not is_by_layer(weights):
            same_rho = self._rho_of(weights)  # type: ignore[arg-type]
        averaged: dict[str, torch.Tensor] = {}
        for name in self.matrix.columns:
            rho = self._weights_of(name, weights) if same_rho is None else same_rho
            origin = self._mean_start(name, rho) if start is None else start[name]
            if self._differs_by_class(name):
                moved = self._step_by_class(name, rho, scales)
                moved = moved.reshape(origin.shape)
            else:
                moved = self._step(name, rho, scales).view(origin.shape)
            # In place: the step lies in memory of its own.
            moved += origin
            averaged[name] = moved.to(origin.dtype)
        averaged.update(self.average_buffers(weights, buffers))
        return averaged

    def mean_start(self, weights: Aggregation) -> Weights:
        """What the clients started from, averaged where this differs: as :meth:`average` has it.

        Args:
            weights: as for :meth:`average`.

        Returns:
            At least the parameters that are averaged.
        """
        common = self._common_model()
        if common is not None:
            return common
        means = {}
        for name in self.matrix.columns:
            means[name] = self._mean_start(name, self._weights_of(name, weights))
        return means

    def averages(
        self, weights: Sequence[Mapping[str, float]], start: Weights
    ) -> list[dict[str, torch.Tensor]]:
        """The parameters of several averages, from one reading of the updates.

        Args:
            weights: for each average, client -> weight; a client that is left out counts as 0. All
                updates must be finite, and all clients label all classes.
            start: as for :meth:`average`.
        """
        rho = torch.stack([self._rho_of(of_average) for of_average in weights])
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
        self,
        reduce: Callable[[torch.Tensor], torch.Tensor],
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: Mapping[str, float] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The model of a rule that looks at each coordinate by itself, such as the median.

        Where the clients began from different tensors and ``start`` is ``None``, the rule sees
        their models, else their updates. A class of the output layer is that of the clients who
        label it. Counters take the maximum.

        Args:
            reduce: values of shape (N, ...) -> shape (...).
            buffers: as for :meth:`average`; ``"samples"`` is as ``"aggregation"``.
            start: the model that the steps are added to; ``None``: what the clients started from.
            scale: client -> factor of its update; 1 when ``None``.
        """
        scales = self._scales(scale)
        found: dict[str, torch.Tensor] = {}
        for name in self.matrix.columns:
            updates = self.matrix.updates_of(name)
            values = (scales[:, None] * updates).to(updates.dtype)
            origin = self._common_start(name) if start is None else start[name]
            shape = self.matrix.shapes[name]
            if origin is None:
                starts = torch.stack([self.start(reply)[name].flatten() for reply in self])
                origin = torch.zeros(shape, dtype=starts.dtype)
                values = starts.to(values.dtype) + values
            step = self._reduced_by_class(name, values.view(len(self), *shape), reduce)
            found[name] = (origin.to(step.dtype) + step).to(origin.dtype)

        counters = self.average_buffers(uniform(self.clients), buffers)
        for name, averaged in counters.items():
            sent = [(reply.buffers or {}).get(name) for reply in self]
            present = [tensor for tensor in sent if tensor is not None]
            found[name] = averaged
            if averaged.is_floating_point():
                found[name] = reduce(torch.stack(present))
        return found

    def _common_start(self, name: str) -> torch.Tensor | None:
        """The tensor that all clients started from; ``None`` where they differ."""
        starts = [self.start(reply)[name] for reply in self]
        return starts[0] if _are_the_same(starts) else None

    def _reduced_by_class(
        self,
        name: str,
        values: torch.Tensor,
        reduce: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """The rule applied to one tensor, for each class to those who label it.

        Args:
            name: of the tensor.
            values: of all clients, shape (N, ...).
            reduce: see :meth:`reduced`.
        """
        if not self._differs_by_class(name):
            return reduce(values)
        assert self.labelled is not None and self.spec.output is not None
        class_axis = self.spec.output[1] if name.endswith("weight") else 0
        by_class = values.movedim(1 + class_axis, 1)
        reduced = []
        for number in range(by_class.shape[1]):
            labellers = torch.as_tensor(self.labelled[:, number])
            if not labellers.any():
                labellers = torch.ones_like(labellers)
            reduced.append(reduce(by_class[labellers, number]))
        return torch.stack(reduced).movedim(0, class_axis)

    def _scales(self, scale: Mapping[str, float] | None) -> torch.Tensor:
        """The factors of the updates, shape (N,)."""
        if scale is None:
            return torch.ones(len(self), dtype=torch.float64)
        return torch.tensor([scale[reply.client] for reply in self], dtype=torch.float64)

    def _weights_of(self, name: str, weights: Aggregation) -> torch.Tensor:
        """The weights of the clients for one tensor, that is for its layer; shape (N,)."""
        layer = self.spec.layers.get(name, name)
        of_layer = weights.get(layer)
        if isinstance(of_layer, Mapping):
            by_client: Mapping[str, float] = of_layer
        elif any(isinstance(value, Mapping) for value in weights.values()):
            # The weights are by layer, and this layer was not scored.
            by_client = uniform(self.clients)
        else:
            by_client = weights  # type: ignore[assignment]
        return self._rho_of(by_client)

    def _rho_of(self, weights: Mapping[str, float]) -> torch.Tensor:
        """client -> weight as a vector in the order of the replies, shape (N,)."""
        rho = [float(weights.get(reply.client, 0.0)) for reply in self]
        return torch.tensor(rho, dtype=torch.float64)

    def _common_model(self) -> Weights | None:
        """The model that all clients were sent; ``None`` where they were sent different ones."""
        models = [self.start(reply) for reply in self]
        if all(model is models[0] for model in models):
            return models[0]
        return None

    def _mean_start(self, name: str, rho: torch.Tensor) -> torch.Tensor:
        """What the clients started from; averaged where they were sent different tensors."""
        starts = [self.start(reply)[name] for reply in self]
        if _are_the_same(starts):
            return starts[0]
        return weighted_mean(starts, rho)

    def _step(self, name: str, rho: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the updates of one tensor, flat; in memory of its own."""
        matrix = self.matrix
        factors = (rho * scales).to(matrix.dtype)
        columns = matrix.columns[name]
        step = matrix.memory.empty((columns.stop - columns.start,), matrix.dtype)
        for place, block in matrix.blocks(name):
            torch.mv(block.T, factors, out=step[place])
        return step

    def _differs_by_class(self, name: str) -> bool:
        """Whether a tensor is of the output layer, and some clients do not label all classes."""
        if self.labelled is None or not self.spec.output:
            return False
        output_layer, _ = self.spec.output
        return self.spec.layers.get(name) == output_layer

    def _step_by_class(self, name: str, rho: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """As :meth:`_step` for the output layer: a class is averaged over its labellers."""
        assert self.labelled is not None and self.spec.output is not None
        class_axis = self.spec.output[1] if name.endswith("weight") else 0

        # The weights of the clients that label a class have the same sum as those of all clients.
        share = rho[:, None] * torch.as_tensor(self.labelled)
        compensation = rho.sum() / share.sum(0).clamp(min=LEAST_SHARE)
        share = share * compensation * scales[:, None]

        updates = self.matrix.by_class(name, class_axis)
        step = torch.einsum("nc,nc...->c...", share.to(updates.dtype), updates)
        return step.movedim(0, class_axis)

    def average_buffers(self, weights: Aggregation, policy: str) -> dict[str, torch.Tensor]:
        """The buffers that at least one client sent, averaged over those that sent them.

        Args:
            weights: as for :meth:`average`.
            policy: one of :data:`BUFFER_POLICIES`.
        """
        averaged: dict[str, torch.Tensor] = {}
        if policy == "local":
            return averaged
        chosen = weights if policy == "aggregation" else sample_shares(self)
        same_rho = None if is_by_layer(chosen) else self._rho_of(chosen)  # type: ignore[arg-type]
        # Buffers that the same replies sent, with the same weights -> their names.
        alike: dict[tuple[tuple[int, ...], tuple[float, ...], torch.dtype], list[str]] = {}
        for name in self.spec.buffers:
            rows = []
            for row, reply in enumerate(self):
                if reply.buffers is not None and name in reply.buffers:
                    rows.append(row)
            if not rows:
                continue
            values = [self[row].buffers[name] for row in rows]  # type: ignore[index]
            if values[0].is_floating_point():
                rho = self._weights_of(name, chosen) if same_rho is None else same_rho
                rho = rho[rows]
                key = (tuple(rows), tuple(rho.tolist()), values[0].dtype)
                alike.setdefault(key, []).append(name)
            else:
                # A counter: a fraction of it means nothing, so the largest is taken.
                averaged[name] = torch.stack(values).amax(0)
        for (some, factors, _), names in alike.items():
            averaged.update(self._mean_buffers(names, some, factors))
        return averaged

    def _mean_buffers(
        self, names: Sequence[str], rows: Sequence[int], factors: Sequence[float]
    ) -> dict[str, torch.Tensor]:
        """The weighted means of some buffers, as one vector: a model may have hundreds of them.

        Args:
            names: of the buffers, of one type.
            rows: of the replies that sent them.
            factors: weights of these replies.
        """
        vectors = []
        for row in rows:
            buffers = self[row].buffers or {}
            vectors.append(torch.cat([buffers[name].reshape(-1) for name in names]))
        rho = torch.tensor(factors, dtype=torch.float64)
        if not rho.any():
            # Only clients of weight 0 sent them: their plain mean.
            rho = torch.ones_like(rho)
        mean = weighted_mean(vectors, rho)

        found = {}
        first = self[rows[0]].buffers or {}
        sizes = [first[name].numel() for name in names]
        for name, part in zip(names, mean.split(sizes), strict=True):
            # Of its own memory: the parts of a vector would hold all of it.
            found[name] = part.clone().view(first[name].shape)
        return found


def _are_the_same(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are equal; one tensor of several models is several after a resume."""
    first = tensors[0]
    return all(tensor is first or torch.equal(tensor, first) for tensor in tensors)


def _are_close(first: Weights, second: Weights) -> bool:
    """Whether two updates differ by rounding only."""
    return all(torch.allclose(first[name], second[name], rtol=1e-5, atol=0.0) for name in first)
