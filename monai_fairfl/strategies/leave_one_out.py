# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out weighting: a client counts as much as the model loses without it."""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.protocol.averages import normalise
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice
from monai_fairfl.strategies.coalitions import coalition_values


class LeaveOneOut(Strategy):
    r"""Weights by what the model loses without each client:
    :math:`\max(V(N) - V(N \setminus i), 0)` over their sum.

    V is the validation Dice of a coalition's model, as for :class:`FedCI`, over the N + 1 largest
    coalitions only. All drops at or below 0 is uniform. The contribution is the mean drop over
    rounds.

    Args:
        variant: ``"paper"``, the only one.

    >>> LeaveOneOut().phases
    2
    """

    paper = "the baseline of Jiang et al., CVPR 2023"
    estimates = "Dice lost without the client, mean over rounds"
    client_does = "trains; scores the models without each client"
    client_sends = "update, N + 1 numbers"
    phases = 2
    cost = "training + N + 1 validation passes and downloads"
    requires = frozenset({"score"})
    min_clients = 2
    state = ("drops", "counts")

    def __init__(self, variant: str = "paper"):
        check_choice(self, "variant", variant, ("paper",))
        self.variant = variant
        self.drops: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        everybody = frozenset(local.clients)
        value = yield from coalition_values(
            self, local, [everybody, *(everybody - {c} for c in local.clients)]
        )
        drop = {c: value[everybody] - value[everybody - {c}] for c in local.clients}
        drops = {c: self.drops.get(c, 0.0) + d for c, d in drop.items()}
        counts = {c: self.counts.get(c, 0) + 1 for c in drop}
        mean = {c: drops[c] / counts[c] for c in drop}
        result = self.finish(local, normalise(drop), mean, details={"drop": drop})
        self.drops, self.counts = {**self.drops, **drops}, {**self.counts, **counts}
        return result
