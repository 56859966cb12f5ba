# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""The replies of one exchange: their rows, inner products and averages.

All arrays are in the order of the replies, which are sorted by client. The updates are the rows of
one matrix U, shape (N, P); :math:`G = U U^T` holds every cosine, norm and distance between weighted
sums of updates, and the next model is :math:`w_0 + \rho^T U`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from monai_fairfl.messages import ModelSpec, Reply, Request, Weights, bias_of, weight_of

Aggregation = np.ndarray | Mapping[str, np.ndarray]
"""The clients' weights, shape (N,); or layer -> those of this layer."""

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""A rule that looks at each coordinate by itself: values of shape (N, ...) -> shape (...)."""

BLOCK = 65536
"""Columns per float32 product: one over millions of columns is wrong by 1e-3, blocks by 3e-7."""

ZERO_NORM = 1e-12
"""A shorter vector has no direction: its cosines are 0."""

LEAST_SHARE = 1e-300  # in place of 0 where nobody who labels a class has any weight


# ---- weights that sum to one


def normalise(values: Sequence[float] | np.ndarray, floor: float = 0.0) -> np.ndarray:
    r"""Divide scores by their sum, so that they sum to one.

    .. math:: \rho_i = \max(v_i, f) / \sum_j \max(v_j, f)

    Args:
        values: finite scores, shape (N,).
        floor: f, at least 0: a lower score counts as f.

    Returns:
        Weights between 0 and 1, shape (N,); the same for all if every score counts as 0.

    >>> normalise([1.0, 3.0, -1.0]).tolist()
    [0.25, 0.75, 0.0]
    """
    scores = np.maximum(np.asarray(values, float), floor)
    total = scores.sum()
    return uniform(scores) if total <= 0 else scores / total


def uniform(clients: Sequence[Any] | np.ndarray) -> np.ndarray:
    """The same weight for every client, 1 / N.

    >>> uniform(["A", "B"]).tolist()
    [0.5, 0.5]
    """
    return np.full(len(clients), 1 / max(len(clients), 1))


def sample_shares(replies: Sequence[Reply]) -> np.ndarray:
    r"""FedAvg's weights :math:`p_i = n_i / \sum_j n_j`, n the images of one local epoch.

    >>> sample_shares([Reply("A", {}, num_samples=30), Reply("B", {}, num_samples=10)]).tolist()
    [0.75, 0.25]
    """
    return normalise([float(reply.num_samples) for reply in replies])


def capped(weights: np.ndarray, most: float) -> np.ndarray:
    r"""Weights of which none is above a limit; what is cut off goes to the others in proportion.

    .. math:: \rho'_i = \min(\lambda \rho_i, L), \qquad \sum_i \rho'_i = \sum_i \rho_i

    with the one :math:`\lambda` that keeps the sum. Where all others have no weight, they share
    what is cut off equally.

    Args:
        weights: from 0, shape (N,).
        most: from 1 on, the limit in multiples of the equal share 1/N; below 1, the limit as a
            share of the whole, and at least 1/N.

    >>> import numpy as np
    >>> capped(np.array([5.0, 2.0, 1.0]), 1.5).tolist()
    [4.0, 2.6666666666666665, 1.3333333333333333]
    """
    total = weights.sum()
    equal = 1 / len(weights)
    limit = (most * equal if most >= 1 else max(most, equal)) * total
    found = weights.copy()
    at_limit = np.zeros(len(weights), dtype=bool)
    while (found[~at_limit] > limit).any():
        at_limit |= found > limit
        rest = total - limit * at_limit.sum()
        sum_of_free = weights[~at_limit].sum()
        found[at_limit] = limit
        if sum_of_free > 0:
            # The quotient first: the product of a tiny weight may be 0.
            found[~at_limit] = weights[~at_limit] / sum_of_free * rest
        elif not at_limit.all():
            found[~at_limit] = rest / (~at_limit).sum()
    return found


def in_each_layer(weights: Aggregation, change: Callable[[np.ndarray], Any]) -> Any:
    """Change weights, those of each layer by themselves where they are by layer."""
    if isinstance(weights, Mapping):
        return {layer: change(of_layer) for layer, of_layer in weights.items()}
    return change(weights)


def weights_of_model(recorded: Mapping[str, Any]) -> dict[str, float]:
    """client -> weight in the whole model, of a record: the mean over layers where it has these.

    >>> weights_of_model({"conv": {"A": 0.5, "B": 0.5}, "fc": {"B": 1.0}})
    {'A': 0.25, 'B': 0.75}
    """
    if not any(isinstance(value, Mapping) for value in recorded.values()):
        return dict(recorded)
    clients = sorted({client for of_layer in recorded.values() for client in of_layer})
    means = {}
    for client in clients:
        total = sum(of_layer.get(client, 0.0) for of_layer in recorded.values())
        means[client] = total / len(recorded)
    return means


# ---- the updates


def blocks(updates: Sequence[Weights], name: str) -> Iterator[tuple[slice, torch.Tensor]]:
    """One parameter of some updates as rows of a matrix, a block of its columns at a time.

    The last bits of a product depend on how rows lie in memory, so each block is copied into one
    matrix, however the updates arrived. A block fits the processor's cache, and all updates do not.

    Args:
        updates: name -> tensor, each of the same shapes.
        name: of the parameter.

    Yields:
        The place within the flat parameter, and its values, shape (N, columns), of at least single
        precision. The next block takes the same memory.

    >>> updates = [{"w": torch.eye(2)}, {"w": torch.ones(2, 2)}]
    >>> [(place.stop, rows.tolist()) for place, rows in blocks(updates, "w")]
    [(4, [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])]
    """
    flat = [update[name].reshape(-1) for update in updates]
    size = flat[0].numel()
    kind = torch.promote_types(flat[0].dtype, torch.float32)
    memory = torch.empty(len(flat) * min(size, BLOCK), dtype=kind)
    for begin in range(0, size, BLOCK):
        place = slice(begin, min(begin + BLOCK, size))
        columns = place.stop - begin
        rows = memory[: len(flat) * columns].view(len(flat), columns)
        for row, values in enumerate(flat):
            rows[row] = values[place]
        yield place, rows


def by_class(updates: Sequence[Weights], name: str, axis: int) -> torch.Tensor:
    """A parameter of the output layer, whose classes are on ``axis``: shape (N, classes, ...)."""
    return torch.stack([update[name] for update in updates]).movedim(1 + axis, 1)


@dataclass(eq=False)
class Geometry:
    """Gram matrices of one exchange's updates: of the whole model, per layer and per output class.

    Each is float64, shape (N, N), and made once.

    Args:
        updates: name of a parameter -> tensor, one of each client.
        spec: names the layers and the output layer.
        labelled: which update was trained on which class of the output layer, shape (N, classes);
            ``None``: all on all.

    >>> updates = [{"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([1.0, 1.0])}]
    >>> geometry = Geometry(updates, ModelSpec(("w",), layers={"w": "fc"}))
    >>> geometry.gram.tolist(), round(geometry.cosine([1, 0], [0, 1]), 4)
    ([[9.0, 3.0], [3.0, 2.0]], 0.7071)
    """

    updates: Sequence[Weights]
    spec: ModelSpec
    labelled: np.ndarray | None = None
    known_classes: dict[str, np.ndarray] = field(default_factory=dict, init=False)
    """Output layer -> Gram matrices of its classes, of every layer that was asked for."""

    @cached_property
    def layers(self) -> Mapping[str, np.ndarray]:
        """Layer (owning module) -> Gram matrix of that layer's parameters."""
        found: dict[str, Any] = {}
        for name in self.spec.parameters:
            total = torch.zeros(len(self.updates), len(self.updates), dtype=torch.float64)
            for _, block in blocks(self.updates, name):
                product = (block @ block.T).double()
                # Float32 may overflow; values that are not finite themselves stay so in float64.
                if not torch.isfinite(product).all():
                    product = block.double() @ block.double().T
                total += product
            layer = self.spec.layers.get(name, name)
            found[layer] = found.get(layer, 0) + total.numpy()
        return found

    @property
    def sizes_of_layers(self) -> dict[str, int]:
        """Layer -> number of its parameters."""
        found: dict[str, int] = {}
        for name in self.spec.parameters:
            layer = self.spec.layers.get(name, name)
            found[layer] = found.get(layer, 0) + self.updates[0][name].numel()
        return found

    @cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix of the whole model: the sum over layers."""
        return np.sum(list(self.layers.values()), axis=0)

    def classes(self, output_layer: str | None = None) -> np.ndarray:
        """Gram matrices of the output layer's class rows, bias appended; shape (classes, N, N).

        Args:
            output_layer: the module's name, see :meth:`ModelSpec.output_layer`.

        Raises:
            ValueError: where no trainable layer has this name.
        """
        found = self.spec.output_layer(output_layer)
        if found is None or weight_of(found[0]) not in self.spec.parameters:
            raise ValueError(
                f"no output layer {output_layer!r} with a trainable weight: name the module that "
                "makes the logits (output_layer)"
            )
        module, axis = found
        if module not in self.known_classes:
            rows = []
            for name, class_axis in ((weight_of(module), axis), (bias_of(module), 0)):
                if name in self.spec.parameters:
                    of_classes = by_class(self.updates, name, class_axis).double()
                    rows.append(of_classes.reshape(*of_classes.shape[:2], -1))
            vectors = torch.cat(rows, dim=2)
            self.known_classes[module] = torch.einsum("icd,jcd->cij", vectors, vectors).numpy()
        return self.known_classes[module]

    @property
    def norms(self) -> np.ndarray:
        """Length of each update; shape (N,)."""
        return np.sqrt(np.diag(self.gram))

    @property
    def norms_of_layers(self) -> dict[str, np.ndarray]:
        """Layer -> length of each update in this layer; shape (N,)."""
        return {layer: np.sqrt(np.diag(gram)) for layer, gram in self.layers.items()}

    def cosines_with_sum(
        self, factors: Sequence[float] | np.ndarray, without_own: bool = False
    ) -> np.ndarray:
        r"""The cosine of each update with one weighted sum of the updates, shape (N,).

        .. math:: \cos(u_i, \sum_j a_j u_j)

        Args:
            factors: a, shape (N,).
            without_own: whether the sum for update i leaves out update i itself.
        """
        factors = np.asarray(factors, float)
        found = np.zeros(len(factors))
        for row, itself in enumerate(np.eye(len(factors))):
            others = factors * (1 - itself) if without_own else factors
            found[row] = self.cosine(itself, others)
        return found

    def cosine(self, a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
        r"""The cosine of two weighted sums of updates; 0 when either is shorter than 1e-12.

        .. math:: \cos(\sum_i a_i u_i, \sum_j b_j u_j)

        The output row of a class that nobody in one of the sums labels is left out of both, because
        that sum was not trained on it.

        Args:
            a: factors of the first sum, shape (N,).
            b: factors of the second sum, shape (N,).
        """
        a = np.asarray(a, float)
        b = np.asarray(b, float)
        gram = self.gram
        if self.labelled is not None:
            in_a = self.labelled[a != 0].any(axis=0)
            in_b = self.labelled[b != 0].any(axis=0)
            gram = gram - self.classes()[~(in_a & in_b)].sum(axis=0)
        return cosine(gram, a, b)

    def squared_distances_from_mean(self, weights: np.ndarray) -> np.ndarray:
        """The squared distance of each update from their weighted mean, shape (N,).

        An output row of the mean is that of the updates that label its class, as in
        :meth:`Replies.average`; of an update that does not label it, the row is left out.

        Args:
            weights: of the updates, shape (N,); they sum to one.
        """
        if self.labelled is None:
            squared = _from_mean(self.gram, weights)
        else:
            classes = self.classes()
            squared = _from_mean(self.gram - classes.sum(axis=0), weights)
            for of_class, gram in zip(self.labelled.T, classes, strict=True):
                share = weights * of_class
                if share.any():
                    squared += np.where(of_class, _from_mean(gram, share / share.sum()), 0.0)
        return np.maximum(squared, 0.0)

    def recorded(self) -> dict[str, Any]:
        """What the ledger has of the inner products, plain JSON."""
        output = self.spec.output
        if output is not None and weight_of(output[0]) in self.spec.parameters:
            # Also where the strategy did not read them.
            self.classes()
        classes = {layer: grams.tolist() for layer, grams in self.known_classes.items()}
        return {"whole": self.gram.tolist(), "classes": classes}


def cosine(gram: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    r"""The cosine of two weighted sums of vectors, from the vectors' Gram matrix G.

    .. math:: a^T G b / \sqrt{a^T G a \cdot b^T G b}

    >>> import numpy as np
    >>> round(cosine(np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 1.0])), 4)
    0.7071
    """
    length_a = np.sqrt(max(a @ gram @ a, 0.0))
    length_b = np.sqrt(max(b @ gram @ b, 0.0))
    if length_a < ZERO_NORM or length_b < ZERO_NORM:
        return 0.0
    return float(np.clip(a @ gram @ b / (length_a * length_b), -1.0, 1.0))


def _from_mean(gram: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The squared distance of each vector from the weighted mean of all, shape (N,)."""
    found: np.ndarray = np.diag(gram) - 2 * gram @ weights + weights @ gram @ weights
    return found


