# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a strategy that can be exchanged: how contributions weigh, how updates are averaged,
and a client's next model, better the more it contributed.

Every strategy takes them as arguments, and :func:`~monai_fairfl.strategies.compose` puts them into
one that is made.

Robust weightings and averages bound what a few clients can do to the model. None is used by
default: each also takes something from an honest client that is unlike the others.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from monai_fairfl.errors import did_you_mean
from monai_fairfl.messages import TRAINING, Weights
from monai_fairfl.replies import (
    ZERO_NORM,
    Aggregation,
    Replies,
    normalise,
    sample_shares,
    uniform,
)
from monai_fairfl.utils.arguments import Checked, Component, argument, check_value

ROUNDING = 1e-6
"""Of inner products of float32 vectors, relative."""

STEPS = 200
"""Most steps of Weiszfeld's algorithm; it converges in some tens."""

Details = dict[str, Any]
"""Quantities for ledger and report: name -> numbers of the clients, shape (N,)."""


class Weighting(Component, ABC):
    """How contributions become the weights of the average.

    >>> import numpy as np
    >>> from monai_fairfl import ModelSpec, Replies, Reply, normalise
    >>> class Helpers(Weighting):
    ...     def __call__(self, replies, contributions):
    ...         return normalise(contributions > 0)
    >>> sent = [Reply("A", None, 30), Reply("B", None, 10), Reply("C", None, 10)]
    >>> replies = Replies(sent, [], ModelSpec(()))
    >>> Helpers()(replies, np.array([0.3, 0.1, -0.2])).tolist()
    [0.5, 0.5, 0.0]
    """

    @abstractmethod
    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        """The clients' weights, in the order of the replies: not negative, summing to one."""


class Uniform(Weighting):
    """The same weight for every client, whatever it contributed.

    >>> from monai_fairfl.strategies import FedAvg
    >>> FedAvg(weighting=Uniform()).name
    'FedAvg-Uniform'
    """

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        return uniform(replies)


class BySamples(Weighting):
    """FedAvg's weights: each client's share of the images.

    >>> from monai_fairfl.strategies import FedCE
    >>> FedCE("cos", weighting=BySamples()).name
    'FedCE-cos-BySamples'
    """

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        return sample_shares(replies)


class Proportional(Weighting):
    r"""Weights proportional to a power of the contribution: :math:`\rho_i \propto \max(c_i, 0)^q`.

    Args:
        power: q, 0 to 50; 0 is uniform, large values leave all to the greatest contributor.

    Raises:
        ConfigError: when ``power`` is no number in its range.

    >>> import numpy as np
    >>> from monai_fairfl import ModelSpec, Replies
    >>> nobody = Replies([], [], ModelSpec(()))
    >>> Proportional(power=2)(nobody, np.array([3.0, 1.0, -2.0])).tolist()
    [0.9, 0.1, 0.0]
    """

    power: float = argument(1.0, "[0, 50]")

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        return normalise(np.maximum(contributions, 0.0) ** self.power)


class Krum(Weighting):
    r"""All weight to the updates with the nearest neighbours (Blanchard et al., NeurIPS 2017).

    .. math:: s_i = \sum_{j \in N_i} \lVert \Delta_i - \Delta_j \rVert^2

    with :math:`N_i` the :math:`n - f - 2` updates nearest to :math:`\Delta_i`. The ``chosen``
    updates of lowest score share the weight equally: one is Krum, several are Multi-Krum.
    Distances come from the Gram matrix; ties go to the client that is first by name. While
    ``chosen`` is below n, the hospital that is least like the others has no weight.

    Args:
        attackers: f, clients that may be hostile. The proof needs n of at least 2 f + 3; with
            fewer present clients each is scored by its nearest neighbour at least.
        chosen: m, updates that are averaged; of fewer clients, all.

    >>> Krum(attackers=2, chosen=3).chosen
    3
    """

    attackers: int = argument(1, "[0, inf)")
    chosen: int = argument(1, "[1, inf)")

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        count = len(replies)
        # Each update's squared distances to all; no larger than rounding they are 0, as its own.
        geometry = replies.geometry
        squares = geometry.norms**2
        distances = np.stack(list(map(geometry.squared_distances_from_mean, np.eye(count))))
        # The same both ways to the bit, or rounding would decide ties.
        distances = np.minimum(distances, distances.T)
        is_apart = distances > ROUNDING * (squares[:, None] + squares)
        ordered = np.sort(np.where(is_apart, distances, 0.0), axis=1)[:, 1:]
        scores = ordered[:, : max(1, count - self.attackers - 2)].sum(axis=1)
        best = np.argsort(scores, kind="stable")[: self.chosen]
        weights = np.zeros(count)
        weights[best] = 1 / len(best)
        return weights


