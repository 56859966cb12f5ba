# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE: fair federated segmentation by client contribution estimation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import normalise, prior_weights, uniform
from monai_fairfl.protocol.messages import Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


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
            at 1e-6; ``"released"``: the authors' first release, uniform prior for ever, floored at
            1e-3 after normalising (so that the weights may sum to more than one).

    A client's history is a mean over the rounds it took part in, each round's score relative to the
    uniform share: the same as the paper's sum under full participation, and no penalty for absence.
    In round 0 no model without i exists: its error counts as uniform (paper) or 1 (the two
    releases). An unseen client's prior is 1 / (known clients + 1).

    >>> FedCE("sum").mode
    'sum'
    """

    paper = "Jiang et al., CVPR 2023"
    estimates = "share of the average"
    client_does = "scores the model without itself; trains"
    client_sends = "update, 1 number"
    cost = "training + 1 validation pass"
    requires = frozenset({"leave_one_out_error"})
    min_clients = 2
    state = ("weight", "entered", "history", "rounds")

    def __init__(self, mode: str = "multi", variant: str = "paper"):
        check_choice(self, "mode", mode, ("multi", "sum", "cos", "err"))
        check_choice(self, "variant", variant, ("paper", "revised", "released"))
        self.mode, self.variant = mode, variant
        self.requires = frozenset() if mode == "cos" else type(self).requires  # type: ignore[misc]
        self.weight: dict[str, float] = {}  # last aggregation weight of every client ever seen
        self.entered: dict[str, float] = (
            {}
        )  # weights of the last round: who is in the present global model
        self.history: dict[str, dict[str, Any]] = {}  # client -> sums over its rounds
        self.rounds = 0

    def check_model(self, spec: ModelSpec, buffers: str) -> None:
        if buffers == "samples" and self.mode != "cos" and spec.buffers:
            raise ConfigError(
                "FedCE takes each client out of the average, which needs BatchNorm's statistics averaged with the same "
                "weights: use buffers 'aggregation' or 'local', or mode 'cos'"
            )

    def round(self, clients: Sequence[str]) -> Rounds:
        measure = tuple(self.requires) if self.rounds else ()
        local = yield [
            Train(client, self.start_of(client), measure, self.context_of(client))
            for client in clients
        ]
        distance = {
            c: 1 - cos
            for c, cos in leave_one_out_cosines(local, self._prior(local.clients)).items()
        }
        error = self.measured(local, "leave_one_out_error") if measure else None
        weights = self._accumulate(distance, error)
        self.weight |= weights
        self.rounds += 1
        result = self.finish(local, weights, {client: self._estimate(client) for client in weights})
        self.entered = {client: float(weight) for client, weight in result.aggregation.items()}  # type: ignore[arg-type]
        return result

    def context_of(self, client: str) -> Mapping[str, float]:
        """Return the client's weight in the present global model, which its error needs."""
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
        if self.variant == "released" or not self.weight:
            return uniform(clients)
        return prior_weights(self.weight, clients)

    def _accumulate(
        self, distance: Mapping[str, float], error: Mapping[str, float] | None
    ) -> dict[str, float]:
        """The new weights of this round's clients; their histories grow by this round."""
        if self.variant == "paper":
            share_cos = normalise(distance)
            share_err = normalise(error) if error else uniform(distance)
            score = {c: len(distance) * s for c, s in self._combine(share_cos, share_err).items()}
            if self.mode == "multi":
                score = {c: len(distance) * s for c, s in score.items()}
            for client, value in score.items():
                self._remember(client, score=value, square=value**2)
            return normalise({client: self._mean(client, "score") for client in score})
        for client, value in distance.items():
            self._remember(client, cos=1 - value, dice=1 - error[client] if error else 0.0)
        novelty = {c: max(0.0, 1 - self._mean(c, "cos")) for c in distance}
        harm = {c: 1 - self._mean(c, "dice") for c in distance}
        if self.variant == "revised":
            return normalise(self._combine(normalise(novelty, 1e-6), normalise(harm, 1e-6)), 1e-6)
        combined = self._combine(_floored(normalise(novelty)), _floored(normalise(harm)))
        return _floored(normalise(combined))

    def _combine(self, cos: Mapping[str, float], err: Mapping[str, float]) -> dict[str, float]:
        rule = {
            "multi": lambda c: cos[c] * err[c],
            "sum": lambda c: cos[c] + err[c],
            "cos": lambda c: cos[c],
            "err": lambda c: err[c],
        }[self.mode]
        return {client: rule(client) for client in cos}

    def _remember(self, client: str, **values: float) -> None:
        sums = self.history.setdefault(client, {"rounds": 0})
        sums["rounds"] += 1
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value

    def _mean(self, client: str, name: str) -> float:
        return self.history[client][name] / self.history[client]["rounds"]

    def _estimate(self, client: str) -> Estimate:
        """The weight, with the standard error of the mean over rounds (``paper``; scaled like the
        weight).
        """
        n, value = self.history[client]["rounds"], self.weight[client]
        if self.variant != "paper" or n < 2:
            return Estimate(value, None, n)
        mean = self._mean(client, "score")
        variance = max(self._mean(client, "square") - mean**2, 0.0) * n / (n - 1)
        return Estimate(value, float(np.sqrt(variance / n)) * value / mean if mean > 0 else None, n)


def leave_one_out_cosines(replies: Replies, prior: Mapping[str, float]) -> dict[str, float]:
    """client i -> cos(update_i, sum over j != i of prior_j update_j), all from the one Gram matrix
    (FedCE Eq. 2).
    """
    weights = np.array([prior[reply.client] for reply in replies])
    unit = np.eye(len(replies))
    return {
        r.client: replies.geometry.cosine(unit[i], weights * (1 - unit[i]))
        for i, r in enumerate(replies)
    }


def _floored(values: Mapping[str, float], floor: float = 1e-3) -> dict[str, float]:
    return {client: max(value, floor) for client, value in values.items()}
