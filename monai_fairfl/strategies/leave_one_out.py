# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out weighting: a client counts as much as the model loses without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monai_fairfl.messages import Train
from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.coalitions import JUDGED_BY, coalition_scores, mean_score
from monai_fairfl.strategies.quantities import Quantity


class LeaveOneOut(Strategy):
    r"""Weights by what the model loses without each client.

    .. math:: p_i = \max(V(N) - V(N \setminus i), 0) / \sum_j \max(V(N) - V(N \setminus j), 0)

    V is the validation Dice of a coalition's model, as for :class:`FedCI`, over the N + 1 largest
    coalitions only. All drops at or below 0 is uniform. The contribution is the mean drop over
    rounds.

    Args:
        judged_by: whose scores make V. ``"everybody"``: all clients', as in the paper;
            ``"others"``: for the drop of client i, those of all clients but i, so that nothing that
            a client reports of itself raises or lowers its own weight.

    This is the baseline of Jiang et al., CVPR 2023. A round has two exchanges: after training, each
    client downloads and scores N + 1 models; the server trusts these scores and the numbers of
    cases.

    >>> LeaveOneOut("others").name
    'LeaveOneOut-others'
    """

    additive = True
    requires = frozenset({"score"})
    min_clients = 2
    state = ("drops", "counts")
    quantities = {
        "drop": Quantity(
            "Dice lost without the site",
            "Dice",
            "Validation Dice of everybody's model less that of the model without the site; "
            "negative: better without it.",
        ),
    }

    def __init__(self, judged_by: str = "everybody", **parts: Any):
        if judged_by not in JUDGED_BY:
            raise ValueError(
                f"LeaveOneOut: judged_by must be one of {JUDGED_BY}, got {judged_by!r}"
            )
        self.judged_by = judged_by
        self.drops: dict[str, float] = {}  # client -> sum over its rounds
        self.counts: dict[str, int] = {}  # client -> number of its rounds
        super().__init__(**parts)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]

        # The scores of everybody's model, and of each model without one client.
        everybody = frozenset(local.clients)
        coalitions = {everybody: None}
        for client in local.clients:
            coalitions[everybody - local.copies_of(client)] = None
        scores = yield from coalition_scores(self, local, list(coalitions))

        # Drop: V(N) - V(N without i); the weights are its positive part, normalised.
        drops = {}
        for client in local.clients:
            left_out = client if self.judged_by == "others" else ""
            whole = mean_score(scores[everybody], left_out)
            without = scores[everybody - local.copies_of(client)]
            drops[client] = whole - mean_score(without, left_out)
        drops = local.shared(drops)
        weights = normalise(drops)

        # Contribution: the mean drop over the rounds that a client took part in.
        summed = {client: self.drops.get(client, 0.0) + drop for client, drop in drops.items()}
        counts = {client: self.counts.get(client, 0) + 1 for client in drops}
        means = {client: summed[client] / counts[client] for client in drops}

        result = self.finish(local, weights, means, details={"drop": drops}, divided=True)
        self.drops = {**self.drops, **summed}
        self.counts = {**self.counts, **counts}
        return result
