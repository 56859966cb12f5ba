# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are longer than honest training makes them are cut to the usual length."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.arguments import check_threshold
from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict
from monai_fairfl.guards.directions import others_of
from monai_fairfl.protocol.replies import Replies


class TooLong(Guard):
    r"""Cuts an update that is much longer than the others' to their median length.

    .. math:: \Delta_i \leftarrow \Delta_i \, m_i / \lVert \Delta_i \rVert
              \quad \text{where} \quad \lVert \Delta_i \rVert > t \, m_i

    with :math:`m_i` the median length of the others. Of two middle lengths it is the larger one:
    beside two others, one very short update would have the longer one cut.

    A multiplied update has that multiple of its client's share in the step, whatever weight the
    client has. It is cut to the median and not to t times the median, which would leave it t
    shares.

    Args:
        times: t. In real trainings honest updates were at most 3.8 times as long as the median of
            the others.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, 100.0]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = TooLong().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].action, verdicts[2].factor
    ([2], 'clip', 0.01)
    """

    def __init__(self, times: float = 6.0):
        check_threshold(self, "times", times, above=1)
        self.times = times

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        norms = replies.geometry.norms
        verdicts: dict[int, Verdict] = {}
        for row, reply in enumerate(replies):
            others = norms[others_of(row, len(norms))]
            if len(others) < LEAST_OTHERS:
                continue
            median = float(np.quantile(others, 0.5, method="higher"))
            if norms[row] > self.times * median > 0:
                reason = (
                    f"its update has length {norms[row]:.4g}, the median of the others is "
                    f"{median:.4g} (allowed: {self.times:g} times that): it is cut to the median"
                )
                evidence = {"length": float(norms[row]), "median_of_others": median}
                factor = median / float(norms[row])
                verdicts[reply.id] = Verdict("clip", reason, evidence, factor=factor)
        return verdicts
