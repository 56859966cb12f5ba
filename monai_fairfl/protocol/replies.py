# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The replies of one exchange, and the averages of what they carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from monai_fairfl.protocol.averages import Aggregation, uniform
from monai_fairfl.protocol.averages_of_replies import Averaging, averaged_buffers, reduced_buffers
from monai_fairfl.protocol.geometry import Geometry
from monai_fairfl.protocol.measured import LEAST_PARTS, Expected
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.update_matrix import UpdateMatrix
from monai_fairfl.protocol.values import Estimate, Weights

EXPECTED = Expected()


def _most_parts(spec: ModelSpec, request: Request | None) -> int:
    """How many classes or layers of the model a measurement may have."""
    classes = 0 if request is None else spec.classes(request.weights)
    # Each layer has a parameter or more; one value more is the mean.
    return max(LEAST_PARTS, len(spec.parameters) + classes + 1)


class Replies(list[Reply]):
    """The replies of one exchange, as a list that is sorted by client and id.

    Measurements are checked here, and nowhere else, whatever engine brought the reply. Those that
    are malformed or not finite are dropped and listed in :attr:`not_finite`. Those that are outside
    of their range, or that nobody asked for, are dropped and listed in :attr:`dropped`, with the
    reason. So code that reads ``reply.measurements`` of a reply in this list need not check them.

    Args:
        replies: the replies, in any order.
        requests: the requests that they answer. The weights of a request are the model from which
            its client started.
        spec: the model's tensors.
        missing: client -> why it is absent ("timeout", "refused: ...", "ignored: ...",
            "error: ...", "quarantined: ...").
        matrix: the updates as rows, in the order of the sorted replies; ``None``: it is made here.
        not_finite: id of a reply -> names of the measurements that were dropped from it before.
        expected: the measurements that are accepted, with their ranges.
        dropped: id of a reply -> name of a measurement -> why it was dropped from it before.
        shortened: clients whose updates a guard multiplied by a factor, see :meth:`scaled`.
        groups: clients whose updates are nearly the same, see :meth:`sharing`.

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
        *,
        missing: Mapping[str, str] | None = None,
        matrix: UpdateMatrix | None = None,
        not_finite: Mapping[int, list[str]] | None = None,
        expected: Expected = EXPECTED,
        dropped: Mapping[int, Mapping[str, str]] | None = None,
        shortened: Iterable[str] = (),
        groups: Sequence[Sequence[str]] = (),
    ):
        super().__init__()
        self.shortened = frozenset(shortened)
        self.requests = {request.id: request for request in requests}
        self.expected = expected
        self.not_finite = dict(not_finite or {})
        self.dropped = dict(dropped or {})
        for reply in sorted(replies, key=lambda reply: (reply.client, reply.id)):
            request = self.requests.get(reply.id)
            found = expected.checked(reply, request, partial(_most_parts, spec, request))
            if found.not_finite:
                self.not_finite[reply.id] = found.not_finite
            if found.dropped:
                self.dropped[reply.id] = found.dropped
            self.append(replace(reply, measurements=found.usable))
        self.spec = spec
        self.missing = dict(missing or {})
        self._matrix = matrix
        present = set(self.clients)
        groups = [tuple(client for client in group if client in present) for group in groups]
        self.groups = [group for group in groups if len(group) > 1]

    @property
    def clients(self) -> list[str]:
        """Names of the present clients, sorted."""
        return sorted({reply.client for reply in self})

    def why_dropped(self, name: str) -> dict[str, str]:
        """Map each client whose measurement ``name`` was dropped to the reason."""
        reasons: dict[str, str] = {}
        for id, request in self.requests.items():
            if name in self.not_finite.get(id, ()):
                reasons[request.client] = "no finite number"
            elif name in self.dropped.get(id, {}):
                reasons[request.client] = self.dropped[id][name]
        return dict(sorted(reasons.items()))

    def start(self, reply: Reply) -> Weights:
        """The model that the client of ``reply`` received: name of a tensor -> tensor."""
        return self.requests[reply.id].weights

    def local(self, reply: Reply) -> dict[str, torch.Tensor]:
        """The model that the client trained: the received one plus its update, and its buffers."""
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
                self._matrix.put(row, reply.update)
        return self._matrix

    @cached_property
    def geometry(self) -> Geometry:
        """Inner products of the updates."""
        return Geometry(self.matrix, self.spec, self.labelled, self.alike)

    def copies_of(self, client: str) -> frozenset[str]:
        """The clients whose updates are nearly the same as this client's, itself included."""
        for group in self.groups:
            if client in group:
                return frozenset(group)
        return frozenset({client})

    @property
    def alike(self) -> np.ndarray:
        """Which updates are copies of which, shape (N, N); each is its own."""
        alike = np.eye(len(self), dtype=bool)
        for row, reply in enumerate(self):
            copies = self.copies_of(reply.client) - {reply.client}
            alike[row] |= [other.client in copies for other in self]
        return alike

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
        """Leave out some replies, whose clients then count as missing.

        Args:
            excluded: id of a reply -> the reason.
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
            missing=missing,
            matrix=matrix,
            not_finite=self.not_finite,
            expected=self.expected,
            dropped=self.dropped,
            shortened=self.shortened,
            groups=self.groups,
        )

    def scaled(self, factors: Mapping[int, float]) -> Replies:
        """Multiply some updates by a factor. Their clients are then :attr:`shortened`.

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

    def sharing(self, groups: Sequence[Sequence[str]]) -> Replies:
        """These replies, where the clients of each group share one weight and one contribution.

        The group counts as one client, for which its first member speaks, see :meth:`shared`.

        Args:
            groups: of at least two clients each.
        """
        if not groups:
            return self
        sharing = self.rebuilt(self, self.missing, self._matrix)
        sharing.groups = [*self.groups, *map(tuple, groups)]
        return sharing

    def shared(self, values: Mapping[str, float | Estimate]) -> dict[str, Any]:
        """``values`` of clients, those of a group divided by its number; shares stay shares.

        Within a group the samples decide who has how much of it.

        >>> sent = [Reply(name, {}, 1, id=id) for id, name in enumerate("ABC")]
        >>> replies = Replies(sent, [], ModelSpec(())).sharing([("A", "C")])
        >>> shared = replies.shared({"A": 0.2, "B": 0.4, "C": 0.4})
        >>> {name: round(value, 4) for name, value in shared.items()}
        {'A': 0.2143, 'B': 0.5714, 'C': 0.2143}
        """
        if not self.groups:
            return dict(values)
        samples = {reply.client: reply.num_samples for reply in self}
        found = dict(values)
        for group in self.groups:
            members = [client for client in group if client in values]
            together = sum(float(values[client]) for client in members) / len(group)
            samples_of_group = sum(samples[client] for client in members)
            for client in members:
                own = together * samples[client] / samples_of_group
                found[client] = _moved(values[client], own, 1 / len(group))
        before = sum(float(value) for value in values.values())
        after = sum(float(value) for value in found.values())
        are_shares = math.isclose(before, 1.0) and min(map(float, values.values())) >= 0
        if not are_shares or after <= 0:
            return found
        return {
            client: _moved(value, float(value) / after, 1 / after)
            for client, value in found.items()
        }

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
        averaged = self._averaging.average(weights, start, scale)
        averaged.update(self.average_buffers(weights, buffers))
        return averaged

    def averages(
        self, weights: Sequence[Mapping[str, float]], start: Weights
    ) -> list[dict[str, torch.Tensor]]:
        """The parameters of several averages, from one reading of the updates.

        Args:
            weights: for each average, client -> weight; a client that is left out counts as 0. All
                updates must be finite, and all clients label all classes.
            start: as for :meth:`average`.
        """
        return self._averaging.averages(weights, start)

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
        found = self._averaging.reduced(reduce, start, scale)
        found.update(reduced_buffers(self._with_buffers_of_first, self.spec, reduce, buffers))
        return found

    def average_buffers(self, weights: Aggregation, policy: str) -> dict[str, torch.Tensor]:
        """The buffers that at least one client sent, averaged over those that sent them.

        Args:
            weights: as for :meth:`average`.
            policy: one of :data:`BUFFER_POLICIES`.
        """
        return averaged_buffers(self._with_buffers_of_first, self.spec, weights, policy)

    @property
    def _with_buffers_of_first(self) -> Sequence[Reply]:
        """These replies, where copies have the buffers of their group's first client.

        The others' may not belong to the update that they repeat.
        """
        if not self.groups:
            return self
        buffers = {reply.client: reply.buffers for reply in self}
        for group in self.groups:
            buffers.update(dict.fromkeys(group, buffers[group[0]]))
        return [replace(reply, buffers=buffers[reply.client]) for reply in self]

    @property
    def _averaging(self) -> Averaging:
        """The averages of the updates."""
        clients = [reply.client for reply in self]
        starts = [self.start(reply) for reply in self]
        return Averaging(clients, starts, self.matrix, self.labelled, self.spec)


def _moved(value: float | Estimate, to: float, factor: float) -> float | Estimate:
    """Another value, whose standard error is that of the first one times ``factor``."""
    if not isinstance(value, Estimate):
        return to
    stderr = None if value.stderr is None else value.stderr * factor
    return Estimate(to, stderr, value.n)
