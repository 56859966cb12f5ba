# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are nearly the same share one weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from monai_fairfl.guards.base import Guard, Verdict, cosines, is_judged, others_of, pairs_among
from monai_fairfl.replies import Replies
from monai_fairfl.utils.arguments import argument

ROUNDING = 2e-5
"""Distances of one direction with itself are smaller. They reached 1e-6 in float32, and 1.2e-5 with
updates that were rounded to bfloat16."""


@dataclass(eq=False, repr=False)
class Copies(Guard):
    """Divides weight and contribution of nearly identical updates by their number.

    A site that takes part under three names, or sends another's update again, would otherwise have
    several shares. Two updates count as copies where their cosine is at least ``cosine`` and their
    distance, 1 - cosine, is less than ``nearer`` times the usual distance. This second condition
    protects sites that are alike because all are, such as even shares of one data set. The usual
    distance is the median of all pairs but those of the client that is farthest from the others:
    so one update of another direction does not end the protection, and two may. Updates of one
    direction, but for rounding, are copies also where most of the pairs are; unless all are.

    Args:
        cosine: least cosine of copies. In real trainings honest pairs reached 0.74.
        nearer: share of the usual distance below which a pair stands out.

    Where a client trained several models in one exchange, nobody is judged: its own updates may
    well be alike.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(1000)}, torch.eye(3, 1000)[[0, 1, 2, 0]]  # D sends A's
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABCD")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 20, id=to.id) for to in asked]
    >>> verdicts = Copies().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> {number: found.group for number, found in verdicts.items()}
    {0: ('A', 'D'), 3: ('A', 'D')}
    """

    cosine: float = argument(0.9, "(0, 1]")
    nearer: float = argument(0.25, "(0, 1]")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        count = len(replies)
        if count < 2 or not is_judged(replies) or len(replies.clients) < count:
            return {}
        angles = cosines(replies.geometry.gram)
        distances = 1 - angles
        if pairs_among(np.arange(count), distances).max() < ROUNDING:
            return {}  # all updates are the same
        # The usual distance is one of copies where these are most of the pairs.
        rows = np.arange(count)
        if count > 2:
            rows = others_of(int(distances.sum(axis=1).argmax()), count)
        usual = float(np.median(pairs_among(rows, distances)))
        allowed = min(1 - self.cosine, max(self.nearer * usual, ROUNDING))

        verdicts = {}
        number, groups = connected_components(distances < allowed, directed=False)
        for rows in (np.flatnonzero(groups == group) for group in range(number)):
            if len(rows) < 2:
                continue
            clients = tuple(replies[row].client for row in rows)
            least = float(pairs_among(rows, angles).min())
            reason = (
                f"the updates of {', '.join(clients)} are nearly the same (cosines of at least "
                f"{least:.3f}): weight and contribution of each are divided by {len(rows)}"
            )
            verdict = Verdict("share", reason, {"cosine": least}, group=clients)
            verdicts.update(dict.fromkeys([replies[row].id for row in rows], verdict))
        return verdicts