class GeometricMedian(Weighting):
    r"""Weights whose average is the geometric median of the updates (Pillutla et al., 2022).

    .. math:: z = \arg\min_z \sum_i \lVert \Delta_i - z \rVert, \qquad
              \rho_i \propto 1 / \max(\nu, \lVert \Delta_i - z \rVert)

    Weiszfeld's algorithm needs inner products only. It withstands fewer than half of the clients.
    An update far from the others has little weight, and never none.

    Args:
        smoothing: :math:`\nu`, as a share of the median length of the updates. Inner products of
            float32 updates tell no smaller distances from none.

    Raises:
        ValueError: when ``smoothing`` is not a finite number above 0.

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> moves = {"A": [1.0, 2.0], "B": [2.0, 1.0], "C": [1.0, 1.0], "D": [91.0, 91.0]}
    >>> start = {"w": torch.zeros(2)}
    >>> asked = [Request(site, "train", start, id=n) for n, site in enumerate(moves)]
    >>> sent = [Reply(s, {"w": torch.tensor(moves[s])}, 10, id=n) for n, s in enumerate(moves)]
    >>> replies = Replies(sent, asked, ModelSpec(("w",)))
    >>> GeometricMedian()(replies, np.zeros(4)).round(3).tolist()
    [0.333, 0.333, 0.333, 0.002]
    """

    smoothing: float = argument(1e-3, "(0, inf)")

    def __call__(self, replies: Replies, contributions: np.ndarray) -> np.ndarray:
        least = max(self.smoothing * float(np.median(replies.geometry.norms)), ZERO_NORM)
        weights = np.full(len(replies), 1 / len(replies))
        for _ in range(STEPS):
            # The lengths of Delta_i - z, where z is the weighted mean of the updates.
            squared = replies.geometry.squared_distances_from_mean(weights)
            distances = np.maximum(np.sqrt(squared), least)
            previous, weights = weights, (1 / distances) / (1 / distances).sum()
            if np.abs(weights - previous).max() < 1e-12:
                break
        return weights


class Average(Component, ABC):
    """How updates and weights become the next global model.

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> class HalfStep(Average):
    ...     def __call__(self, replies, weights, **how):
    ...         return replies.average(weights, **{**how, "scale": np.full(len(replies), 0.5)})
    >>> asked = Request("A", "train", {"w": torch.zeros(1)})
    >>> sent = Reply("A", {"w": torch.tensor([3.0])}, 10)
    >>> replies = Replies([sent], [asked], ModelSpec(("w",)))
    >>> HalfStep()(replies, np.ones(1))["w"].item()
    1.5
    """

    uses_weights: bool = field(default=True, init=False)
    """Whether the strategy's weights play a part; else the ledger has equal ones."""

    @abstractmethod
    def __call__(self, replies: Replies, weights: Aggregation, **how: Any) -> Weights:
        """The averaged model; ``how`` has the other arguments of :meth:`Replies.average`."""


class ClippedMean(Average):
    r"""The strategy's average of updates that were cut to the median length.

    .. math:: w = w_0 + \sum_i \rho_i \min(1, m / \lVert \Delta_i \rVert) \Delta_i

    with :math:`m = \mathrm{median}_j \lVert \Delta_j \rVert`. Lengths are as the strategy scales
    the updates. About half of all honest clients are cut in every round.

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> moves, start = {"A": [1.0], "B": [2.0], "C": [90.0]}, {"w": torch.zeros(1)}
    >>> asked = [Request(site, "train", start, id=n) for n, site in enumerate(moves)]
    >>> sent = [Reply(s, {"w": torch.tensor(moves[s])}, 10, id=n) for n, s in enumerate(moves)]
    >>> replies = Replies(sent, asked, ModelSpec(("w",)))
    >>> weights = np.array([0.5, 0.25, 0.25])
    >>> how = {"buffers": "aggregation", "start": None, "scale": None}
    >>> step = ClippedMean()(replies, weights, **how)["w"]
    >>> round(step.item(), 4)  # C counts with 2 in place of 90; the plain mean is 23.5
    1.5
    """

    def __call__(self, replies: Replies, weights: Aggregation, **how: Any) -> Weights:
        given = np.ones(len(replies)) if how["scale"] is None else how["scale"]
        norms = abs(given) * replies.geometry.norms
        median = np.median(norms)
        clipped = np.where(norms > median, given * median / np.maximum(norms, ZERO_NORM), given)
        return replies.average(weights, **{**how, "scale": clipped})


