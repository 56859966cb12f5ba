# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's running statistics that no images can have given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, check_threshold
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
        verdicts = {}
        for reply in replies:
            reason = _impossible(reply, replies.start(reply))
            if reason:
                verdicts[reply.id] = Verdict("quarantine", reason)

        possible = [reply for reply in replies if reply.id not in verdicts]
        if len(possible) <= LEAST_OTHERS:
            return verdicts
        ratios, shifts = _far_from_others(*_statistics(possible))
        for row in np.flatnonzero((ratios > self.times) | (shifts > self.deviations)):
            ratio, shift = float(ratios[row]), float(shifts[row])
            reason = (
                f"its BatchNorm statistics are far from the others': variances by a factor of "
                f"{ratio:.3g} (allowed: {self.times:g}), means by {shift:.3g} standard "
                f"deviations (allowed: {self.deviations:g})"
            )
            evidence = {"ratio_of_variances": ratio, "shift_of_means": shift}
            verdicts[possible[row].id] = Verdict("quarantine", reason, evidence)
        return verdicts


def _kind(name: str) -> str:
    """What a buffer is within its layer.

    >>> _kind("norm.running_mean")
    'running_mean'
    """
    return name.rpartition(".")[2]


def _impossible(reply: Reply, sent: Weights) -> str:
    """Which buffer has a value that no training gives, in words; empty where there is none."""
    for name, buffer in sorted((reply.buffers or {}).items()):
        if _kind(name) not in (VARIANCE, COUNTER) or not buffer.numel():
            continue
        if name in sent and bool((buffer == sent[name]).all()):
            continue
        least, most = buffer.min(), buffer.max()
        if _kind(name) == VARIANCE and least < 0:
            return f"{name!r} has a negative variance, which no images can give"
        if _kind(name) == COUNTER:
            before = int(sent[name].max()) if name in sent and sent[name].numel() else 0
            if least < 0:
                return f"{name!r} counts {least} batches, which no training can do"
            if most - before > MOST_BATCHES:
                return (
                    f"{name!r} counts {most - before} batches more than the model that it was "
                    "sent, which no training can do"
                )
    return ""


def _statistics(replies: Sequence[Reply]) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all channels, each of shape (N, channels), in float64.

    A layer is in them if all its variances, and its means if anybody sent some, have one shape.
    NaN stands for what a client did not send: it judges nobody.
    """
    means, variances = [np.empty((len(replies), 0))], [np.empty((len(replies), 0))]
    names = {name for reply in replies for name in reply.buffers or {}}
    for name in sorted(name for name in names if _kind(name) == VARIANCE):
        mean = name.removesuffix(VARIANCE) + MEAN
        shapes = {one.shape for one in _of_clients(replies, name) if one is not None}
        of_means = {one.shape for one in _of_clients(replies, mean) if one is not None}
        if len(shapes) == 1 and of_means <= shapes:
            channels = shapes.pop().numel()
            means.append(_stacked(_of_clients(replies, mean), channels))
            variances.append(_stacked(_of_clients(replies, name), channels))
    return np.concatenate(means, axis=1), np.concatenate(variances, axis=1)


def _of_clients(replies: Sequence[Reply], name: str) -> list[torch.Tensor | None]:
    """A buffer of each client; ``None`` where it sent none or an empty one."""
    buffers = [(reply.buffers or {}).get(name) for reply in replies]
    return [None if one is None or not one.numel() else one for one in buffers]


def _stacked(buffers: Sequence[torch.Tensor | None], channels: int) -> np.ndarray:
    """One row a client, shape (N, channels); NaN for a missing one."""
    missing = torch.full((channels,), math.nan)
    rows = [missing if one is None else one.flatten() for one in buffers]
    return np.stack([row.double().numpy() for row in rows])


def _far_from_others(means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far each client is from the others, in its worst channel.

    Args:
        means: shape (N, channels).
        variances: of the same shape, from 0.

    Returns:
        The ratio of two variances, from 1, and the distance of its mean from another's, in the
        other's standard deviations: each the lower median over the others, shape (N,).
    """
    count = len(means)
    ratios, shifts = np.zeros((count, count)), np.zeros((count, count))
    with np.errstate(invalid="ignore"):
        logarithms = np.log(variances + EPSILON)
        deviations = np.sqrt(variances + EPSILON)
        # Row by row, as the differences of all pairs together fit no cache. NaN does not count.
        for other in range(count):
            differences = np.abs(logarithms - logarithms[other])
            distances = np.abs(means - means[other]) / deviations[other]
            ratios[:, other] = np.fmax.reduce(differences, axis=1, initial=0.0)
            shifts[:, other] = np.fmax.reduce(distances, axis=1, initial=0.0)
    ratios = np.exp(np.minimum(ratios, math.log(1e300)))
    return _lower_medians_of_others(ratios), _lower_medians_of_others(shifts)


def _lower_medians_of_others(of_pair: np.ndarray) -> np.ndarray:
    """For each row the median of the other columns, the lower one of two."""
    medians = [np.sort(np.delete(values, row)) for row, values in enumerate(of_pair)]
    return np.array([others[(len(others) - 1) // 2] for others in medians])
