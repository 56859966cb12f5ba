# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are random numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.base import Guard, Verdict, check_threshold
from monai_fairfl.guards.directions import (
    LEAST_PARAMETERS,
    cosines,
    is_judged,
    others_of,
    pairs_among,
)
from monai_fairfl.replies import ZERO_NORM, Replies


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

    def __init__(self, most: float = 4.0):
        check_threshold(self, "most", most, above=0)
        self.most = most

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        if not is_judged(replies):
            return {}
        in_common, parameters = _in_common(replies)
        verdicts = {}
        for row, reply in enumerate(replies):
            others = others_of(row, len(replies))
            if len(others) < 2 or parameters[row, others].max() < LEAST_PARAMETERS:
                continue
            own = float(in_common[row, others].mean())
            usual = float(pairs_among(others, in_common).mean())
            if own < self.most and usual > 10 * self.most:
                reason = (
                    f"its update has as much in common with the others as random numbers: "
                    f"{own:.3g}, where random numbers have 1 and the others {usual:.0f}"
                )
                evidence = {"in_common": own, "among_others": usual}
                verdicts[reply.id] = Verdict("quarantine", reason, evidence)
        return verdicts


def _in_common(replies: Replies) -> tuple[np.ndarray, np.ndarray]:
    """What each pair of updates has in common.

    Returns:
        The mean over layers of parameters times squared cosine, and the number of parameters in the
        layers that both trained; each of shape (N, N).
    """
    layers = replies.geometry.layers
    grams = np.stack(list(layers.values()))  # shape (layers, N, N)
    sizes = [replies.geometry.sizes_of_layers[layer] for layer in layers]
    parameters = np.array(sizes, float)[:, None, None]
    total = (parameters * cosines(grams) ** 2).sum(axis=0)

    # A layer that a client does not train says nothing of it.
    trained = np.diagonal(grams, axis1=1, axis2=2) > ZERO_NORM**2
    both = trained[:, :, None] & trained[:, None, :]
    return total / np.maximum(both.sum(axis=0), 1.0), (both * parameters).sum(axis=0)