class TrimmedMean(Average):
    r"""The mean of each coordinate without its extremes (Yin et al., ICML 2018, Definition 2).

    The ``trim`` largest and the ``trim`` smallest values of each coordinate are left out. It
    withstands ``trim`` clients. Weights of the strategy play no part.

    Args:
        trim: values left out on each side, at least 1; of fewer than ``2 trim + 1`` clients as many
            as leave one or two.

    >>> import torch
    >>> TrimmedMean().mean(torch.tensor([[1.0], [2.0], [3.0], [100.0]])).tolist()
    [2.5]
    """

    trim: int = argument(1, "[1, inf)")

    uses_weights = False

    def __call__(self, replies: Replies, weights: Aggregation, **how: Any) -> Weights:
        return replies.reduced(self.mean, **how)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The trimmed mean over the first axis of values of shape (N, ...), in their own type."""
        count = len(values)
        left_out = min(self.trim, (count - 1) // 2)
        ordered = values.sort(dim=0).values
        return ordered[left_out : count - left_out].double().mean(0).to(values.dtype)


class Median(TrimmedMean):
    r"""The median of each coordinate (Yin et al., ICML 2018, Definition 1), without weights.

    .. math:: w_d = w_{0,d} + \mathrm{median}_i \, \Delta_{i,d}

    It withstands fewer than half of the clients. With an even number it is the mean of the two
    values in the middle. Weights of the strategy play no part; an entry that one hospital alone
    needs to move stays where it is.

    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> moves, start = {"A": [1.0], "B": [2.0], "C": [90.0]}, {"w": torch.zeros(1)}
    >>> asked = [Request(site, "train", start, id=n) for n, site in enumerate(moves)]
    >>> sent = [Reply(s, {"w": torch.tensor(moves[s])}, 10, id=n) for n, s in enumerate(moves)]
    >>> replies = Replies(sent, asked, ModelSpec(("w",)))
    >>> Median()(replies, {}, buffers="aggregation", start=None, scale=None)["w"].item()
    2.0
    """

    trim: int = field(default=sys.maxsize, init=False)


class Reward(Component, ABC):
    """The model each client continues from, made of the new global model and the contributions.

    >>> import numpy as np
    >>> import copy, torch
    >>> from monai_fairfl.messages import ModelSpec, Reply
    >>> from monai_fairfl.replies import Replies
    >>> class ForHelpers(Reward):
    ...     def __call__(self, replies, old, new, contributions):
    ...         models = {}
    ...         for client, contribution in zip(replies.clients, contributions):
    ...             models[client] = copy.deepcopy(new if contribution > 0 else old)
    ...         return models, {}
    >>> replies = Replies([Reply("A", None, 30), Reply("B", None, 10)], [], ModelSpec(()))
    >>> old, new = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    >>> ForHelpers()(replies, old, new, np.array([0.3, -0.2]))[0]
    {'A': {'w': tensor([1.])}, 'B': {'w': tensor([0.])}}
    """

    gives: ClassVar[frozenset[str]] = frozenset()
    """Names of its quantities for the ledger."""

    shares_global_step: bool = field(default=False, init=False)
    """Whether it shares out the global *step*: the mean of the updates, added to the global model,
    whatever models the clients began from. Else the global model is the mean of the clients' own
    models.
    """

    @abstractmethod
    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        """Client -> its next model, in tensors of its own; and quantities for the ledger.

        Args:
            replies: of the exchange that trained; ``replies.start(reply)`` is what a client had.
            old: the global model before the round.
            new: the global model after it.
            contributions: of the clients, in the order of the replies.
        """


class Sparsified(Reward):
    r"""CGSV's reward: the global step less its smallest entries (Xu et al., NeurIPS 2021, Eq. 4-5).

    Client i continues from what it had before training plus the :math:`q_i` entries of largest
    magnitude of the global step, :math:`q_i = D \, \tanh(\beta c_i) / \max_j \tanh(\beta c_j)`. It
    keeps its own buffers. The greatest contributor receives the whole step. The global model grows
    by the mean of the updates, whatever models they began from, so that what is withheld from one
    client is not taken from the others.

    Args:
        beta: altruism, above 0: the larger, the more equal the rewards; ``math.inf``: the whole
            step for everybody.
        ratio: the formula of a client's ratio :math:`q_i / D`: ``"tanh"`` as above, or ``"share"``:
            :math:`\max(c_i, 0) / \max_j c_j`.
        mask_scope: what the mask, and so D, extends over: ``"layer"``: each tensor by itself;
            ``"global"``: the model as one vector.
        rounding: of :math:`q_i` to a whole number: ``"ceil"`` or ``"floor"``.
        leave_one: the authors' code: :math:`q_i` is at most D - 1, even for the greatest
            contributor.
        rest: the other entries: ``"before"``, what the client had before training (CGSV), or
            ``"own"``, what it trained itself, so that a client that receives nothing trains alone
            (CFFL).

    Details: ``kept``, the share of the step's entries that each client received.
    """

    beta: float = argument(1.0, "(0, inf]")
    ratio: str = argument("tanh", ("tanh", "share"))
    mask_scope: str = argument("layer", ("layer", "global"))
    rounding: str = argument("ceil", ("ceil", "floor"))
    leave_one: bool = False
    rest: str = argument("before", ("before", "own"))

    gives = frozenset({"kept"})
    shares_global_step = True

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        names = replies.spec.parameters
        step = {name: new[name] - old[name] for name in names}
        # Each client's next model where it receives no entry of the step.
        if self.rest == "own":
            models = [replies.local(reply) for reply in replies]
        else:
            models = [{**replies.start(reply), **(reply.buffers or {})} for reply in replies]

        # The masks choose in each tensor by itself, or in all tensors as one vector.
        ratios = self.ratios(contributions)
        scopes = [list(names)] if self.mask_scope == "global" else [[name] for name in names]
        received = np.zeros(len(replies))
        for scope in scopes:
            vector = torch.cat([step[name].flatten() for name in scope])
            sizes = [step[name].numel() for name in scope]
            counts = [self._count(ratio, vector.numel()) for ratio in ratios]
            received += counts
            masks = keep_largest(vector, counts)
            for reply, model, mask in zip(replies, models, masks, strict=True):
                start = replies.start(reply)
                for name, part in zip(scope, mask.split(sizes), strict=True):
                    # In the chosen entries, the client continues from its start plus the step.
                    moved = start[name] + step[name]
                    model[name] = torch.where(part.view(moved.shape), moved, model[name])

        size = sum(tensor.numel() for tensor in step.values())
        return dict(zip(replies.clients, models, strict=True)), {"kept": received / size}

    def ratios(self, contributions: np.ndarray) -> np.ndarray:
        r"""Each client's ratio :math:`q_i / D` before rounding, in [0, 1]; the largest is 1.

        Where no contribution is above 0, every ratio is 1.

        >>> import numpy as np
        >>> Sparsified(ratio="share").ratios(np.array([0.2, 0.1, -0.3])).tolist()
        [1.0, 0.5, 0.0]
        """
        if self.ratio == "tanh" and self.beta == math.inf:
            return np.ones(len(contributions))
        # The numerators of the formula, where a contribution below 0 counts as 0.
        numerators = np.maximum(contributions, 0.0)
        if self.ratio == "tanh":
            numerators = np.tanh(self.beta * numerators)
        largest = numerators.max()
        return numerators / largest if largest > 0 else np.ones(len(numerators))

    def _count(self, ratio: float, size: int) -> int:
        """q_i: how many of ``size`` entries a client receives (Eq. 4-5)."""
        # Rounded first, as 0.3 * 10 is a little above 3 in floating point.
        exact = round(float(ratio) * size, 9)
        count = math.ceil(exact) if self.rounding == "ceil" else math.floor(exact)
        most = size - 1 if self.leave_one else size
        return max(min(count, most), 0)


class Mixed(Reward):
    r"""ShapFed's reward, a mixture of two models (Tastan et al., IJCAI 2024, Eq. 10).

    .. math:: \bar w_i = \gamma_i w_s + (1 - \gamma_i) w_i

    The more a client contributed, the closer it comes to the global model :math:`w_s`; the rest is
    its own.

    Args:
        scale: ``"none"``: the contribution itself, in [0, 1]; ``"max"``: divided by the largest, so
            that the greatest contributor receives the global model.

    Details: ``mixing``, the coefficient of each client.

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> old, new = {"w": torch.zeros(1)}, {"w": torch.tensor([5.0])}
    >>> asked = [Request("A", "train", old, id=0), Request("B", "train", old, id=1)]
    >>> update = {"w": torch.tensor([2.0])}
    >>> sent = [Reply("A", update, 10, id=0), Reply("B", update, 10, id=1)]
    >>> replies = Replies(sent, asked, ModelSpec(("w",)))
    >>> models, details = Mixed()(replies, old, new, np.array([1.0, 0.25]))
    >>> models["A"]["w"].item(), models["B"]["w"].item(), details["mixing"].tolist()
    (5.0, 2.75, [1.0, 0.25])
    """

    scale: str = argument("none", ("none", "max"))

    gives = frozenset({"mixing"})

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        # The coefficients gamma_i, in [0, 1].
        mixing = np.clip(contributions, 0.0, 1.0)
        if self.scale == "max" and mixing.max() > 0:
            mixing = mixing / mixing.max()
        models: dict[str, Weights] = {}
        for reply, gamma in zip(replies, mixing.tolist(), strict=True):
            local = replies.local(reply)
            model: dict[str, torch.Tensor] = {}
            for name, tensor in new.items():
                # A tensor that the client does not send stays with it, and a counter is its own.
                if name not in local:
                    continue
                model[name] = local[name]
                if tensor.is_floating_point():
                    model[name] = torch.lerp(local[name], tensor, gamma)
            models[reply.client] = model
        return models, {"mixing": mixing}


def keep_largest(values: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Masks of the ``counts[i]`` entries of largest magnitude; ties go to the lower index.

    One sort of the values serves all masks: NumPy's, which is many times as fast as a stable one.

    Args:
        values: any shape.
        counts: entries that each mask chooses, 0..size.

    >>> keep_largest(torch.tensor([1.0, -3.0, 2.0]), [2, 0])
    [tensor([False,  True,  True]), tensor([False, False, False])]
    """
    # NumPy has no bfloat16; float64 takes more than twice as long to sort as float32.
    kind = torch.promote_types(values.dtype, torch.float32)
    magnitudes = values.abs().flatten().to(kind).numpy()
    ascending = np.sort(magnitudes)
    masks = []
    for count in counts:
        mask = np.zeros(len(magnitudes), bool)
        if count:
            # Of the entries equal to the smallest that is chosen, the first ones.
            smallest = ascending[-count]
            mask = magnitudes > smallest
            ties = np.flatnonzero(magnitudes == smallest)
            mask[ties[: count - np.count_nonzero(mask)]] = True
        masks.append(torch.from_numpy(mask).view(values.shape))
    return masks


