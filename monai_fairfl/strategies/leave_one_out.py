# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out weighting: a client counts as much as the model loses without it."""

from __future__ import annotations

import numpy as np

from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Memory, Rounds, Strategy
from monai_fairfl.strategies.coalitions import JUDGED_BY, coalition_scores, mean_score
from monai_fairfl.utils.arguments import argument, remembered


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

    It trusts the scores and numbers of cases that clients report; N + 1 models are scored a round.

    >>> LeaveOneOut("others").name
    'LeaveOneOut-others'
    """

    judged_by: str = argument("everybody", JUDGED_BY)
    drops: Memory = remembered(Memory)  # client -> sum over its rounds
    counts: Memory = remembered(Memory)  # client -> number of its rounds

    has_contributions = True
    requires = frozenset({"score"})
    min_clients = 2

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients)

        # The scores of everybody's model, and of each model without one client.
        names = local.clients
        everybody = frozenset(names)
        without = [everybody - {client} for client in names]
        scores = yield from coalition_scores(self, local, [everybody, *without])

        # Drop: V(N) - V(N without i); the weights are its positive part, normalised.
        drop = np.zeros(len(local))
        for row, client in enumerate(names):
            left_out = client if self.judged_by == "others" else ""
            whole = mean_score(scores[everybody], left_out)
            drop[row] = whole - mean_score(scores[without[row]], left_out)
        weights = normalise(drop)

        # Contribution: the mean drop over the rounds that a client took part in.
        contributions = self.drops.add(names, drop) / self.counts.add(names, 1)
        return self.finish(local, weights, contributions, details={"drop": drop})
