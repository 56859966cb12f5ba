# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that hold next to nothing earn nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.arguments import check_threshold
from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict
from monai_fairfl.guards.directions import others_of
from monai_fairfl.protocol.geometry import ZERO_NORM
from monai_fairfl.protocol.replies import Replies


class Empty(Guard):
    """Quarantines an update that is much shorter than the others'.

    Methods that reward an unusual direction pay a client that sends zeros: a zero vector is at a
    right angle to all others. Where everybody sends next to nothing, such as at the end of a
    learning-rate schedule, nobody stands out and all updates pass.

    Beside a single other client a short update may be the honest one of the two, so that only one
    without any length is empty.

    Args:
        share: of the median length of the others, below which an update is empty. In real
            trainings the shortest honest update had a fifth of that length.

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
        norms = replies.geometry.norms
        verdicts: dict[int, Verdict] = {}
        for row, reply in enumerate(replies):
            others = norms[others_of(row, len(norms))]
            if not others.size:
                continue
            median = float(np.median(others))
            allowed = self.share * median
            if others.size < LEAST_OTHERS:
                allowed = min(allowed, ZERO_NORM)
            if norms[row] < allowed:
                reason = (
                    f"its update has length {norms[row]:.4g}, the median of the others is "
                    f"{median:.4g}: it adds nothing"
                )
                evidence = {"length": float(norms[row]), "median_of_others": median}
                verdicts[reply.id] = Verdict("quarantine", reason, evidence)
        return verdicts