@dataclass(frozen=True)
class Parts(Checked):
    """What a strategy has in place of the method's own parts; every strategy takes them.

    Args:
        weighting: makes the weights of the average from the contributions; ``None``: the method's
            own weights.
        reward: makes the model from which each client continues from the contributions; ``None``:
            the method's own reward, if it has one.
        average: makes the next global model from updates and weights; ``None``: the weighted mean.
        training: numbers that go with every training request, and switch on training handlers of
            the clients: ``prox_mu`` (FedProx), ``sam_rho`` and ``gsam_alpha`` (FedISM),
            ``reset_optimizer``, ``local_epochs``.
        cap: the largest weight of any client; if a method has weights for each layer, in each
            layer. A value of 1 or more counts equal shares, 1/N; a value below 1 is a share of the
            total. The weight above the cap goes to the others in proportion to their weights.
            ``None``: no limit.
        clip_reports: k, at least 0. A number that clients report, and from which the strategy
            computes weights, is moved to the limit median +- k MAD of the present clients if it is
            beyond it, and the ledger notes this. MAD is the median distance to the median; if more
            than half of the clients report one number, this is the limit. If the strategy says
            which side brings weight (:attr:`~monai_fairfl.strategies.Strategy.gains_when`), only
            that side is limited. Scores of coalitions and similarities of features are not.
            ``None``: no limit. Honest hospitals differ: at k = 3, 5 to 28 % of the errors that
            honest sites of FedCE reported in real trainings would be beyond the limit of either
            side.

    Raises:
        ConfigError: if a part is of another class, or a number is out of its range.
        ValueError: if ``training`` has an unknown key.

    >>> Parts(cap=0.0)
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: cap must be a number in (0, inf), got 0.0
    """

    weighting: Weighting | None = argument(None, Weighting)
    reward: Reward | None = argument(None, Reward)
    average: Average | None = argument(None, Average)
    training: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = argument(None, "(0, inf)")
    clip_reports: float | None = argument(None, "[0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value in self.training.items():
            if key not in TRAINING:
                raise ValueError(f"training has no key {key!r}{did_you_mean(str(key), TRAINING)}")
            kind = "int" if key == "local_epochs" else "float"
            check_value(f"{key} in training", value, kind, TRAINING[key][0])
        if "gsam_alpha" in self.training and "sam_rho" not in self.training:
            raise ValueError(
                "gsam_alpha in training needs sam_rho, the radius: GSAM is a refinement of SAM"
            )
