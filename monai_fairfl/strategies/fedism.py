# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM: sharpness-aware local training, aggregation by sharpness."""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.protocol.averages import merge_with_absent, normalise, renormalised_previous
from monai_fairfl.protocol.messages import Measure, Train
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice


class FedISM(Strategy):
    r"""Federated learning against image-quality shift by sharpness (Wu et al., IJCAI 2024).

    Sharpness of client k: how much its loss rises when the received model moves the distance rho up
    its gradient, :math:`s_k = L_k(w + \rho g / ||g||) - L_k(w)`. Clients train with GSAM, which
    seeks flat minima (SALT); the server averages by sharpness, so that no client is left with a
    sharp one (SAGA):

    .. math:: a_k = s_k^q / \sum_j s_j^q, \qquad \tilde a_k \leftarrow \beta a_k + (1 - \beta) \tilde a_k

    Args:
        q: power, at least 0; 0 is uniform, large values leave all to the sharpest client.
        beta: of the moving average, on the new value, in (0, 1]; 1: no averaging.
        rho: radius of the perturbation, in training and in measuring.
        alpha: GSAM's share of the orthogonal gradient; 0 is SAM.
        salt: clients train with GSAM (SALT); ``False``: as the bundle says, and only the average is
            by sharpness (SAGA, the ablation of the paper's Table 2). SALT alone: FedAvg composed
            with ``sam_rho``.
        reset_optimizer: forget the optimizer's moments before every round; ``None``: as the variant
            says.
        plus: FedISM+, a radius that grows, :math:`\rho_r = \rho \sqrt{(r + 1) / R}`.
        variant: ``"recommended"`` and ``"released"``: a new optimizer in every round, as in the
            authors' code; ``"paper"``: the optimizer goes on, the paper does not speak of it. The
            formulas are the same in all.

    Sharpness is measured on the received model, on all local training images without changing
    augmentation, and may come out negative: such a client gets the least weight; all at or below 0
    is uniform. There is no logit adjustment: it shifts the logits of whole-image classes by their
    frequency, and a segmentation's foreground share is learnt by the Dice loss.

    >>> FedISM(beta=1.0).name
    'FedISM-beta_1.0'
    """

    paper = "Wu et al., IJCAI 2024"
    client_does = "measures sharpness; trains with GSAM"
    client_sends = "update, 1 number"
    cost = "2 x training + 3 passes over the training images"
    requires = frozenset({"sharpness"})
    min_clients = 2
    state = ("average", "rounds")

    def __init__(
        self,
        q: float = 2.0,
        beta: float = 0.5,
        rho: float = 0.05,
        alpha: float = 0.1,
        salt: bool = True,
        reset_optimizer: bool | None = None,
        plus: bool = False,
        variant: str = "recommended",
    ):
        check_choice(self, "variant", variant, ("recommended", "paper", "released"))
        if q < 0 or not 0 < beta <= 1 or rho < 0:
            raise ValueError(
                f"FedISM: q and rho must be at least 0 and beta in (0, 1], got q={q}, beta={beta}, rho={rho}"
            )
        self.q, self.beta, self.rho, self.alpha, self.salt = q, beta, rho, alpha, salt
        self.reset_optimizer, self.plus, self.variant = reset_optimizer, plus, variant
        self.average: dict[str, float] = {}
        self.rounds = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        reset = self.variant != "paper" if self.reset_optimizer is None else self.reset_optimizer
        begin, radius = {"reset_optimizer": float(reset)}, {"sam_rho": self._radius()}
        if self.salt:
            context = {**begin, **radius, "gsam_alpha": self.alpha}
            local = yield [
                Train(client, self.start_of(client), ("sharpness",), context) for client in clients
            ]
            sharpness = self.measured(local, "sharpness")
        else:
            sent = yield [
                Measure(client, self.start_of(client), ("sharpness",), radius) for client in clients
            ]
            found = self.measured(sent, "sharpness")
            local = yield [
                Train(client, self.start_of(client), (), begin) for client in sent.clients
            ]
            sharpness = {client: found[client] for client in local.clients}
        weights = self._average(self._by_sharpness(sharpness))
        result = self.finish(local, weights, weights, details={"sharpness": sharpness})
        self.average, self.rounds = merge_with_absent(self.average, weights), self.rounds + 1
        return result

    def _radius(self) -> float:
        if not self.plus:
            return self.rho
        return float(
            self.rho * ((self.rounds + 1) / max(self.rounds_planned, self.rounds + 1)) ** 0.5
        )

    def _by_sharpness(self, sharpness: dict[str, float]) -> dict[str, float]:
        share = normalise({c: max(s, 1e-10) for c, s in sharpness.items()})
        return normalise({c: (s + 1e-10) ** self.q for c, s in share.items()})

    def _average(self, new: dict[str, float]) -> dict[str, float]:
        if not self.average:
            return new
        old = normalise(renormalised_previous(self.average, new))
        return normalise({c: self.beta * new[c] + (1 - self.beta) * old[c] for c in new})
