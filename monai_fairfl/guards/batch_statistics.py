# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's running statistics that no images can have given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low

import numpy as np
import torch

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.replies import Replies

MEAN = "running_mean"
VARIANCE = "running_var"
EPSILON = 1e-5
"""Added to variances, as BatchNorm adds it: smaller ones do not differ."""

LEAST_OTHERS = 2
"""Beside a single other client nobody can say whose statistics are unusual."""


class BatchStatistics(Guard):
    """Quarantines a client whose BatchNorm statistics are impossible, or far from all others'.

    The statistics are averaged like weights, and one negative variance makes the global model's
    output NaN. A variance is impossible below 0. Statistics are far from another client's where, in
    any channel, the variances differ by more than the factor ``times``, or the means by more than
    ``deviations`` of the other's standard deviations. They are far from the others' where they are
    far from at least half of them.

    Args:
        times: largest plausible ratio of two variances. In real trainings honest ones reached 18.
        deviations: largest plausible distance of two means, in standard deviations. In real
            trainings honest ones reached 1.9.
    """

    def __init__(self, times: float = 200.0, deviations: float = 20.0):
        self.times = times
        self.deviations = deviations

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        verdicts: dict[int, Verdict] = {}
        for reply in replies:
            negative = _negative_variance(reply)
            if negative:
                reason = f"{negative!r} has a negative variance, which no images can give"
                verdicts[reply.id] = Verdict("quarantine", reason)

        possible = [reply for reply in replies if reply.id not in verdicts]
        for reply in possible:
            others = [other for other in possible if other is not reply]
            if len(others) < LEAST_OTHERS:
                continue
            ratio = median_low([_ratio_of_variances(reply, other) for other in others])
            shift = median_low([_shift_of_means(reply, other) for other in others])
            if ratio > self.times or shift > self.deviations:
                reason = (
                    f"its BatchNorm statistics are far from the others': variances by a factor of "
                    f"{ratio:.3g} (allowed: {self.times:g}), means by {shift:.3g} standard "
                    f"deviations (allowed: {self.deviations:g})"
                )
                evidence = {"ratio_of_variances": ratio, "shift_of_means": shift}
                verdicts[reply.id] = Verdict("quarantine", reason, evidence)
        return verdicts


def _negative_variance(reply: Reply) -> str:
    """The name of the first variance below 0; empty where there is none."""
    for name, buffer in sorted((reply.buffers or {}).items()):
        if name.endswith(VARIANCE) and bool((buffer < 0).any()):
            return name
    return ""


def _ratio_of_variances(reply: Reply, other: Reply) -> float:
    """The largest ratio of two variances of one channel, at least 1."""
    largest = 0.0
    for variance, others_variance in _both(reply, other, VARIANCE):
        logarithms = torch.log((variance + EPSILON) / (others_variance + EPSILON))
        largest = max(largest, float(logarithms.abs().max()))
    return math.exp(min(largest, 700.0))


def _shift_of_means(reply: Reply, other: Reply) -> float:
    """The largest distance of two means of one channel, in the other's standard deviations."""
    buffers, others_buffers = reply.buffers or {}, other.buffers or {}
    largest = 0.0
    for name, mean in buffers.items():
        variance = others_buffers.get(name.removesuffix(MEAN) + VARIANCE)
        if not name.endswith(MEAN) or name not in others_buffers or variance is None:
            continue
        deviation = torch.sqrt(variance.double() + EPSILON)
        shift = (mean.double() - others_buffers[name].double()).abs() / deviation
        largest = max(largest, float(np.max(shift.numpy(), initial=0.0)))
    return largest


def _both(reply: Reply, other: Reply, suffix: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The buffers with this ending that both clients sent, in float64; none without entries."""
    others_buffers = other.buffers or {}
    found = []
    for name, buffer in (reply.buffers or {}).items():
        if name.endswith(suffix) and name in others_buffers and buffer.numel():
            found.append((buffer.double(), others_buffers[name].double()))
    return found
