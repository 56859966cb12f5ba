# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CFFL: reputations from the validation score of each client's own model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.messages import Train
from monai_fairfl.replies import merge_with_absent, normalise, renormalised_previous
from monai_fairfl.strategies.arguments import check_choice, check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.quantities import Quantity

ALPHAS = (1e-3, 300.0)
"""Least and largest alpha: below, sinh is a straight line; above, it overflows where a grows."""


class CFFL(Strategy):
    r"""Collaborative fairness by reputation (Lyu et al., Federated Learning 2020).

    The reputations are the weights of the average. With :math:`v_i` the validation Dice of client
    i's own trained model and R the reputable clients:

    .. math:: r_i \leftarrow f r_i + (1 - f) \frac{v_i}{\sum_{R} v}, \quad
              r_i \leftarrow \sinh(a r_i), \quad r_i \leftarrow r_i / \sum_R r

    A client below the threshold t / \|R\| is no longer reputable: weight 0 from then on.

    Args:
        fade: f, of the moving average; ``None``: the variant's.
        alpha: a, from 0.001 to 300; it doubles over the run when ``grow``.
        grow: :math:`a (1 + round / rounds)`; ``None``: the variant's.
        threshold: t; 1/3 in the authors' code, 1/6 for class imbalance.
        variant: ``"released"``, the authors' code: fade 0.8, a grows; ``"paper"``: fade 0.5, a
            stays.

    The authors' server has a validation set and scores clipped, sparsified updates; hospitals do
    not share one, so each scores its own model. Their reward, a part of the update by reputation
    beside what a client trained itself, is
    ``CFFL(reward=Sparsified(ratio="share", rest="own"))``.

    Each client also sends the score of its own model, which costs a validation pass; the server
    trusts this number. The contribution is the reputation.

    >>> round(CFFL().fade, 1)
    0.8
    """

    additive = True
    requires = frozenset({"local_score"})
    gains_when = {"local_score": "high"}
    min_clients = 2
    state = ("reputation", "rounds")
    quantities = {
        "reputation": Quantity(
            "Reputation",
            "Reputation",
            "Follows the validation Dice of each site's own model; the sites' reputations sum to "
            "1, and 0 is a site that no longer counts.",
        ),
    }

    def __init__(
        self,
        fade: float | None = None,
        alpha: float = 5.0,
        grow: bool | None = None,
        threshold: float = 1 / 3,
        variant: str = "released",
        **parts: Any,
    ):
        check_choice(self, "variant", variant, ("paper", "released"))
        if fade is None:
            fade = 0.5 if variant == "paper" else 0.8
        if grow is None:
            grow = variant == "released"
        check_choice(self, "grow", grow, (True, False))
        check_numbers(self, fade=fade, alpha=alpha, threshold=threshold)
        if not 0 <= fade < 1 or not 0 <= threshold < 1:
            raise ValueError(
                f"CFFL: fade and threshold must be in [0, 1), got {fade!r}, {threshold!r}"
            )
        least, most = ALPHAS
        if not least <= alpha <= most:
            raise ValueError(
                f"CFFL: alpha must be from {least:g} to {most:g}, got {alpha!r}. The larger it is, "
                "the more one client has: at 100 a reputation larger by 0.05 is 148 times the "
                "weight. Below the range nothing changes any more, above it sinh overflows"
            )
        self.fade = fade
        self.alpha = alpha
        self.grow = grow
        self.threshold = threshold
        self.variant = variant
        self.reputation: dict[str, float] = {}  # of all clients; 0: no longer reputable
        self.rounds = 0
        super().__init__(**parts)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("local_score",)) for client in clients]
        scores = self.measured(local, "local_score")
        reputation = self._updated_reputation(scores)

        # The reputations of the present clients are the weights of the average.
        weights = normalise({client: reputation[client] for client in local.clients})
        for client, weight in weights.items():
            if weight == 0:
                self.note(
                    client,
                    "its reputation is 0 or below the threshold, for good: it does not count any "
                    "more",
                )
        result = self.finish(local, weights, weights, details={"reputation": reputation})
        self.reputation = reputation
        self.rounds += 1
        return result

    def _updated_reputation(self, scores: Mapping[str, float]) -> dict[str, float]:
        """The reputations of all clients ever seen, after this round's scores."""
        # R: the present clients that are reputable, or new. There may be none.
        known = {client: value for client, value in self.reputation.items() if value > 0}
        reputable = [client for client in scores if self.reputation.get(client, 1.0) > 0]

        # r <- f r + (1 - f) v / sum_R v, where the first r is 0.
        if known:
            previous = renormalised_previous(known, reputable)
        else:
            previous = dict.fromkeys(reputable, 0.0)
        shares = normalise({client: scores[client] for client in reputable})
        smoothed = {}
        for client in reputable:
            smoothed[client] = self.fade * previous[client] + (1 - self.fade) * shares[client]

        # r <- sinh(a r), divided by the sum over R.
        alpha = self._alpha()
        amplified = {client: math.sinh(alpha * value) for client, value in smoothed.items()}
        normalised = normalise(amplified)

        # A client below t / |R| is not reputable any more.
        remaining = {}
        for client, value in normalised.items():
            is_reputable = value >= self.threshold / len(reputable)
            remaining[client] = value if is_reputable else 0.0

        # Sorted, as a resumed run reads them, so that the bits of later sums are the same.
        everybody = sorted({*self.reputation, *scores})
        reputation = dict.fromkeys(everybody, 0.0)
        reputation.update(merge_with_absent(known, normalise(remaining)))
        return reputation

    def _alpha(self) -> float:
        """The factor a of this round."""
        if not self.grow:
            return self.alpha
        return self.alpha * (1 + self.rounds / max(self.rounds_planned, 1))
