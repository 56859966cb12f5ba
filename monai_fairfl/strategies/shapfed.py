# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed: class-specific Shapley values from the rows of the output layer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import (
    merge_with_absent,
    normalise,
    renormalised_previous,
    uniform,
)
from monai_fairfl.protocol.geometry import cosine
from monai_fairfl.protocol.messages import Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.strategies.base import Rounds, Strategy, check_choice
from monai_fairfl.strategies.rewards import Mixed

logger = logging.getLogger(__name__)


class ShapFed(Strategy):
    r"""Class-specific Shapley values (Tastan et al., IJCAI 2024, Eq. 6-10 and Algorithm 1).

    Of every client's update only the output layer's rows count, one per class with its bias. The
    class value is the cosine of client i's row with the server's,
    :math:`\Gamma_{i,j} \leftarrow \mu \Gamma_{i,j} + (1 - \mu) \cos(w_{i,j}, \sum_k \tilde\gamma_k w_{k,j})`; the contribution
    :math:`\gamma_i = \frac{1}{M} \sum_j (1 + \Gamma_{i,j}) / 2` is in [0, 1], the weight
    :math:`\tilde\gamma_i = \gamma_i / \sum_k \gamma_k` (ShapFed-WA).

    Args:
        mu: momentum of the class values, in [0, 1).
        output_layer: module that makes the logits; ``None``: the one found when the network ran.
        personalised: every client receives :math:`\gamma_i w_s + (1 - \gamma_i) w_i`, its share of
            the global model.
        scale: ``"max"``: mix with :math:`\gamma_i / \max \gamma`, so that the greatest contributor
            gets w_s.
        variant: ``"recommended"``: average with this round's new weights; ``"paper"``: with those
            of before the round; ``"released"``: new weights, contribution the raw mean cosine
            (floored at 0), and personal models mixed with the normalised weight of about 1 / N.

    A class that a client does not label is compared among the others only, and does not enter its
    contribution; where nobody else who labels it is there, its value stays.
    A network with one output channel has one class; the method then compares whole output layers,
    and says so.

    >>> ShapFed(personalised=True).name
    'ShapFed-personalised'
    """

    paper = "Tastan et al., IJCAI 2024"
    estimates = "agreement with the average, 0 to 1"
    min_clients = 2
    state = ("classes", "weight")

    def __init__(
        self,
        mu: float = 0.9,
        output_layer: str | None = None,
        personalised: bool = False,
        scale: str = "none",
        variant: str = "recommended",
    ):
        check_choice(self, "variant", variant, ("recommended", "paper", "released"))
        if not 0 <= mu < 1:
            raise ValueError(f"ShapFed: mu must be in [0, 1), got {mu!r}")
        self.mu, self.output_layer, self.personalised, self.scale, self.variant = (
            mu, output_layer, personalised, scale, variant,
        )  # fmt: skip
        self.mixed = Mixed(scale)
        self.classes: dict[str, list[float | None]] = (
            {}
        )  # client -> smoothed class values; None: it labels none
        self.weight: dict[str, float] = {}  # the last weights

    def check_model(self, spec: ModelSpec, buffers: str) -> None:
        if self.output_layer is None and spec.output is None:
            raise ConfigError(
                f"{self.name} looks at the layer that makes the logits, and nobody knows which one "
                f"that is: name its module, for example {type(self).__name__}(output_layer='head')"
            )

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        super().start(weights, clients, spec)
        module, axis = (self.output_layer, 0) if self.output_layer else (spec.output or ("", 0))
        weight = weights.get(f"{module}.weight" if module else "weight")
        if weight is not None and weight.shape[axis] == 1:
            logger.warning(
                "ShapFed: the output layer %r has one class only, so class values compare whole output layers; "
                "it is made for several classes (disc and cup). Two channels under one softmax are no more than one",
                module,
            )

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        names = local.clients
        before = (
            normalise(renormalised_previous(self.weight, names)) if self.weight else uniform(names)
        )
        rows, unit = np.array([before[c] for c in names]), np.eye(len(names))
        grams = local.geometry.classes(self.output_layer)
        told = np.ones((len(names), len(grams)), bool)
        if local.labelled is not None and local.labelled.shape == told.shape:
            told = local.labelled & (
                local.labelled.sum(0) > 1
            )  # alone with a class it only agrees with itself
        now = {
            c: [
                cosine(gram, unit[i], rows * told[:, j]) if told[i, j] else None
                for j, gram in enumerate(grams)
            ]
            for i, c in enumerate(names)
        }
        smoothed = {c: self._smooth(self.classes.get(c), now[c]) for c in names}
        gamma = {c: self._contribution(smoothed[c]) for c in names}
        weights = normalise(gamma)
        mixing = weights if self.variant == "released" else gamma
        reward = self.mixed if self.personalised else None
        details = {
            "class_value": {c: {str(j): v for j, v in enumerate(smoothed[c])} for c in names}
        }
        result = self.finish(
            local, before if self.variant == "paper" else weights, mixing, reward, details=details
        )
        self.classes, self.weight = {**self.classes, **smoothed}, merge_with_absent(
            self.weight, weights
        )
        return result

    def _smooth(
        self, old: list[float | None] | None, new: list[float | None]
    ) -> list[float | None]:
        if old is None:
            return new
        pairs = zip(old, new, strict=True)
        return [
            o if n is None else n if o is None else self.mu * o + (1 - self.mu) * n
            for o, n in pairs
        ]

    def _contribution(self, values: list[float | None]) -> float:
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if known else 0.0
        return max(mean, 0.0) if self.variant == "released" else (1 + mean) / 2
