# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that hold next to nothing earn nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, check_threshold
from monai_fairfl.guards.directions import medians_of_others
from monai_fairfl.replies import ZERO_NORM, Replies

MOST_EMPTY = 0.5
"""Share of the parameters that others train in which an update may be empty."""


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

    def __init__(self, share: float = 1e-3):
        check_threshold(self, "share", share, above=0, most=1)
        self.share = share

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        if len(replies) < 2:
            return {}
        norms = replies.geometry.norms
        medians = medians_of_others(norms)
        empty_shares = self._empty_shares(replies)
        verdicts = {}
        for row in np.flatnonzero((norms < self._least(medians)) | (empty_shares > MOST_EMPTY)):
            if norms[row] < self._least(medians)[row]:
                reason = (
                    f"its update has length {norms[row]:.4g}, the median of the others is "
                    f"{medians[row]:.4g}: it adds nothing"
                )
                evidence = {"length": float(norms[row]), "median_of_others": float(medians[row])}
            else:
                reason = (
                    f"its update adds nothing in the layers that have {empty_shares[row]:.0%} of "
                    "the parameters which the others train"
                )
                evidence = {"empty_share": float(empty_shares[row])}
            verdicts[replies[row].id] = Verdict("quarantine", reason, evidence)
        return verdicts

    def _least(self, medians: np.ndarray) -> np.ndarray:
        """The lengths below which updates, or a layer of them, are empty.

        Args:
            medians: of the others of each.
        """
        least = self.share * medians
        return least if len(medians) > LEAST_OTHERS else np.minimum(least, ZERO_NORM)

    def _empty_shares(self, replies: Replies) -> np.ndarray:
        """For each update, the share of the others' parameters that lie in its empty layers."""
        trained_by_others = np.zeros(len(replies))
        empty = np.zeros(len(replies))
        for layer, norms in replies.geometry.norms_of_layers.items():
            medians = medians_of_others(norms)
            size_for_others = replies.geometry.sizes_of_layers[layer] * (medians > ZERO_NORM)
            trained_by_others += size_for_others
            empty += size_for_others * (norms < self._least(medians))
        return empty / np.maximum(trained_by_others, 1.0)