# ---- the exchange


class Replies(list[Reply]):
    """The replies of one exchange, as a list that is sorted by client and id.

    Each was checked when it arrived, see :meth:`monai_fairfl.messages.Expected.accepted`: code that
    reads ``reply.measurements`` need not check them.

    Args:
        replies: the replies, in any order.
        requests: the requests that they answer. The weights of a request are the model from which
            its client started.
        spec: the model's tensors.
        missing: client -> why it is absent ("timeout", "refused: ...", "ignored: ...",
            "error: ...", "quarantined: ...").
        dropped: id of a reply -> name of a measurement -> why it was dropped.
        shortened: clients whose updates a guard multiplied by a factor, see :meth:`after`.
        groups: clients whose updates are nearly the same, see :meth:`shared`.

    >>> asked = [Request("B", "measure", {}, id=0), Request("A", "measure", {}, id=1)]
    >>> sent = [request.reply(measurements={"score": 0.8}) for request in asked]
    >>> Replies(sent, asked, ModelSpec(())).clients
    ['A', 'B']
    """

    def __init__(
        self,
        replies: Iterable[Reply],
        requests: Iterable[Request],
        spec: ModelSpec,
        *,
        missing: Mapping[str, str] = {},
        dropped: Mapping[int, Mapping[str, str]] = {},
        shortened: Iterable[str] = (),
        groups: Sequence[Sequence[str]] = (),
    ):
        super().__init__(sorted(replies, key=attrgetter("client", "id")))
        self.requests = {request.id: request for request in requests}
        self.spec = spec
        self.missing = dict(missing)
        self.dropped = dict(dropped)
        self.shortened = frozenset(shortened)
        present = self.clients
        groups = [tuple(one for one in group if one in present) for group in groups]
        self.groups = [group for group in groups if len(group) > 1]

    @property
    def clients(self) -> list[str]:
        """Names of the present clients, sorted."""
        return sorted({reply.client for reply in self})

    @property
    def updates(self) -> list[Weights]:
        """The updates, in the order of the replies."""
        return [reply.update for reply in self if reply.update is not None]

    @cached_property
    def labelled(self) -> np.ndarray | None:
        """Which reply was trained on which class of the output layer, shape (N, classes).

        ``None``: all were trained on all classes. A reply that names no class counts as trained on
        all of them.
        """
        classes = max((len(reply.labelled) for reply in self), default=0)
        labelled = np.array([reply.labelled or (True,) * classes for reply in self], dtype=bool)
        return None if labelled.all() else labelled

    def why_dropped(self, name: str) -> dict[str, str]:
        """Map each client whose measurement ``name`` was dropped to the reason."""
        dropped = self.dropped.items()
        reasons = [(self.requests[id].client, of[name]) for id, of in dropped if name in of]
        return dict(sorted(reasons))

    def start(self, reply: Reply) -> Weights:
        """The model that the client of ``reply`` received: name of a tensor -> tensor."""
        return self.requests[reply.id].weights

    def local(self, reply: Reply) -> dict[str, torch.Tensor]:
        """The model that the client trained: the received one plus its update, and its buffers."""
        model = dict(self.start(reply))
        for name, change in (reply.update or {}).items():
            # An update may have a longer type than the model.
            start = model[name]
            model[name] = (start + change).to(start.dtype)
        model.update(reply.buffers or {})
        return model

    @cached_property
    def geometry(self) -> Geometry:
        """Inner products of the updates."""
        return Geometry(self.updates, self.spec, self.labelled)

    # ---- some of them, and changed ones

    def rebuilt(self, replies: Iterable[Reply], missing: Mapping[str, str]) -> Replies:
        """Some of the replies of the same exchange; what was dropped of any stays on record.

        Args:
            replies: some of these.
            missing: client -> why it is absent.
        """
        return Replies(
            replies,
            self.requests.values(),
            self.spec,
            missing=missing,
            dropped=self.dropped,
            shortened=self.shortened,
            groups=self.groups,
        )

    def without(self, excluded: Mapping[int, str]) -> Replies:
        """Leave out some replies, whose clients then count as missing.

        Args:
            excluded: id of a reply -> the reason.
        """
        if not excluded:
            return self
        why = {reply.client: excluded[reply.id] for reply in self if reply.id in excluded}
        kept = [reply for reply in self if reply.id not in excluded]
        return self.rebuilt(kept, {**self.missing, **why})

    def after(self, factors: Mapping[int, float], groups: Collection[Sequence[str]]) -> Replies:
        """These replies as verdicts of a guard change them.

        Args:
            factors: id of a reply -> factor of its update, whose client is then :attr:`shortened`.
            groups: of at least two clients each, who share one weight, see :meth:`shared`.
        """
        if not factors and not groups:
            return self
        changed = []
        for reply in self:
            if reply.id in factors:
                factor, update = factors[reply.id], reply.update or {}
                update = {name: factor * change for name, change in update.items()}
                reply = replace(reply, update=update)
            changed.append(reply)
        found = self.rebuilt(changed, self.missing)
        found.groups = [*self.groups, *map(tuple, groups)]
        found.shortened = self.shortened | {r.client for r in self if r.id in factors}
        return found

    def shared(self, values: np.ndarray) -> np.ndarray:
        """``values`` of the clients, those of k copies divided by k; shares stay shares.

        >>> import numpy as np
        >>> sent = [Reply(name, {}, 1, id=id) for id, name in enumerate("ABC")]
        >>> replies = Replies(sent, [], ModelSpec(())).after({}, [("A", "C")])
        >>> replies.shared(np.array([0.25, 0.5, 0.25])).round(4).tolist()
        [0.1667, 0.6667, 0.1667]
        """
        if not self.groups:
            return values
        copies = np.ones(len(self))
        for group in self.groups:
            for row, reply in enumerate(self):
                if reply.client in group:
                    copies[row] = len(group)
        divided: np.ndarray = values / copies
        are_shares = math.isclose(values.sum(), 1.0) and values.min() >= 0
        return normalise(divided) if are_shares else divided

    # ---- averages

    def average(
        self,
        weights: Aggregation,
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: np.ndarray | None = None,
    ) -> dict[str, torch.Tensor]:
        r"""The averaged model: parameters by the weights, buffers by their policy.

        .. math:: w = w_0 + \sum_i \rho_i s_i \Delta_i

        Where some clients do not label a class, its row of the output layer is averaged over those
        who do.

        Args:
            weights: :math:`\rho`, shape (N,), or layer -> such weights; uniform in a layer that is
                not named.
            buffers: ``"aggregation"``, by the weights of their
                layer; ``"samples"``, by the shares of images; ``"local"``, not at all.
            start: :math:`w_0`, the model that the steps are added to; ``None``: what the clients
                started from, averaged with the same weights where these differ.
            scale: s, factor of each update (a unit length, a step size), shape (N,); 1 when
                ``None``.
        """
        factors = torch.ones(len(self), dtype=torch.float64)
        if scale is not None:
            factors = torch.as_tensor(scale, dtype=torch.float64)
        averaged: dict[str, torch.Tensor] = {}
        for name in self.spec.parameters:
            rho = self._rho(name, weights)
            origin = self._common_start(name) if start is None else start[name]
            if origin is None:
                origin = _mean([self.start(reply)[name] for reply in self], rho)
            moved = self._step(name, rho, factors)
            # In place: the step lies in memory of its own.
            moved += origin
            averaged[name] = moved.to(origin.dtype)
        averaged.update(self.average_buffers(weights, buffers))
        return averaged

    def reduced(
        self,
        reduce: Reduce,
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: np.ndarray | None = None,
    ) -> dict[str, torch.Tensor]:
        """The model of a rule that looks at each coordinate by itself, such as the median.

        Where the clients began from different tensors and ``start`` is ``None``, the rule sees
        their models, else their updates. A class of the output layer is that of the clients who
        label it. Counters take the maximum.

        Args:
            reduce: values of shape (N, ...) -> shape (...).
            buffers: as for :meth:`average`; ``"samples"`` is as ``"aggregation"``.
            start: the model that the steps are added to; ``None``: what the clients started from.
            scale: factor of each update, shape (N,); 1 when ``None``.
        """
        found = self.average_buffers(uniform(self), buffers)
        for name, averaged in found.items():
            if averaged.is_floating_point():
                sent = [reply.buffers or {} for reply in self]
                found[name] = reduce(torch.stack([of[name] for of in sent if name in of]))
        for name in self.spec.parameters:
            values = torch.stack([update[name] for update in self.updates])
            if scale is not None:
                factors = torch.as_tensor(scale).view(-1, *[1] * (values.ndim - 1))
                values = (factors * values).to(values.dtype)
            origin = self._common_start(name) if start is None else start[name]
            if origin is None:
                starts = torch.stack([self.start(reply)[name] for reply in self])
                origin = torch.zeros_like(starts[0])
                values = starts.to(values.dtype) + values
            step = reduce(values)
            class_axis = self.spec.class_axis(name)
            if self.labelled is not None and class_axis is not None:
                # Where nobody labels a class, all count.
                who = torch.as_tensor(self.labelled | ~self.labelled.any(0))
                of_classes = zip(who.T, values.movedim(1 + class_axis, 0), strict=True)
                rows = [reduce(of_class[labellers]) for labellers, of_class in of_classes]
                step = torch.stack(rows).movedim(0, class_axis)
            found[name] = (origin.to(step.dtype) + step).to(origin.dtype)
        return found

    def average_buffers(self, weights: Aggregation, policy: str) -> dict[str, torch.Tensor]:
        """The buffers that at least one client sent, averaged over those that sent them.

        Args:
            weights: as for :meth:`average`.
            policy: as ``buffers`` for :meth:`average`.
        """
        averaged: dict[str, torch.Tensor] = {}
        if policy == "local":
            return averaged
        if policy == "samples":
            weights = sample_shares(self)
        for name in self.spec.buffers:
            sent = [reply.buffers or {} for reply in self]
            rows = [row for row, of_reply in enumerate(sent) if name in of_reply]
            tensors = [sent[row][name] for row in rows]
            if not tensors:
                continue
            if tensors[0].is_floating_point():
                rho = self._rho(name, weights)[rows]
                # Where only clients of weight 0 sent it: their plain mean.
                averaged[name] = _mean(tensors, rho if rho.any() else torch.ones_like(rho))
            else:
                # A counter: a fraction of it means nothing, so the largest is taken.
                averaged[name] = torch.stack(tensors).amax(0)
        return averaged

    def _rho(self, name: str, weights: Aggregation) -> torch.Tensor:
        """The weights of the clients in a tensor's layer, shape (N,)."""
        if isinstance(weights, Mapping):
            layer = self.spec.layers.get(name, name)
            weights = weights[layer] if layer in weights else uniform(self)
        return torch.as_tensor(weights, dtype=torch.float64)

    def _common_start(self, name: str) -> torch.Tensor | None:
        """The tensor that all clients started from; ``None`` where they differ."""
        first_model = self.start(self[0])
        first = first_model[name]
        for reply in self:
            model = self.start(reply)
            # One model of several clients is looked into once: it may be read from disk.
            if model is first_model:
                continue
            # One tensor of several models is several after a resume.
            tensor = model[name]
            if tensor is not first and not torch.equal(tensor, first):
                return None
        return first

    def _step(self, name: str, rho: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the updates of one tensor, in its shape; in memory of its own."""
        class_axis = self.spec.class_axis(name)
        if self.labelled is None or class_axis is None:
            changes = self.updates[0][name]
            kind = torch.promote_types(changes.dtype, torch.float32)
            step = torch.empty(changes.numel(), dtype=kind)
            for place, block in blocks(self.updates, name):
                torch.mv(block.T, (rho * factors).to(kind), out=step[place])
            return step.view(changes.shape)

        # A class is averaged over its labellers, whose weights get the sum of all clients'.
        share = rho[:, None] * torch.as_tensor(self.labelled)
        compensation = rho.sum() / share.sum(0).clamp(min=LEAST_SHARE)
        share = share * compensation * factors[:, None]
        updates = by_class(self.updates, name, class_axis)
        step = torch.einsum("nc,nc...->c...", share.to(updates.dtype), updates)
        return step.movedim(0, class_axis)


def _mean(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    r"""The mean :math:`\sum_i w_i t_i / \sum_i w_i`, summed in float64, in the tensors' own type.

    A weight of 0 leaves its tensor out, so that a value that is not finite does no harm there.
    """
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for weight, tensor in zip(weights, tensors, strict=True):
        if weight:
            total = total + weight * tensor.double()
    return (total / weights.sum()).to(tensors[0].dtype)
