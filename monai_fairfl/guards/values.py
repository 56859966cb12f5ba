# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates and buffers with values that no training gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, quarantine
from monai_fairfl.messages import Reply, Weights, all_finite
from monai_fairfl.replies import Replies
from monai_fairfl.utils.arguments import argument

MEAN = "running_mean"
VARIANCE = "running_var"
COUNTER = "num_batches_tracked"
EPSILON = 1e-5
"""Added to variances, as BatchNorm adds it: smaller ones do not differ."""

MOST_BATCHES = 2**31
"""No training of one round counts more. And counters that grow by this in every round stay whole
numbers for millions of rounds."""


class NonFinite(Guard):
    """Quarantines an update or buffer that is not finite, and names its first bad tensor.

    One such update in the average would turn every hospital's model into NaN.

    The check of the updates costs nothing: an update is finite exactly if its squared norm is,
    which was summed in float64 and stands on the Gram matrix's diagonal.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, torch.nan]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = NonFinite().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].reason
    ([2], "'w' is not finite")
    """

    def check(self, replies: Replies) -> dict[int, Verdict]:
        squared_norms = np.diag(replies.geometry.gram)
        verdicts = {}
        for row, reply in enumerate(replies):
            bad = [name for name, one in (reply.buffers or {}).items() if not all_finite(one)]
            if reply.update and not np.isfinite(squared_norms[row]):
                bad += [name for name, one in reply.update.items() if not one.isfinite().all()]
            if bad:
                reason = f"{min(bad)!r} is not finite"
                verdicts[reply.id] = Verdict("quarantine", reason, {"tensors": len(bad)})
        return verdicts


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
    ("'norm.running_var' is negative, which no training gives", 450)
    """

    times: float = argument(200.0, "(1, inf)")
    deviations: float = argument(20.0, "(0, inf)")

    def check(self, replies: Replies) -> dict[int, Verdict]:
        reasons = {reply.id: _impossible(reply, replies.start(reply)) for reply in replies}
        verdicts = {id: Verdict("quarantine", reason) for id, reason in reasons.items() if reason}
        possible = [reply for reply in replies if reply.id not in verdicts]
        if len(possible) <= LEAST_OTHERS:
            return verdicts

        ratios, shifts = _far_from_others(possible)
        found = (ratios > self.times) | (shifts > self.deviations)
        reason = (
            "its BatchNorm statistics are far from the others': variances by a factor of "
            "{ratio_of_variances:.3g}, means by {shift_of_means:.3g} standard deviations "
            f"(allowed: {self.times:g} and {self.deviations:g})"
        )
        numbers = {"ratio_of_variances": ratios, "shift_of_means": shifts}
        return verdicts | quarantine(possible, found, reason, **numbers)


def _impossible(reply: Reply, sent: Weights) -> str:
    """Which buffer has a value that no training gives, in words; empty where there is none."""
    for name, buffer in sorted((reply.buffers or {}).items()):
        is_counter = name.endswith(COUNTER)
        if not (is_counter or name.endswith(VARIANCE)) or not buffer.numel():
            continue
        before = sent.get(name)
        if before is not None and bool((buffer == before).all()):
            continue
        if buffer.min() < 0:
            return f"{name!r} is negative, which no training gives"
        counted = int(before.max()) if before is not None and before.numel() else 0
        if is_counter and int(buffer.max()) - counted > MOST_BATCHES:
            return f"{name!r} counts more batches of one round than any training does"
    return ""


def _far_from_others(replies: Sequence[Reply]) -> tuple[np.ndarray, np.ndarray]:
    """How far the statistics of each client are from the others', in its worst channel.

    A layer counts if all its variances, and its means if anybody sent some, have one shape. What a
    client did not send judges nobody.

    Returns:
        The ratio of two variances, from 1, and the distance of its mean from another's, in the
        other's standard deviations: each the lower median over the others, shape (N,).
    """
    # Means and variances of all channels, in float64; NaN where a client sent none.
    count = len(replies)
    tables = [torch.empty(2, count, 0)]
    sent = [reply.buffers or {} for reply in replies]
    names = {name for buffers in sent for name in buffers}
    for variance in sorted(name for name in names if name.endswith(VARIANCE)):
        rows = []
        for name in (variance.removesuffix(VARIANCE) + MEAN, variance):
            rows += [buffers.get(name) for buffers in sent]
        shapes = {row.shape for row in rows if row is not None}
        if len(shapes) == 1:
            unsent = torch.full(shapes.pop(), math.nan)
            table = torch.stack([(unsent if row is None else row).double() for row in rows])
            tables.append(table.view(2, count, -1))
    means, variances = torch.cat(tables, dim=2).numpy()

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
    # A client's distance from itself is 0, and so the first of its row.
    middle = 1 + (count - 2) // 2
    ratios, shifts = np.sort(ratios, axis=1)[:, middle], np.sort(shifts, axis=1)[:, middle]
    return np.exp(np.minimum(ratios, math.log(1e300))), shifts
