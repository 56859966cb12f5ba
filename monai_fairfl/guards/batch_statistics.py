# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's running statistics that no images can have given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch

from monai_fairfl.guards.arguments import check_threshold
from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict
from monai_fairfl.messages import Reply, Weights
from monai_fairfl.replies import Replies

MEAN = "running_mean"
VARIANCE = "running_var"
COUNTER = "num_batches_tracked"
EPSILON = 1e-5
"""Added to variances, as BatchNorm adds it: smaller ones do not differ."""

MOST_BATCHES = 2**31
"""No training of one round counts more. And counters that grow by this in every round stay whole
numbers for millions of rounds."""


class BatchStatistics(Guard):
    """Quarantines a client whose BatchNorm statistics are impossible, or far from all others'.

    The statistics are averaged like weights, and one negative variance makes the global model's
    output NaN. A variance is impossible below 0, and so is a counter of batches. A counter is
    impossible, too, if it is more than 2 ** 31 above the one that the client was sent. The global
    model has the largest counter, and every client goes on from it: so no bound on the counter
    itself tells who made it up.

    Statistics are far from another client's where, in any channel, the variances differ by more
    than the factor ``times``, or the means by more than ``deviations`` of the other's standard
    deviations. They are far from the others' where they are far from at least half of them.

    InstanceNorm's statistics have the same names and count as well. What a client was sent and
    sends back unchanged is not its doing.

    Args:
        times: largest plausible ratio of two variances. In real trainings honest ones reached 18.
        deviations: largest plausible distance of two means, in standard deviations. In real
            trainings honest ones reached 1.9.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> variances = torch.tensor([[1.0], [2.0], [900.0], [-1.0]])
    >>> asked = [Request(site, "train", {}, id=number) for number, site in enumerate("ABCD")]
    >>> buffers = [{"norm.running_var": variance} for variance in variances]
    >>> sent = [Reply(to.client, {}, 10, buffers=buffers[to.id], id=to.id) for to in asked]
    >>> verdicts = BatchStatistics().check(Replies(sent, asked, ModelSpec(())))
    >>> verdicts[3].reason, round(verdicts[2].evidence["ratio_of_variances"])
    ("'norm.running_var' has a negative variance, which no images can give", 450)
    """

    def __init__(self, times: float = 200.0, deviations: float = 20.0):
        check_threshold(self, "times", times, above=1)
        check_threshold(self, "deviations", deviations, above=0)
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
        means, variances = _stacked_statistics(possible)
        ratios = _lower_median_of_others(_ratios_of_variances(variances))
        shifts = _lower_median_of_others(_shifts_of_means(means, variances))
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
    buffers = reply.buffers or {}
    for name in _names_in(reply, VARIANCE):
        if bool((buffers[name] < 0).any()) and not _is_unchanged(name, buffers, sent):
            return f"{name!r} has a negative variance, which no images can give"
    for name in _names_in(reply, COUNTER):
        least, most = int(buffers[name].min()), int(buffers[name].max())
        before = int(sent[name].max()) if name in sent and sent[name].numel() else 0
        if least < 0 and not _is_unchanged(name, buffers, sent):
            return f"{name!r} counts {least} batches, which no training can do"
        if most - before > MOST_BATCHES:
            return (
                f"{name!r} counts {most - before} batches more than the model that it was sent, "
                "which no training can do"
            )
    return ""


def _is_unchanged(name: str, buffers: Weights, sent: Weights) -> bool:
    """Whether a client returned a buffer as it was sent."""
    return name in sent and bool((buffers[name] == sent[name]).all())


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """What a buffer is within its layer; the names are the same in every reply and round.

    >>> _kind("norm.running_mean")
    'running_mean'
    """
    return name.rpartition(".")[2]


def _names_in(reply: Reply, kind: str) -> list[str]:
    """The names of a reply's buffers of one kind that have entries, sorted."""
    found = []
    for name, buffer in (reply.buffers or {}).items():
        if _kind(name) == kind and buffer.numel():
            found.append(name)
    return sorted(found)


def _stacked_statistics(replies: list[Reply]) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all channels, each of shape (N, channels), in float64.

    A layer is in them if all its variances, and its means if anybody sent some, have one shape.
    NaN stands for what a client did not send: it judges nobody.
    """
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for reply in replies:
        for name, buffer in (reply.buffers or {}).items():
            if _kind(name) in (MEAN, VARIANCE) and buffer.numel():
                shapes.setdefault(name, set()).add(tuple(buffer.shape))

    means: list[str] = []
    variances: list[str] = []
    for variance in sorted(name for name in shapes if name.endswith(VARIANCE)):
        mean = variance.removesuffix(VARIANCE) + MEAN
        means_fit = mean not in shapes or shapes[mean] == shapes[variance]
        if means_fit and len(shapes[variance]) == 1:
            means.append(mean)
            variances.append(variance)
    channels = [math.prod(next(iter(shapes[name]))) for name in variances]
    return _stacked(replies, means, channels), _stacked(replies, variances, channels)


def _stacked(replies: list[Reply], names: list[str], channels: list[int]) -> np.ndarray:
    """Some buffers of each client in one row, shape (N, channels); NaN for missing ones."""
    rows = np.full((len(replies), sum(channels)), np.nan)
    for row, reply in enumerate(replies):
        buffers = reply.buffers or {}
        parts = []
        for name, count in zip(names, channels, strict=True):
            part = buffers.get(name)
            if part is None or not part.numel():
                part = torch.full((count,), math.nan)
            parts.append(part.flatten())
        if parts:
            rows[row] = torch.cat(parts).double().numpy()
    return rows


def _ratios_of_variances(variances: np.ndarray) -> np.ndarray:
    """The largest ratio of two variances of one channel, for each pair; shape (N, N), from 1.

    Args:
        variances: shape (N, channels), from 0.
    """
    found = np.zeros((len(variances), len(variances)))
    with np.errstate(invalid="ignore"):
        logarithms = np.log(variances + EPSILON)
        # Row by row, as the differences of all pairs together fit no cache.
        for row, of_client in enumerate(logarithms):
            found[row] = _largest_of_channels(np.abs(logarithms - of_client))
    return np.exp(np.minimum(found, math.log(1e300)))


def _shifts_of_means(means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The largest distance of a client's mean from another's, in the other's standard deviations.

    Args:
        means: shape (N, channels).
        variances: of the same shape.

    Returns:
        Client by other, shape (N, N).
    """
    found = np.zeros((len(means), len(means)))
    with np.errstate(invalid="ignore"):
        deviations = np.sqrt(variances + EPSILON)
        for other in range(len(means)):
            shifts = np.abs(means - means[other]) / deviations[other]
            found[:, other] = _largest_of_channels(shifts)
    return found


def _largest_of_channels(differences: np.ndarray) -> np.ndarray:
    """The largest over the last axis, from 0; NaN does not count."""
    return np.fmax.reduce(differences, axis=-1, initial=0.0)


def _lower_median_of_others(of_pair: np.ndarray) -> list[float]:
    """For each row the median of the other columns, the lower one of two; at least one column."""
    medians = []
    for row, values in enumerate(of_pair):
        others = np.sort(np.delete(values, row))
        medians.append(float(others[(len(others) - 1) // 2]))
    return medians
