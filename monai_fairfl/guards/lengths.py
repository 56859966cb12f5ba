# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are much shorter or longer than the others'."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, medians_of_others, quarantine
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.arguments import argument

MOST_EMPTY = 0.5
"""Share of the parameters that others train in which an update may be empty."""


class Empty(Guard):
    """Quarantines an update that is much shorter than the others'.

    Methods that reward an unusual direction pay a client that sends zeros: a zero vector is at a
    right angle to all others. Where everybody sends next to nothing, such as at the end of a
    learning-rate schedule, nobody stands out and all updates pass.

    An update is empty, too, if it is so short in the layers that have most of the parameters which
    the others train: numbers in the output layer alone have a usual length.

    Beside a single other client a short update may be the honest one of the two, so that only one
    without any length is empty.

    Args:
        share: of the median length of the others, below which an update is empty, or a layer of it.
            In real trainings the shortest honest update had a fifth of that length.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, 0]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Empty().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].reason
    ([2], 'its update has length 0, the median of the others is 1: it adds nothing')
    """

    share: float = argument(1e-3, "(0, 1]")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        geometry = replies.geometry
        medians = medians_of_others(geometry.norms)
        is_empty = self._is_empty(geometry.norms, medians)

        # The share of the parameters that the others train which lie in a client's empty layers.
        trained, empty = np.zeros(len(replies)), np.zeros(len(replies))
        sizes = geometry.sizes_of_layers
        for layer, norms in geometry.norms_of_layers.items():
            of_others = medians_of_others(norms)
            size = sizes[layer] * (of_others > ZERO_NORM)
            trained += size
            empty += size * self._is_empty(norms, of_others)
        shares = empty / np.maximum(trained, 1.0)

        short = (
            "its update has length {length:.4g}, the median of the others is "
            "{median_of_others:.4g}: it adds nothing"
        )
        hollow = (
            "its update adds nothing in the layers that have {empty_share:.0%} of the parameters "
            "which the others train"
        )
        numbers = {"length": geometry.norms, "median_of_others": medians}
        return {
            **quarantine(replies, shares > MOST_EMPTY, hollow, empty_share=shares),
            **quarantine(replies, is_empty, short, **numbers),
        }

    def _is_empty(self, norms: np.ndarray, medians: np.ndarray) -> np.ndarray:
        """Which updates, or layers of them, are too short beside the medians of the others."""
        least = self.share * medians
        if len(norms) <= LEAST_OTHERS:
            least = np.minimum(least, ZERO_NORM)
        return norms < least


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


class Outsized(Guard):
    """Quarantines an update that is longer than the others' by far, and longer than the model.

    It must be longer than ``times`` the median of the others', and longer than the model that it
    began from. Training of one round moves a model by a fraction of its length. Beside clients that
    sent next to nothing, an honest update is long, too; the model's length distinguishes it from
    one that would poison the model.

    Args:
        times: above which a length is no accident.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, 1e6]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Outsized().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].reason
    ([2], 'its update has length 1e+06, the median of the others is 1 (allowed: 1000 times that)')
    """

    times: float = argument(1000.0, "(1, inf)")

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        norms = replies.geometry.norms
        medians = medians_of_others(norms)
        far_longer = (norms > self.times * medians) & (medians > 0)
        for row in np.flatnonzero(far_longer):
            start = replies.start(replies[row])
            squares = [start[name].double().square().sum() for name in replies.spec.parameters]
            far_longer[row] = norms[row] > math.sqrt(sum(map(float, squares)))
        reason = (
            "its update has length {length:.4g}, the median of the others is "
            "{median_of_others:.4g} " + f"(allowed: {self.times:g} times that)"
        )
        return quarantine(replies, far_longer, reason, length=norms, median_of_others=medians)
