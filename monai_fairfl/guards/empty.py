# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that hold next to nothing earn nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, medians_of_others, quarantine
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.arguments import argument

MOST_EMPTY = 0.5
"""Share of the parameters that others train in which an update may be empty."""


@dataclass(eq=False, repr=False)
class Empty(Guard):
    """Quarantines an update that is much shorter than the others'.

    Methods that reward an unusual direction pay a client that sends zeros: a zero vector is at a
    right angle to all others. Where everybody sends next to nothing, such as at the end of a
    learning-rate schedule, nobody stands out and all updates pass.

    An update is empty, too, if it is so short in the layers that have most of the parameters which
    the others train: numbers in the output layer alone have a usual length.

    Beside a single other client a short update may be the honest one of the two, so that only one
    without any length is empty.

    Args:
        share: of the median length of the others, below which an update is empty, or a layer of it.
            In real trainings the shortest honest update had a fifth of that length.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, 0]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Empty().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].reason
    ([2], 'its update has length 0, the median of the others is 1: it adds nothing')
    """

    share: float = argument(1e-3, "(0, 1]")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        geometry = replies.geometry
        medians = medians_of_others(geometry.norms)
        is_empty = self._is_empty(geometry.norms, medians)

        # The share of the parameters that the others train which lie in a client's empty layers.
        trained, empty = np.zeros(len(replies)), np.zeros(len(replies))
        sizes = geometry.sizes_of_layers
        for layer, norms in geometry.norms_of_layers.items():
            of_others = medians_of_others(norms)
            size = sizes[layer] * (of_others > ZERO_NORM)
            trained += size
            empty += size * self._is_empty(norms, of_others)
        shares = empty / np.maximum(trained, 1.0)

        short = (
            "its update has length {length:.4g}, the median of the others is "
            "{median_of_others:.4g}: it adds nothing"
        )
        hollow = (
            "its update adds nothing in the layers that have {empty_share:.0%} of the parameters "
            "which the others train"
        )
        numbers = {"length": geometry.norms, "median_of_others": medians}
        return {
            **quarantine(replies, shares > MOST_EMPTY, hollow, empty_share=shares),
            **quarantine(replies, is_empty, short, **numbers),
        }

    def _is_empty(self, norms: np.ndarray, medians: np.ndarray) -> np.ndarray:
        """Which updates, or layers of them, are too short beside the medians of the others."""
        least = self.share * medians
        if len(norms) <= LEAST_OTHERS:
            least = np.minimum(least, ZERO_NORM)
        return norms < least
