# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are finite, yet so long that the average would be theirs alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.protocol.replies import Replies


class Outsized(Guard):
    """Quarantines an update longer than ``times`` the median of the others', and longer than the
    model it began from.

    Training of one round moves a model by a fraction of its length. Beside clients that sent next
    to nothing, an honest update is long too; the model's length tells it from one that would poison
    the model.

    Args:
        times: above which a length is no accident.
    """

    def __init__(self, times: float = 1000.0):
        self.times = times

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        norms = replies.geometry.norms
        verdicts = {}
        for row, reply in enumerate(replies):
            others = np.delete(norms, row)
            if not others.size or not norms[row] > self.times * np.median(others) > 0:
                continue
            model = [
                tensor
                for name, tensor in replies.start(reply).items()
                if name in replies.spec.parameters
            ]
            if norms[row] > math.sqrt(
                sum(float(tensor.double().square().sum()) for tensor in model)
            ):
                reason = f"its update has length {norms[row]:.4g}, the median of the others is {np.median(others):.4g}"
                verdicts[reply.id] = Verdict(
                    "quarantine", f"{reason} (allowed: {self.times:g} times that)"
                )
        return verdicts
