# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Robust averages and weightings: parts that bound what a few clients can do to the model.

They go with any strategy, as its ``average`` or ``weighting``, and none is used by
default: each also takes something from an honest client that is unlike the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from monai_fairfl.replies import ZERO_NORM, Aggregation, Replies, uniform
from monai_fairfl.strategies.parts import Average, Weighting
from monai_fairfl.utils.arguments import argument

STEPS = 200
"""Most steps of Weiszfeld's algorithm; it converges in some tens."""


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

    def __call__(
        self, replies: Replies, weights: Aggregation, **how: Any
    ) -> dict[str, torch.Tensor]:
        given = np.ones(len(replies)) if how["scale"] is None else how["scale"]
        norms = abs(given) * replies.geometry.norms
        median = np.median(norms)
        clipped = np.where(norms > median, given * median / np.maximum(norms, ZERO_NORM), given)
        return replies.average(weights, **{**how, "scale": clipped})


class Median(Average):
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

    uses_weights = False

    def __call__(
        self, replies: Replies, weights: Aggregation, **how: Any
    ) -> dict[str, torch.Tensor]:
        return replies.reduced(lambda values: trimmed_mean(values, len(values)), **how)


@dataclass(eq=False, repr=False)
class TrimmedMean(Average):
    r"""The mean of each coordinate without its extremes (Yin et al., ICML 2018, Definition 2).

    The ``trim`` largest and the ``trim`` smallest values of each coordinate are left out. It
    withstands ``trim`` clients. Weights of the strategy play no part.

    Args:
        trim: values left out on each side, at least 1; of fewer than ``2 trim + 1`` clients as many
            as leave one or two.

    >>> import torch
    >>> from monai_fairfl.strategies.robust import trimmed_mean
    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [100.0]]), 1).tolist()
    [2.5]
    """

    trim: int = argument(1, "[1, inf)")

    uses_weights = False

    def __call__(
        self, replies: Replies, weights: Aggregation, **how: Any
    ) -> dict[str, torch.Tensor]:
        return replies.reduced(lambda values: trimmed_mean(values, self.trim), **how)


@dataclass(eq=False, repr=False)
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
        if count == 1:
            return uniform(replies)
        # Each update's squared distances to the others; its own 0 is the first.
        ordered = np.sort(replies.geometry.squared_distances(), axis=1)[:, 1:]
        scores = ordered[:, : max(1, count - self.attackers - 2)].sum(axis=1)
        best = np.argsort(scores, kind="stable")[: self.chosen]
        weights = np.zeros(count)
        weights[best] = 1 / len(best)
        return weights


@dataclass(eq=False, repr=False)
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
            moved = (1 / distances) / (1 / distances).sum()
            has_converged = bool(np.abs(moved - weights).max() < 1e-12)
            weights = moved
            if has_converged:
                break
        return weights


def trimmed_mean(values: torch.Tensor, trim: int) -> torch.Tensor:
    """The mean over the first axis without the largest and smallest values of each entry.

    Args:
        values: shape (N, ...).
        trim: values left out on each side; fewer where no one or two would stay.

    Returns:
        Shape (...), in the values' own type.
    """
    count = len(values)
    left_out = min(trim, (count - 1) // 2)
    ordered = values.sort(dim=0).values
    return ordered[left_out : count - left_out].double().mean(0).to(values.dtype)
