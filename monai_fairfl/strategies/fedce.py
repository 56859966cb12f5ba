# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE: fair federated segmentation by client contribution estimation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, ModelSpec, Train
from monai_fairfl.replies import Replies, normalise, prior_weights, uniform
from monai_fairfl.strategies.arguments import check_choice
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.parts import Parts

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

    The model without client i is exact where w is the average of the models that clients hold.
    So a client whose update a guard shortened, or counted with others that are nearly the same, is
    not asked for its error in the next round, and gets the mean of the others'. Of clients with
    equal updates the first is asked, for the error of the model without them all. Another average
    or reward needs ``mode="cos"``.

    Each client also sends its error with the model without itself, which costs a validation pass;
    the server trusts it, and the direction of updates. The contribution is a share of the average.

    >>> FedCE("sum").mode
    'sum'
    """

    additive = True
    requires = frozenset({"leave_one_out_error"})
    gains_when = {"leave_one_out_error": "high"}
    min_clients = 2
    state = ("weight", "entered", "shortened", "history", "rounds")

    def __init__(self, mode: str = "multi", variant: str = "paper", **parts: Any):
        check_choice(self, "mode", mode, ("multi", "sum", "cos", "err"))
        check_choice(self, "variant", variant, ("paper", "revised", "released"))
        self.mode = mode
        self.variant = variant
        self.weights_sum_to_one = variant != "released"
        self.requires = frozenset() if mode == "cos" else type(self).requires  # type: ignore[misc]
        self.weight: dict[str, float] = {}  # the latest aggregation weight of every client
        self.entered: dict[str, float] = {}  # weights in the present global model
        # Clients that cannot take themselves out of that model: a guard shortened their updates, or
        # counted them with others that are nearly the same.
        self.shortened: list[str] = []
        self.history: dict[str, dict[str, Any]] = {}  # client -> sums over its rounds
        self.rounds = 0
        super().__init__(**parts)

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

    def round(self, clients: Sequence[str]) -> Rounds:
        requests = []
        for client in clients:
            measure = self._measured_by(client)
            requests.append(Train(client, self.start_of(client), measure, self.context_of(client)))
        local = yield requests

        # Gradient space (Eq. 2): how far a client's update points away from the others'.
        cosines = leave_one_out_cosines(local, self._prior(local.clients))
        distances = {client: _distance(cosine) for client, cosine in cosines.items()}

        # Data space (Eq. 3): the error of the model without a client, on that client's data.
        answered = [request for request in requests if request.client in local.clients]
        asked = any(request.measure for request in answered)
        errors = self.measured(local, "leave_one_out_error") if asked else None

        # Both combined and accumulated over rounds are the aggregation weights (Eq. 4-5).
        if self.variant == "paper":
            weights = self._from_combined_scores(distances, errors)
        else:
            weights = self._from_running_means(distances, errors)
        self.weight.update(weights)
        self.rounds += 1

        contributions = {client: self._estimate(client) for client in weights}
        result = self.finish(local, weights, contributions)

        # Another weighting may have weighed the average. A client's copies
        # hold the same update: its error is that of the model without them all.
        weight_of: Mapping[str, float] = result.aggregation  # type: ignore[assignment]
        self.entered = {}
        for client in weight_of:
            copies = local.copies_of(client) & weight_of.keys()
            self.entered[client] = float(sum(weight_of[copy] for copy in sorted(copies)))
        self.shortened = sorted((local.shortened | _copies(local)) & set(self.entered))
        return result

    def _measured_by(self, client: str) -> tuple[str, ...]:
        """What ``client`` measures in this round.

        In round 0 no model without a client exists. Nor can a client take itself out of the model
        where a guard shortened its update: it holds the model that it trained, and not the one
        that entered.
        """
        if self.rounds == 0 or client in self.shortened:
            return ()
        return tuple(self.requires)

    def context_of(self, client: str) -> Mapping[str, float]:
        """Return the client's weight in the present global model, which its error needs.

        It is 0 where a guard shortened the client's update: a script that measures without being
        asked then scores the model that it received.
        """
        if client in self.shortened:
            return {"previous_weight": 0.0}
        return {"previous_weight": self.entered.get(client, 0.0)}

    def value_from_mean(self, client: str, name: str, mean: float) -> float:
        """Undo the mean over rounds where the variant takes that mean itself.

        NVIDIA FLARE's scripts send the mean of their errors so far. The variants ``"revised"`` and
        ``"released"`` average the errors of all rounds; ``"paper"`` takes each number as it comes.
        """
        past = self.history.get(client)
        if name != "leave_one_out_error" or self.variant == "paper" or past is None:
            return mean
        sum_of_errors = past["rounds"] - past["dice"]
        return (past["rounds"] + 1) * mean - sum_of_errors

    def _prior(self, clients: Sequence[str]) -> dict[str, float]:
        """The weights pi of the updates in the cosines."""
        if self.variant == "released" or not self.weight:
            return uniform(clients)
        return prior_weights(self.weight, clients)

    def _from_combined_scores(
        self, distances: Mapping[str, float], errors: Mapping[str, float] | None
    ) -> dict[str, float]:
        """The paper's weights: the sum over rounds of the scores combined in each (Eq. 4-5)."""
        shares_cos = normalise(distances)
        shares_err = normalise(errors) if errors else uniform(distances)
        scores = self._combine(shares_cos, shares_err)

        # Relative to the uniform share, 1 / N or for a product 1 / N^2, so that rounds with few
        # clients count like those with many.
        count = len(distances)
        scores = {client: count * score for client, score in scores.items()}
        if self.mode == "multi":
            scores = {client: count * score for client, score in scores.items()}

        for client, score in scores.items():
            self._add_to_history(client, score=score, square=score**2)
        return normalise({client: self._mean(client, "score") for client in scores})

    def _from_running_means(
        self, distances: Mapping[str, float], errors: Mapping[str, float] | None
    ) -> dict[str, float]:
        """The releases' weights: means over rounds of cosine and Dice, combined afterwards."""
        for client, distance in distances.items():
            dice = 1 - errors[client] if errors else 0.0
            self._add_to_history(client, cos=1 - distance, dice=dice)
        mean_distances = {}
        mean_errors = {}
        for client in distances:
            mean_distances[client] = max(0.0, 1 - self._mean(client, "cos"))
            mean_errors[client] = 1 - self._mean(client, "dice")

        if self.variant == "revised":
            shares_cos = normalise(mean_distances, REVISED_FLOOR)
            shares_err = normalise(mean_errors, REVISED_FLOOR)
            return normalise(self._combine(shares_cos, shares_err), REVISED_FLOOR)
        shares_cos = _floored(normalise(mean_distances))
        shares_err = _floored(normalise(mean_errors))
        return _floored(normalise(self._combine(shares_cos, shares_err)))

    def _combine(self, cos: Mapping[str, float], err: Mapping[str, float]) -> dict[str, float]:
        """The two terms of each client as one score (Eq. 4): a product, a sum, or one alone."""
        if self.mode == "multi":
            return {client: cos[client] * err[client] for client in cos}
        if self.mode == "sum":
            return {client: cos[client] + err[client] for client in cos}
        if self.mode == "cos":
            return dict(cos)
        return {client: err[client] for client in cos}

    def _add_to_history(self, client: str, **values: float) -> None:
        """Add this round's values to the sums over the rounds that ``client`` took part in."""
        sums = self.history.setdefault(client, {"rounds": 0})
        sums["rounds"] += 1
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value

    def _mean(self, client: str, name: str) -> float:
        return self.history[client][name] / self.history[client]["rounds"]

    def _estimate(self, client: str) -> Estimate:
        """The weight of ``client``, with a standard error where the variant is ``"paper"``.

        It is the standard error of the mean over rounds, scaled like the weight.
        """
        weight = self.weight[client]
        rounds = self.history[client]["rounds"]
        if self.variant != "paper" or rounds < 2:
            return Estimate(weight, None, rounds)
        mean = self._mean(client, "score")
        if mean <= 0:
            return Estimate(weight, None, rounds)
        variance = max(self._mean(client, "square") - mean**2, 0.0) * rounds / (rounds - 1)
        stderr = float(np.sqrt(variance / rounds))
        return Estimate(weight, stderr * weight / mean, rounds)


