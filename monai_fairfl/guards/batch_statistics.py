# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's running statistics that no images can have given."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights

MEAN = "running_mean"
VARIANCE = "running_var"
COUNTER = "num_batches_tracked"
EPSILON = 1e-5
"""Added to variances, as BatchNorm adds it: smaller ones do not differ."""

MOST_BATCHES = 2**53
"""A counter above it was never counted. A little more, and adding 1 would make it negative."""

LEAST_OTHERS = 2
"""Beside a single other client nobody can say whose statistics are unusual."""


class BatchStatistics(Guard):
    """Quarantines a client whose BatchNorm statistics are impossible, or far from all others'.

    The statistics are averaged like weights, and one negative variance makes the global model's
    output NaN. A variance is impossible below 0, and so is a counter of batches, which is
    impossible above 2 ** 53, too. Statistics are far from another client's where, in any channel,
    the variances differ by more than the factor ``times``, or the means by more than ``deviations``
    of the other's standard deviations. They are far from the others' where they are far from at
    least half of them.

    InstanceNorm's statistics have the same names and count as well. What a client was sent and
    sends back unchanged is not its doing.

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
            reason = _impossible(reply, replies.start(reply))
            if reason:
                verdicts[reply.id] = Verdict("quarantine", reason)

        possible = [reply for reply in replies if reply.id not in verdicts]
        if len(possible) <= LEAST_OTHERS:
            return verdicts
        ratios = _lower_median_of_others(_ratios_of_variances(possible))
        shifts = _lower_median_of_others(_shifts_of_means(possible))
        for reply, ratio, shift in zip(possible, ratios, shifts, strict=True):
            if ratio > self.times or shift > self.deviations:
                reason = (
                    f"its BatchNorm statistics are far from the others': variances by a factor of "
                    f"{ratio:.3g} (allowed: {self.times:g}), means by {shift:.3g} standard "
                    f"deviations (allowed: {self.deviations:g})"
                )
                evidence = {"ratio_of_variances": ratio, "shift_of_means": shift}
                verdicts[reply.id] = Verdict("quarantine", reason, evidence)
        return verdicts


def _impossible(reply: Reply, sent: Weights) -> str:
    """Which buffer has a value that no training gives, in words; empty where there is none."""
    for name, buffer in sorted((reply.buffers or {}).items()):
        kind = name.rpartition(".")[2]
        if kind == VARIANCE and bool((buffer < 0).any()):
            if not _is_unchanged(name, reply, sent):
                return f"{name!r} has a negative variance, which no images can give"
        if kind == COUNTER and buffer.numel():
            batches = int(buffer.max())
            is_possible = int(buffer.min()) >= 0 and batches <= MOST_BATCHES
            if not is_possible and not _is_unchanged(name, reply, sent):
                return f"{name!r} counts {batches} batches, which no training can do"
    return ""


def _is_unchanged(name: str, reply: Reply, sent: Weights) -> bool:
    """Whether a client returned a buffer as it was sent."""
    assert reply.buffers is not None
    return name in sent and bool((reply.buffers[name] == sent[name]).all())


def _ratios_of_variances(replies: list[Reply]) -> np.ndarray:
    """The largest ratio of two variances of one channel, for each pair; shape (N, N), from 1."""
    largest = np.zeros((len(replies), len(replies)))
    for name in _names_of(replies, VARIANCE):
        logarithms = np.log(_stacked(replies, name) + EPSILON)
        differences = np.abs(logarithms[:, None] - logarithms[None])
        largest = np.fmax(largest, _largest_of_channels(differences))
    return np.exp(np.minimum(largest, math.log(1e300)))


def _shifts_of_means(replies: list[Reply]) -> np.ndarray:
    """The largest distance of a client's mean from another's, in the other's standard deviations.

    Returns:
        Client by other, shape (N, N).
    """
    largest = np.zeros((len(replies), len(replies)))
    variances_of = _names_of(replies, VARIANCE)
    for name in _names_of(replies, MEAN):
        of_variance = name.removesuffix(MEAN) + VARIANCE
        if of_variance not in variances_of:
            continue
        means = _stacked(replies, name)
        deviations = np.sqrt(_stacked(replies, of_variance) + EPSILON)
        if means.shape != deviations.shape:
            continue
        shifts = np.abs(means[:, None] - means[None]) / deviations[None]
        largest = np.fmax(largest, _largest_of_channels(shifts))
    return largest


def _names_of(replies: list[Reply], kind: str) -> list[str]:
    """The names of the buffers of one kind that have the same shape at all who sent them."""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for reply in replies:
        for name, buffer in (reply.buffers or {}).items():
            if name.rpartition(".")[2] == kind and buffer.numel():
                shapes.setdefault(name, set()).add(tuple(buffer.shape))
    return sorted(name for name, found in shapes.items() if len(found) == 1)


def _stacked(replies: list[Reply], name: str) -> np.ndarray:
    """A buffer of all clients, shape (N, channels), float64; NaN where one did not send it."""
    rows = []
    missing = []
    for row, reply in enumerate(replies):
        if name in (reply.buffers or {}):
            assert reply.buffers is not None
            rows.append(reply.buffers[name].double().flatten().numpy())
        else:
            rows.append(np.zeros(0))
            missing.append(row)
    channels = max(len(values) for values in rows)
    for row in missing:
        rows[row] = np.full(channels, np.nan)
    return np.stack(rows)


def _largest_of_channels(differences: np.ndarray) -> np.ndarray:
    """The largest over the last axis; 0 where nothing can be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        largest = np.fmax.reduce(differences, axis=-1)
    return np.nan_to_num(largest, nan=0.0, posinf=np.inf)


def _lower_median_of_others(of_pair: np.ndarray) -> list[float]:
    """For each row the median of the other columns, the lower one of two; at least one column."""
    medians = []
    for row, values in enumerate(of_pair):
        others = np.sort(np.delete(values, row))
        medians.append(float(others[(len(others) - 1) // 2]))
    return medians
