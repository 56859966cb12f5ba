# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that point against a step on which all others agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monai_fairfl.guards.base import (
    Guard,
    Verdict,
    cosines,
    is_judged,
    others_of,
    pairs_among,
    quarantine,
)
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.arguments import argument

LEAST_AGREEING = 4
"""Fewer other sites are no consensus: of three real clinics one was honestly at -0.71."""


@dataclass(eq=False, repr=False)
class Opposed(Guard):
    r"""Quarantines an update against the mean of at least four others that agree.

    .. math:: \cos(\Delta_i, \sum_{j \ne i} \Delta_j / \lVert \Delta_j \rVert) \le -0.5

    Methods that reward an unusual direction pay a client that flips the sign of its update. An
    honest hospital may also be at an obtuse angle to the others: then the others disagree among
    themselves, too. So nobody is judged unless the median cosine among the others reaches
    ``agreement``.

    Args:
        cosine: at or below which an update is opposed. In real trainings of at least five sites an
            honest cosine was never below -0.12 where the others agreed.
        agreement: least median cosine among the others.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(1000)}, torch.ones(5, 1000) + 20 * torch.eye(5, 1000)
    >>> updates[4] *= -1  # E flips the sign
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABCDE")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Opposed().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> {number: round(found.evidence["cosine"], 2) for number, found in verdicts.items()}
    {4: -0.81}
    """

    cosine: float = argument(-0.5, "(-1, 0]")
    agreement: float = argument(0.3, "(-1, 1]")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        count = len(replies)
        if count <= LEAST_AGREEING or not is_judged(replies):
            return {}
        angles = cosines(replies.geometry.gram)
        agreement, with_others = np.zeros(count), np.zeros(count)
        for row in range(count):
            others = others_of(row, count)
            agreement[row] = np.median(pairs_among(others, angles))
            # The cosine with the sum of the others' unit vectors, whose squared length is the sum
            # of their cosines.
            length = np.sqrt(max(angles[np.ix_(others, others)].sum(), ZERO_NORM))
            with_others[row] = angles[row, others].sum() / length
        reason = (
            "its update points against the others (cosine {cosine:.2f} with their mean), which "
            "agree (median cosine {agreement_of_others:.2f})"
        )
        found = (agreement >= self.agreement) & (with_others <= self.cosine)
        numbers = {"cosine": with_others, "agreement_of_others": agreement}
        return quarantine(replies, found, reason, **numbers)
