# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are longer than honest training makes them are cut to the usual length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, medians_of_others
from monai_fairfl.replies import Replies
from monai_fairfl.utils.arguments import argument


@dataclass(eq=False, repr=False)
class TooLong(Guard):
    r"""Cuts an update that is much longer than the others' to their median length.

    .. math:: \Delta_i \leftarrow \Delta_i \, m_i / \lVert \Delta_i \rVert
              \quad \text{where} \quad \lVert \Delta_i \rVert > t \, m_i

    with :math:`m_i` the median length of the others. Of two middle lengths it is the larger one:
    beside two others, one very short update would have the longer one cut.

    The same holds for the output layer by itself, whatever the length of the whole update: it
    decides the logits, and ShapFed's class values. The whole update is then multiplied by the
    factor that its output layer needs.

    A multiplied update has that multiple of its client's share in the step, whatever weight the
    client has. It is cut to the median and not to t times the median, which would leave it t
    shares.

    Args:
        times: t. In real trainings honest updates were at most 3.8 times as long as the median of
            the others, and honest output layers at most 2.3 times.

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

    times: float = argument(6.0, "(1, inf)")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        if len(replies) <= LEAST_OTHERS:
            return {}
        verdicts: dict[int, Verdict] = {}
        lengths = {"its update": replies.geometry.norms}
        output = replies.spec.output
        if output is not None and output[0] in replies.geometry.norms_of_layers:
            of_layer = replies.geometry.norms_of_layers[output[0]]
            lengths["its update of the output layer"] = of_layer
        factors = np.ones(len(replies))
        for what, given in lengths.items():
            # The output layers as they are after the cuts of the whole.
            norms = factors * given
            medians = medians_of_others(norms, upper=True)
            for row in np.flatnonzero((norms > self.times * medians) & (medians > 0)):
                length, median = float(norms[row]), float(medians[row])
                factors[row] *= median / length
                reason = (
                    f"{what} has length {length:.4g}, the median of the others is {median:.4g} "
                    f"(allowed: {self.times:g} times that): it is cut to the median"
                )
                evidence = {"length": length, "median_of_others": median}
                verdict = Verdict("clip", reason, evidence, factor=float(factors[row]))
                verdicts[replies[row].id] = verdict
        return verdicts
