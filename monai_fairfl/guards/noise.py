# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monai_fairfl.guards.base import (
    LEAST_PARAMETERS,
    Guard,
    Verdict,
    cosines,
    is_judged,
    others_of,
    pairs_among,
    quarantine,
)
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.arguments import argument


@dataclass(eq=False, repr=False)
class Noise(Guard):
    r"""Quarantines an update that has no more in common with the others than random numbers.

    The squared cosine of a random vector of s entries with any fixed one is 1 / s on average. So

    .. math:: T_i = \frac{1}{(N - 1) L} \sum_{j \ne i} \sum_l s_l \cos^2(\Delta_i^l, \Delta_j^l)

    is about 1 for noise, over the layers l with :math:`s_l` parameters. An honest hospital's update
    may be at a right angle to all others on the whole, but not in every layer: in real trainings
    its T was never below 33. The sign of a cosine does not count, so that a hospital whose images
    ask for the opposite is as safe as one that agrees.

    Nobody is judged where the others have little in common either, nor a client that trains fewer
    than 1,000 parameters in common with the others, such as the output layer alone.

    Args:
        most: T below which an update counts as noise.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(1000)}, torch.ones(3, 1000)
    >>> updates[2] = torch.randn(1000, generator=torch.Generator().manual_seed(0))  # C's
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Noise().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> {number: round(found.evidence["in_common"], 1) for number, found in verdicts.items()}
    {2: 0.8}
    """

    most: float = argument(4.0, "(0, inf)")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        count = len(replies)
        if count < 3 or not is_judged(replies):
            return {}
        layers = replies.geometry.layers
        grams = np.stack(list(layers.values()))  # shape (layers, N, N)
        sizes = replies.geometry.sizes_of_layers
        parameters = np.array([sizes[layer] for layer in layers], float)[:, None, None]

        # Of each pair, the mean over layers of s_l cos^2. A layer that a client does not train says
        # nothing of it.
        trained = np.diagonal(grams, axis1=1, axis2=2) > ZERO_NORM**2
        both = trained[:, :, None] & trained[:, None, :]
        total = (parameters * cosines(grams) ** 2).sum(axis=0)
        in_common = total / np.maximum(both.sum(axis=0), 1.0)

        others = [others_of(row, count) for row in range(count)]
        own = np.array([in_common[row, others[row]].mean() for row in range(count)])
        usual = np.array([pairs_among(rows, in_common).mean() for rows in others])
        shared = (both * parameters).sum(axis=0)
        np.fill_diagonal(shared, 0)
        found = (own < self.most) & (usual > 10 * self.most)
        reason = (
            "its update has as much in common with the others as random numbers: {in_common:.3g}, "
            "where random numbers have 1 and the others {among_others:.0f}"
        )
        found &= shared.max(axis=1) >= LEAST_PARAMETERS
        return quarantine(replies, found, reason, in_common=own, among_others=usual)
