# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CFFL: reputations from the validation score of each client's own model."""

from __future__ import annotations

import numpy as np

from monai_fairfl.replies import normalise
from monai_fairfl.strategies.base import Memory, Rounds, Shares, Strategy
from monai_fairfl.utils.arguments import argument, remembered


class CFFL(Strategy):
    r"""Collaborative fairness by reputation (Lyu et al., Federated Learning 2020).

    The reputations are the weights of the average. With :math:`v_i` the validation Dice of client
    i's own trained model and R the reputable clients:

    .. math:: r_i \leftarrow f r_i + (1 - f) \frac{v_i}{\sum_{R} v}, \quad
              r_i \leftarrow \sinh(a r_i), \quad r_i \leftarrow r_i / \sum_R r

    A client below the threshold t / \|R\| is no longer reputable: weight 0 from then on.

    Args:
        fade: f, of the moving average; ``None``: the variant's.
        alpha: a, from 0.001 to 300; in the variant ``"released"`` it doubles over the run. At 100 a
            reputation larger by 0.05 is 148 times the weight; above the range sinh overflows.
        threshold: t; 1/3 in the authors' code, 1/6 for class imbalance.
        variant: ``"released"``, the authors' code: fade 0.8, a grows; ``"paper"``: fade 0.5, a
            stays.

    The authors' server has a validation set and scores clipped, sparsified updates; hospitals do
    not share one, so each scores its own model. Their reward, a part of the update by reputation
    beside what a client trained itself, is
    ``CFFL(reward=Sparsified(ratio="share", rest="own"))``. It trusts the scores that clients
    report.

    >>> round(CFFL().fade, 1)
    0.8
    """

    fade: float = argument(None, "[0, 1)")
    alpha: float = argument(5.0, "[1e-3, 300]")
    threshold: float = argument(1 / 3, "[0, 1)")
    variant: str = argument("released", ("released", "paper"))
    reputation: Memory = remembered(Memory)  # of all clients; 0: no longer reputable
    rounds: int = remembered(int)

    variants = {"released": {"fade": 0.8}, "paper": {"fade": 0.5}}
    has_contributions = True
    requires = frozenset({"local_score"})
    gains_when = {"local_score": "high"}
    min_clients = 2

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients, ("local_score",))
        scores = self.measured(local, "local_score")
        names = local.clients

        # R: the present clients that are reputable, or new. There may be none.
        known = Shares({client: value for client, value in self.reputation.items() if value > 0})
        is_reputable = self.reputation.of(names, 1.0) > 0
        reputable = [client for client, is_one in zip(names, is_reputable, strict=True) if is_one]

        # r <- f r + (1 - f) v / sum_R v, where the first r is 0.
        previous = known.of_present(reputable) if known else np.zeros(len(reputable))
        smoothed = self.fade * previous + (1 - self.fade) * normalise(scores[is_reputable])

        # r <- sinh(a r), divided by the sum over R; a doubles over the run.
        alpha = self.alpha
        if self.variant == "released":
            alpha = alpha * (1 + self.rounds / max(self.rounds_planned, 1))
        amplified = normalise(np.sinh(alpha * smoothed))

        # A client below t / |R| is not reputable any more.
        remaining = amplified >= self.threshold / max(len(reputable), 1)
        known.put(reputable, normalise(np.where(remaining, amplified, 0.0)))

        # Sorted, as a resumed run reads them, so that the bits of later sums are the same.
        everybody = sorted({*self.reputation, *names})
        self.reputation = Memory({client: known.get(client, 0.0) for client in everybody})
        self.rounds += 1

        # The reputations of the present clients are the weights of the average.
        weights = normalise(self.reputation.of(names, 0.0))
        for row in np.flatnonzero(weights == 0):
            self.note(
                names[row],
                "its reputation is 0 or below the threshold, for good: it does not count any more",
            )
        return self.finish(local, weights, weights, details={"reputation": dict(self.reputation)})