def leave_one_out_cosines(replies: Replies, prior: Mapping[str, float]) -> dict[str, float]:
    r"""The cosine of each update with the weighted sum of the others (FedCE Eq. 2).

    .. math:: \cos(\Delta_i, \sum_{j \ne i} \pi_j \Delta_j)

    All of them follow from the one Gram matrix.
    """
    weights = np.array([prior[reply.client] for reply in replies])
    cosines = replies.geometry.cosines_with_sum(weights, without_own=True)
    return {reply.client: float(c) for reply, c in zip(replies, cosines, strict=True)}


def _copies(replies: Replies) -> set[str]:
    """Clients that cannot take themselves and their copies out of the model.

    Only the first of a group can, whose buffers stand for all; and none where the updates are only
    nearly the same.
    """
    gram = replies.geometry.gram
    found: set[str] = set()
    for group in replies.groups:
        found.update(group[1:])
        rows = [row for row, reply in enumerate(replies) if reply.client in group]
        lengths = np.diag(gram)[rows]
        squares = lengths[:, None] + lengths - 2 * gram[np.ix_(rows, rows)]
        if squares.max() > ROUNDING * lengths.max():
            found.add(group[0])
    return found


def _distance(cosine: float) -> float:
    """One minus a cosine; 0 where only rounding is left, which would decide all weights.

    >>> _distance(0.75), _distance(1 - 1e-8)
    (0.25, 0.0)
    """
    distance = 1 - cosine
    return distance if abs(distance) > ROUNDING else 0.0


def _floored(values: Mapping[str, float]) -> dict[str, float]:
    return {client: max(value, RELEASED_FLOOR) for client, value in values.items()}
