# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates whose length or direction is unlike the others', or is another's."""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse.csgraph import connected_components

from monai_fairfl.guards.base import LEAST_OTHERS, Guard, Verdict, medians_of_others, quarantine
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.arguments import argument

MOST_EMPTY = 0.5
"""Share of the parameters that others train in which an update may be empty."""

LEAST_PARAMETERS = 1000
"""Directions of smaller models are alike or opposed by chance, so no guard judges them."""

ROUNDING = 2e-5
"""Distances of one direction with itself are smaller. They reached 1e-6 in float32, and 1.2e-5 with
updates that were rounded to bfloat16."""

LEAST_AGREEING = 4
"""Fewer other sites are no consensus: of three real clinics one was honestly at -0.71."""


# ---- lengths


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

    def check(self, replies: Replies) -> dict[int, Verdict]:
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

    def check(self, replies: Replies) -> dict[int, Verdict]:
        if len(replies) <= LEAST_OTHERS:
            return {}
        verdicts: dict[int, Verdict] = {}
        lengths = {"its update": replies.geometry.norms}
        output = replies.spec.output
        if output is not None and output[0] in replies.geometry.layers:
            of_layers = replies.geometry.norms_of_layers
            lengths["its update of the output layer"] = of_layers[output[0]]
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

    def check(self, replies: Replies) -> dict[int, Verdict]:
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


# ---- directions


def is_judged(replies: Replies) -> bool:
    """Whether the model is large enough for a judgement by direction."""
    return sum(replies.geometry.sizes_of_layers.values()) >= LEAST_PARAMETERS


def cosines(gram: np.ndarray) -> np.ndarray:
    """The cosine of each pair of vectors, from their Gram matrix; 0 with a vector of no length.

    Args:
        gram: inner products, shape (..., N, N).

    Returns:
        The same shape.

    >>> cosines(np.array([[4.0, 2.0], [2.0, 4.0]])).round(3).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    norms = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))
    lengths = np.where(norms > ZERO_NORM, norms, np.inf)
    return np.clip(gram / (lengths[..., :, None] * lengths[..., None, :]), -1.0, 1.0)


def pairs_among(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The entries of a symmetric matrix for all pairs of different ``rows``, each once.

    >>> pairs_among(np.array([0, 2]), np.arange(9.0).reshape(3, 3)).tolist()
    [2.0]
    """
    chosen = matrix[np.ix_(rows, rows)]
    return chosen[np.triu_indices(len(rows), k=1)]


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

    def check(self, replies: Replies) -> dict[int, Verdict]:
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
            rows = np.delete(rows, int(distances.sum(axis=1).argmax()))
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


class Noise(Guard):
    r"""Quarantines an update that has no more in common with the others than random numbers.

    The squared cosine of a random vector of s entries with any fixed one is 1 / s on average. So

    .. math:: T_i = \frac{1}{(N - 1) L} \sum_{j \ne i} \sum_l s_l \cos^2(\Delta_i^l, \Delta_j^l)

    is about 1 for noise, over the layers l with :math:`s_l` parameters. An honest hospital's update
    may be at a right angle to all others on the whole, but not in every layer: in real trainings
    its T was never below 33. The sign of a cosine does not count, so that a hospital whose images
    ask for the opposite is as safe as one that agrees.

    Nobody is judged where the others have little in common either, nor a client that trains fewer
    than 1,000 parameters in common with the others, such as the output layer alone.

    Args:
        most: T below which an update counts as noise.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(1000)}, torch.ones(3, 1000)
    >>> updates[2] = torch.randn(1000, generator=torch.Generator().manual_seed(0))  # C's
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = Noise().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> {number: round(found.evidence["in_common"], 1) for number, found in verdicts.items()}
    {2: 0.8}
    """

    most: float = argument(4.0, "(0, inf)")

    def check(self, replies: Replies) -> dict[int, Verdict]:
        count = len(replies)
        if count < 3 or not is_judged(replies):
            return {}
        layers = replies.geometry.layers
        grams = np.stack(list(layers.values()))  # shape (layers, N, N)
        sizes = replies.geometry.sizes_of_layers
        parameters = np.array([sizes[layer] for layer in layers], float)[:, None, None]

        # Of each pair, the mean over layers of s_l cos^2. A layer that a client does not train says
        # nothing of it.
        trained = np.diagonal(grams, axis1=1, axis2=2) > ZERO_NORM**2
        both = trained[:, :, None] & trained[:, None, :]
        total = (parameters * cosines(grams) ** 2).sum(axis=0)
        in_common = total / np.maximum(both.sum(axis=0), 1.0)

        others = [np.delete(np.arange(count), row) for row in range(count)]
        own = np.array([in_common[row, others[row]].mean() for row in range(count)])
        usual = np.array([pairs_among(rows, in_common).mean() for rows in others])
        shared = (both * parameters).sum(axis=0)
        np.fill_diagonal(shared, 0)
        found = (own < self.most) & (usual > 10 * self.most)
        reason = (
            "its update has as much in common with the others as random numbers: {in_common:.3g}, "
            "where random numbers have 1 and the others {among_others:.0f}"
        )
        found &= shared.max(axis=1) >= LEAST_PARAMETERS
        return quarantine(replies, found, reason, in_common=own, among_others=usual)


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

    def check(self, replies: Replies) -> dict[int, Verdict]:
        count = len(replies)
        if count <= LEAST_AGREEING or not is_judged(replies):
            return {}
        angles = cosines(replies.geometry.gram)
        agreement, with_others = np.zeros(count), np.zeros(count)
        for row in range(count):
            others = np.delete(np.arange(count), row)
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
