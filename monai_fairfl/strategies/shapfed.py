# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed: class-specific Shapley values from the rows of the output layer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import ModelSpec, Train, Weights, bias_of, weight_of
from monai_fairfl.replies import (
    Replies,
    cosine,
    merge_with_absent,
    normalise,
    renormalised_previous,
    uniform,
)
from monai_fairfl.strategies.arguments import check_choice, check_layer, check_numbers
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.strategies.parts import Details, Reward
from monai_fairfl.strategies.quantities import Quantity
from monai_fairfl.strategies.rewards import Mixed

logger = logging.getLogger(__name__)

ClassValues = list[float | None]
"""Of one client, in the order of the classes; ``None``: it does not label the class."""


class ShapFed(Strategy):
    r"""Class-specific Shapley values (Tastan et al., IJCAI 2024, Eq. 6-10 and Algorithm 1).

    Of every client's update only the output layer's rows count, one per class with its bias. The
    class value is the cosine of client i's row with the server's, smoothed over rounds:

    .. math:: \Gamma_{i,j} \leftarrow \mu \Gamma_{i,j}
              + (1 - \mu) \cos(w_{i,j}, \sum_k \tilde\gamma_k w_{k,j})

    The contribution :math:`\gamma_i = \frac{1}{M} \sum_j (1 + \Gamma_{i,j}) / 2` is in [0, 1], the
    weight is :math:`\tilde\gamma_i = \gamma_i / \sum_k \gamma_k` (ShapFed-WA).

    Args:
        mu: momentum of the class values, in [0, 1).
        output_layer: module that makes the logits; ``None``: the one found when the network ran.
        personalised: every client receives :math:`\gamma_i w_s + (1 - \gamma_i) w_i`, its share of
            the global model.
        scale: ``"max"``: mix with :math:`\gamma_i / \max \gamma`, so that the greatest contributor
            gets w_s.
        variant: ``"recommended"``: average with this round's new weights; ``"paper"``: with the
            previous weights; ``"released"``: new weights, contribution the raw mean cosine
            (floored at 0), and personal models mixed with the normalised weight of about 1 / N.

    A class that a client does not label is compared among the others only, and does not enter its
    contribution; where no other present client labels it, its value stays. A class that a client
    labelled in an earlier round, and no longer labels, is noted: its value counts only where it is
    below the mean of the classes that the client labels now.
    A network with one output channel has one class; the method then compares whole output layers,
    and logs a warning.

    The server trusts the output layer of updates, and which classes clients report as labelled.

    >>> ShapFed(personalised=True).name
    'ShapFed-personalised'
    """

    additive = False
    min_clients = 2
    state = ("classes", "weight")
    quantities = {
        "class_value": Quantity(
            "Class values",
            "Cosine",
            "Cosine of a site's update and the sum of all updates by the previous weights of the "
            "method, in the output layer's row of each class, smoothed over rounds: 1 is the same "
            "direction, -1 the opposite.",
            key="class",
        ),
    }

    def __init__(
        self,
        mu: float = 0.9,
        output_layer: str | None = None,
        personalised: bool = False,
        scale: str = "none",
        variant: str = "recommended",
        **parts: Any,
    ):
        check_choice(self, "variant", variant, ("recommended", "paper", "released"))
        check_choice(self, "personalised", personalised, (True, False))
        check_numbers(self, mu=mu)
        if not 0 <= mu < 1:
            raise ValueError(f"ShapFed: mu must be in [0, 1), got {mu!r}")
        self.mu = mu
        self.output_layer = output_layer
        self.personalised = personalised
        self.scale = scale
        self.variant = variant
        self.mixed = Mixed(scale)
        self.classes: dict[str, ClassValues] = {}  # Gamma, smoothed, of all clients
        self.weight: dict[str, float] = {}  # gamma tilde, of all clients
        super().__init__(**parts)

    def check_model(self, spec: ModelSpec, buffers: str) -> None:
        layer = self.output_layer
        if layer is None:
            if spec.output is None:
                raise ConfigError(
                    f"{self.name} looks at the layer that makes the logits, and nobody knows which "
                    "one that is: name its module, for example "
                    f"{type(self).__name__}(output_layer='head')"
                )
            layer, _ = spec.output
        check_layer(self, "output_layer", layer, _layers_with_classes(spec))

    def start(self, weights: Weights, clients: Sequence[str], spec: ModelSpec) -> None:
        super().start(weights, clients, spec)
        spec = replace(spec, output=spec.output_layer(self.output_layer))
        classes = spec.classes(weights)
        self._check_bias(spec, weights, classes)
        if classes == 1:
            logger.warning(
                "ShapFed: the output layer %r has one class only, so class values compare whole "
                "output layers; it is made for several classes (disc and cup). Two channels under "
                "one softmax are no more than one",
                spec.output[0] if spec.output else "",
            )

    def _check_bias(self, spec: ModelSpec, weights: Weights, classes: int) -> None:
        """Refuse an output layer whose bias has not one value per class of its weight.

        Raises:
            ConfigError: naming the layer, both numbers and the fix.
        """
        layer = spec.output[0] if spec.output else ""
        bias = weights.get(bias_of(layer))
        if bias is not None and len(bias) != classes:
            raise ConfigError(
                f"{self.name}: the weight of output layer {layer!r} has {classes} classes, and its "
                f"bias has {len(bias)}: name a convolution or a linear layer as output_layer, or "
                "none, and a run of the network at the start finds it"
            )

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]

        # The server's rows are averaged with the previous weights, 1 / N at first.
        if self.weight:
            previous = normalise(renormalised_previous(self.weight, local.clients))
        else:
            previous = uniform(local.clients)

        # Class values Gamma_ij: cosines of the clients' rows with the server's, smoothed.
        labelled = _labelled(local, len(local.geometry.classes(self.output_layer)))
        smoothed = {}
        for client, values in self._class_values(local, labelled, previous).items():
            smoothed[client] = self._smoothed(self.classes.get(client), values)

        # The values that count: no client gains by reporting that it no longer labels a class.
        counted = {}
        for client, of_client in zip(local.clients, labelled.tolist(), strict=True):
            self._note_no_longer_labelled(client, of_client)
            counted[client] = self._counted(smoothed[client], of_client)

        # Contributions gamma_i: the mean of (1 + Gamma_ij) / 2 over classes; normalised, they are
        # the weights (ShapFed-WA).
        gamma = {client: self._contribution(values) for client, values in counted.items()}
        weights = normalise(gamma)

        # The paper averages with the previous weights, its authors' code with the new ones.
        aggregation = previous if self.variant == "paper" else weights

        # Personalised, client i receives gamma_i w_s + (1 - gamma_i) w_i (Eq. 10); in the authors'
        # code, the normalised gamma.
        reward: Reward | None = None
        if self.personalised:
            reward = self.mixed
            if self.variant == "released":
                reward = _MixedBy(self.mixed, weights)

        by_class = {}
        for client, values in counted.items():
            by_class[client] = {str(number): value for number, value in enumerate(values)}
        details = {"class_value": by_class}
        result = self.finish(local, aggregation, gamma, reward, details=details)
        self.classes = {**self.classes, **smoothed}
        self.weight = merge_with_absent(self.weight, weights)
        return result

    def _class_values(
        self, local: Replies, labelled: np.ndarray, weights: Mapping[str, float]
    ) -> dict[str, ClassValues]:
        """The cosine of each client's row with the server's, for each class of the output layer.

        Args:
            local: the replies.
            labelled: which client labels which class, shape (N, classes).
            weights: of the clients in the server's row.
        """
        grams = local.geometry.classes(self.output_layer)
        # A class that one client alone labels counts as labelled by nobody: the client would only
        # agree with itself.
        compared = labelled & (labelled.sum(0) > 1)
        server = local.geometry.once([weights[client] for client in local.clients])
        itself = np.eye(len(local.clients))
        found = {}
        for row, client in enumerate(local.clients):
            values: ClassValues = []
            for number, gram in enumerate(grams):
                if compared[row, number]:
                    values.append(cosine(gram, itself[row], server * compared[:, number]))
                else:
                    values.append(None)
            found[client] = values
        return found

    def _smoothed(self, previous: ClassValues | None, new: ClassValues) -> ClassValues:
        """mu Gamma + (1 - mu) cosine for each class; where one of both is unknown, the other."""
        if previous is None:
            return new
        smoothed: ClassValues = []
        for earlier, value in zip(previous, new, strict=True):
            if value is None:
                smoothed.append(earlier)
            elif earlier is None:
                smoothed.append(value)
            else:
                smoothed.append(self.mu * earlier + (1 - self.mu) * value)
        return smoothed

    def _note_no_longer_labelled(self, client: str, labelled: Sequence[bool]) -> None:
        """Note each class that has a value of earlier rounds, and that the client labels no more.

        Its row may have moved all the same: weight decay and an optimizer's moments move it at
        honest sites, too.
        """
        previous = self.classes.get(client, [None] * len(labelled))
        for number, value in enumerate(previous):
            if value is not None and not labelled[number]:
                self.note(
                    client,
                    f"class {number} is no longer labelled: its class value {value:.3g} of earlier "
                    "rounds counts only where it is below the mean of the labelled classes",
                )

    def _counted(self, values: ClassValues, labelled: Sequence[bool]) -> ClassValues:
        """The class values of one client that enter its contribution.

        That of a class which it does not label is one of earlier rounds. If it counted as it is, a
        client could keep a good value for a class that it no longer trains. If it did not count, a
        client could drop a bad one.

        Args:
            values: of one client, smoothed.
            labelled: for each class, whether the client labels it in this round.
        """
        of_labelled: ClassValues = []
        for value, is_labelled in zip(values, labelled, strict=True):
            of_labelled.append(value if is_labelled else None)
        limit = _mean(of_labelled)

        counted: ClassValues = []
        for value, is_labelled in zip(values, labelled, strict=True):
            counts = is_labelled or (value is not None and value < limit)
            counted.append(value if counts else None)
        return counted

    def _contribution(self, values: ClassValues) -> float:
        """gamma_i, from the class values of one client."""
        mean = _mean(values)
        if self.variant == "released":
            return max(mean, 0.0)
        return (1 + mean) / 2


def _mean(values: ClassValues) -> float:
    """The mean of the class values that are known; 0 where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


def _layers_with_classes(spec: ModelSpec) -> list[str]:
    """Layers with a trainable weight, whose first axis may be that of the classes."""
    layers = []
    for layer in dict.fromkeys(spec.layers.values()):
        weight = weight_of(layer)
        if weight in spec.parameters and weight not in spec.norms:
            layers.append(layer)
    return layers


def _labelled(local: Replies, classes: int) -> np.ndarray:
    """Which client reports that it labels which class, shape (N, classes)."""
    everything = np.ones((len(local.clients), classes), bool)
    if local.labelled is None or local.labelled.shape != everything.shape:
        return everything
    return local.labelled


class _MixedBy(Reward):
    """The mixture of two models by other coefficients than the contributions.

    Args:
        mixed: makes the models.
        coefficients: client -> its share of the global model.
    """

    def __init__(self, mixed: Mixed, coefficients: Mapping[str, float]):
        self.mixed = mixed
        self.coefficients = coefficients

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: object
    ) -> tuple[dict[str, Weights], Details]:
        return self.mixed(replies, old, new, self.coefficients)
