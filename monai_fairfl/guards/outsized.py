# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are finite, yet so long that the average would be theirs alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monai_fairfl.guards.base import Guard, Verdict, medians_of_others, quarantine
from monai_fairfl.replies import Replies
from monai_fairfl.utils.arguments import argument


@dataclass(eq=False, repr=False)
class Outsized(Guard):
    """Quarantines an update that is longer than the others' by far, and longer than the model.

    It must be longer than ``times`` the median of the others', and longer than the model that it
    began from. Training of one round moves a model by a fraction of its length. Beside clients that
    sent next to nothing, an honest update is long, too; the model's length distinguishes it from
    one that would poison the model.

    Args:
        times: above which a length is no accident.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, 1e6]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Outsized().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].reason
    ([2], 'its update has length 1e+06, the median of the others is 1 (allowed: 1000 times that)')
    """

    times: float = argument(1000.0, "(1, inf)")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        norms = replies.geometry.norms
        medians = medians_of_others(norms)
        far_longer = (norms > self.times * medians) & (medians > 0)
        for row in np.flatnonzero(far_longer):
            start = replies.start(replies[row])
            squares = [start[name].double().square().sum() for name in replies.spec.parameters]
            far_longer[row] = norms[row] > math.sqrt(sum(map(float, squares)))
        reason = (
            "its update has length {length:.4g}, the median of the others is "
            "{median_of_others:.4g} " + f"(allowed: {self.times:g} times that)"
        )
        return quarantine(replies, far_longer, reason, length=norms, median_of_others=medians)
