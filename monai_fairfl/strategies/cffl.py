# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CFFL: reputations from the validation score of each client's own model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monai_fairfl.protocol.averages import merge_with_absent, normalise, renormalised_previous
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


class CFFL(Strategy):
    r"""Collaborative fairness by reputation (Lyu et al., Federated Learning 2020), as a weighting
    of the average.

    With :math:`v_i` the validation Dice of client i's own trained model and R the reputable
    clients:

    .. math:: r_i \leftarrow f r_i + (1 - f) \frac{v_i}{\sum_{R} v}, \quad r_i \leftarrow \sinh(a r_i), \quad
              r_i \leftarrow r_i / \sum_R r

    A client below the threshold t / \|R\| is no longer reputable: weight 0 from then on.

    Args:
        fade: f, of the moving average; ``None``: as the variant says.
        alpha: a; it doubles over the run when ``grow``.
        grow: :math:`a (1 + round / rounds)`; ``None``: as the variant says.
        threshold: t; 1/3 in the authors' code, 1/6 for class imbalance.
        variant: ``"released"``, the authors' code: fade 0.8, a grows; ``"paper"``: fade 0.5, a
            stays.

    The authors' server has a validation set and scores clipped, sparsified updates; hospitals do
    not share one, so each scores its own model. Their reward, a part of the update by reputation
    beside what a client trained itself, is
    ``compose(CFFL(), reward=Sparsified(ratio="share", rest="own"))``.

    >>> round(CFFL().fade, 1)
    0.8
    """

    paper = "Lyu et al., Federated Learning 2020"
    estimates = "share, by scores of the clients' own models"
    client_does = "trains; scores its own model"
    client_sends = "update, 1 number"
    cost = "training + 1 validation pass"
    requires = frozenset({"local_score"})
    min_clients = 2
    state = ("reputation", "rounds")

    def __init__(
        self,
        fade: float | None = None,
        alpha: float = 5.0,
        grow: bool | None = None,
        threshold: float = 1 / 3,
        variant: str = "released",
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        fade = fade if fade is not None else {"paper": 0.5, "released": 0.8}[variant]
        if not 0 <= fade < 1 or not alpha > 0 or not 0 <= threshold < 1:
            raise ValueError(
                f"CFFL: fade and threshold must be in [0, 1) and alpha above 0, got {fade!r}, {threshold!r}, {alpha!r}"
            )
        self.fade, self.alpha, self.threshold, self.variant = fade, alpha, threshold, variant
        self.grow = grow if grow is not None else variant == "released"
        self.reputation: dict[str, float] = {}
        self.rounds = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("local_score",)) for client in clients]
        reputation = self._update(self.measured(local, "local_score"))
        weights = normalise({c: reputation[c] for c in local.clients})
        for client, weight in weights.items():
            if weight == 0:
                self.note(
                    client,
                    "its reputation is below the threshold, for good: it does not count any more",
                )
        result = self.finish(local, weights, weights, details={"reputation": reputation})
        self.reputation, self.rounds = reputation, self.rounds + 1
        return result

    def _update(self, score: dict[str, float]) -> dict[str, float]:
        known = {c: r for c, r in self.reputation.items() if r > 0}
        reputable = [
            c for c in score if self.reputation.get(c, 1.0) > 0
        ]  # nobody, where all who count are away
        before = renormalised_previous(known, reputable) if known else dict.fromkeys(reputable, 0.0)
        share = normalise({c: score[c] for c in reputable})
        alpha = (
            self.alpha * (1 + self.rounds / max(self.rounds_planned, 1))
            if self.grow
            else self.alpha
        )
        moved = {c: self.fade * before[c] + (1 - self.fade) * share[c] for c in reputable}
        fresh = normalise({c: math.sinh(alpha * value) for c, value in moved.items()})
        kept = {c: r if r >= self.threshold / len(reputable) else 0.0 for c, r in fresh.items()}
        return {
            **dict.fromkeys([*self.reputation, *score], 0.0),
            **merge_with_absent(known, normalise(kept)),
        }
