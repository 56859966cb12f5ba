# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE: fair federated segmentation by client contribution estimation."""

from __future__ import annotations

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, ModelSpec, Train
from monai_fairfl.replies import normalise, uniform
from monai_fairfl.strategies.base import Memory, Rounds, Strategy
from monai_fairfl.strategies.parts import Parts
from monai_fairfl.utils.arguments import argument, remembered

REVISED_FLOOR = 1e-6  # of NVIDIA FLARE 2.9, applied before normalising
RELEASED_FLOOR = 1e-3  # of the authors' first release, applied after normalising
ROUNDING = 1e-6  # of a cosine of float32 updates


class FedCE(Strategy):
    r"""Federated contribution estimation (Jiang et al., CVPR 2023, Eq. 2-5 and Algorithm 1).

    Gradient space: how much client i's update points away from all others',
    :math:`\gamma^{cos}_i = 1 - \cos(\Delta_i, \sum_{j \ne i} \pi_j \Delta_j)`. Data space: the
    error of the model *without* client i on i's own validation data,
    :math:`\gamma^{err}_i = 1 - Dice(w^{-i})`. Both are normalised over clients, combined,
    accumulated over rounds, and become the aggregation weights.

    Args:
        mode: ``"multi"`` (product), ``"sum"``, or one term alone: ``"cos"``, ``"err"`` (Fig. 6).
        variant: ``"paper"``: running sum of the per-round combined scores (Eq. 4-5, without the
            stray factor k); ``"revised"``: NVIDIA FLARE 2.9, combination of running means, floored
            at 1e-6; ``"released"``: the authors' first release, always a uniform prior, floored at
            1e-3 after normalising (so that the weights may sum to more than one).

    A client's history is a mean over the rounds it took part in, each round's score relative to the
    uniform share: the same as the paper's sum under full participation, and no penalty for absence.
    In round 0 no model without i exists: its error counts as uniform (paper) or 1 (the two
    releases). An unseen client's prior is 1 / (known clients + 1).

    It trusts the errors that clients report. The model without client i is exact where w is the
    average of the models that clients hold. So a client whose update a guard shortened is not asked
    for its error in the next round, and gets the mean of the others'. Another average or a reward
    needs ``mode="cos"``.

    >>> FedCE("sum").mode
    'sum'
    """

    mode: str = argument("multi", ("multi", "sum", "cos", "err"))
    variant: str = argument("paper", ("paper", "revised", "released"))
    weight: Memory = remembered(Memory)  # the latest aggregation weight of every client
    entered: Memory = remembered(Memory)  # weights in the present global model
    shortened: list[str] = remembered(list)  # who entered it with another update than it holds
    seen: Memory = remembered(Memory)  # rounds that a client took part in
    # Sums over these rounds: of the score and its square ("paper"), or of cosine and Dice.
    first: Memory = remembered(Memory)
    second: Memory = remembered(Memory)

    has_contributions = True
    requires = frozenset({"leave_one_out_error"})
    gains_when = {"leave_one_out_error": "high"}
    min_clients = 2

    def __post_init__(self, *parts: object) -> None:
        super().__post_init__(*parts)
        self.requires = frozenset() if self.mode == "cos" else type(self).requires  # type: ignore[misc]

    def check_model(self, spec: ModelSpec, buffers: str) -> None:
        if buffers == "samples" and self.mode != "cos" and spec.buffers:
            raise ConfigError(
                "FedCE takes each client out of the average, which needs BatchNorm's statistics "
                "averaged with the same weights: use buffers 'aggregation' or 'local', "
                "or mode 'cos'"
            )

    def check_parts(self, parts: Parts) -> None:
        if self.mode != "cos" and (parts.average or parts.reward):
            raise ConfigError(
                "FedCE takes each client out of the weighted mean of the clients' models, which "
                "another average or a reward replaces: use mode 'cos' with them, which needs the "
                "updates alone"
            )

    def round(self, clients: list[str]) -> Rounds:
        asked = []
        for client in clients:
            # In round 0 there is no model without a client. One whose update a guard shortened
            # holds another model than the one that entered.
            holds_it = client not in self.shortened
            measure = tuple(self.requires) if self.weight and holds_it else ()
            context = {"previous_weight": self.entered.get(client, 0.0) if holds_it else 0.0}
            asked.append(Train(client, self.start_of(client), measure, context))
        local = yield asked
        names = local.clients

        # Gradient space (Eq. 2): how far a client's update points away from the others'.
        prior = uniform(local)
        if self.variant != "released" and self.weight:
            prior = self.weight.of(names, 1 / (len(self.weight) + 1))
        distance = 1 - local.geometry.cosines_with_sum(prior, without_own=True)
        # Where only rounding is left, it would decide all weights.
        distance[abs(distance) <= ROUNDING] = 0.0

        # Data space (Eq. 3): the error of the model without a client, on that client's data.
        error = np.ones(len(local))
        if any(request.measure and request.client in names for request in asked):
            error = self.measured(local, "leave_one_out_error")

        # Both combined (Eq. 4) and accumulated over rounds (Eq. 5) are the aggregation weights.
        is_paper = self.variant == "paper"
        if is_paper:
            # Relative to the uniform share, 1 / N or for a product 1 / N^2, so that rounds with few
            # clients count like those with many.
            score = len(local) * self._combined(normalise(distance), normalise(error))
            if self.mode == "multi":
                score = len(local) * score
            gained = score, score**2
        else:
            # In round 0, the releases count the error as 1 and the Dice as 0.
            gained = 1 - distance, 1 - error
        seen = self.seen.add(names, 1)
        first = self.first.add(names, gained[0])
        second = self.second.add(names, gained[1])
        first_mean, second_mean = first / seen, second / seen
        weight = normalise(first_mean) if is_paper else self._from_means(first_mean, second_mean)

        contributions = self._estimates(weight, first, second, seen)
        result = self.finish(local, weight, contributions)

        # Another weighting, one of its parts, may have weighed the average.
        self.weight.put(names, weight)
        self.entered = Memory(result.aggregation)
        self.shortened = sorted(local.shortened & set(names))
        return result

    def _from_means(self, cosine: np.ndarray, dice: np.ndarray) -> np.ndarray:
        """The releases' weights: means over rounds of cosine and Dice, combined afterwards."""
        distance = np.maximum(1 - cosine, 0.0)
        if self.variant == "revised":
            shares = normalise(distance, REVISED_FLOOR), normalise(1 - dice, REVISED_FLOOR)
            return normalise(self._combined(*shares), REVISED_FLOOR)
        far = np.maximum(normalise(distance), RELEASED_FLOOR)
        wrong = np.maximum(normalise(1 - dice), RELEASED_FLOOR)
        return np.maximum(normalise(self._combined(far, wrong)), RELEASED_FLOOR)

    def _combined(self, cos: np.ndarray, err: np.ndarray) -> np.ndarray:
        """The two terms of each client as one score (Eq. 4): a product, a sum, or one alone."""
        terms = {"multi": cos * err, "sum": cos + err, "cos": cos, "err": err}
        return terms[self.mode]

    def _estimates(
        self, weight: np.ndarray, first: np.ndarray, second: np.ndarray, seen: np.ndarray
    ) -> list[Estimate]:
        """The weights, in the variant ``"paper"`` with a standard error.

        It is the standard error of the mean score over rounds, scaled like the weight.
        """
        found = []
        for row, rounds in enumerate(seen):
            mean = first[row] / rounds
            stderr = None
            if self.variant == "paper" and rounds > 1 and mean > 0:
                variance = max(second[row] / rounds - mean**2, 0.0) * rounds / (rounds - 1)
                stderr = float(np.sqrt(variance / rounds)) * float(weight[row]) / float(mean)
            found.append(Estimate(float(weight[row]), stderr, int(rounds)))
        return found
