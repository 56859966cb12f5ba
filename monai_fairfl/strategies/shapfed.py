# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed: class-specific Shapley values from the rows of the output layer."""

from __future__ import annotations

import numpy as np

from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.messages import ModelSpec, weight_of
from monai_fairfl.replies import cosine, normalise, uniform
from monai_fairfl.strategies.base import Rounds, Shares, Strategy
from monai_fairfl.strategies.parts import Mixed
from monai_fairfl.utils.arguments import argument, remembered


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
        variant: ``"recommended"``: average with this round's new weights; ``"paper"``: with the
            previous weights; ``"released"``: new weights, contribution the raw mean cosine
            (floored at 0), and personal models mixed with the normalised weight of about 1 / N.

    A class that a client does not label is compared among the others only, and does not enter its
    contribution; where no other present client labels it, its value stays. The value of a class
    that a client labelled in an earlier round, and no longer labels, counts only where it is below
    the mean of the classes that the client labels now.
    A network with one output channel has one class; the method then compares whole output layers.
    It trusts the output layer of updates, and which classes clients report as labelled.

    >>> ShapFed(personalised=True).name
    'ShapFed-personalised'
    """

    mu: float = argument(0.9, "[0, 1)")
    output_layer: str | None = None
    personalised: bool = False
    variant: str = argument("recommended", ("recommended", "paper", "released"))
    classes: dict[str, list[float | None]] = remembered(
        dict
    )  # Gamma, of all clients; None: not known
    weight: Shares = remembered(Shares)  # gamma tilde, of all clients

    has_contributions = True
    min_clients = 2

    def check_model(self, spec: ModelSpec, buffers: str) -> None:
        found = spec.output_layer(self.output_layer)
        layer = found and found[0]
        trained = set(spec.parameters) - set(spec.norms)
        layers = [one for one in set(spec.layers.values()) if weight_of(one) in trained]
        if layer not in layers:
            raise ConfigError(
                "ShapFed: output_layer must be the trained layer that makes the logits, got "
                f"{layer!r}{did_you_mean(str(layer), layers)}"
            )

    def round(self, clients: list[str]) -> Rounds:
        local = yield self.train(clients)
        names = local.clients

        # The server's rows are averaged with the previous weights, 1 / N at first.
        previous = normalise(self.weight.of_present(names)) if self.weight else uniform(local)

        # Class values Gamma_ij: cosines of the clients' rows with the server's, smoothed (Eq. 6-8).
        # Where a cosine or the earlier value is unknown, the other one is the value.
        grams = local.geometry.classes(self.output_layer)
        labelled = np.ones((len(local), len(grams)), bool)
        if local.labelled is not None and local.labelled.shape == labelled.shape:
            labelled = local.labelled
        cosines = _cosines(grams, labelled, previous)
        unknown = [None] * labelled.shape[1]
        earlier = np.array([self.classes.get(client, unknown) for client in names], float)
        gamma = self.mu * earlier + (1 - self.mu) * cosines
        gamma = np.where(np.isnan(cosines), earlier, gamma)
        gamma = np.where(np.isnan(earlier), cosines, gamma)

        # The values that count: no client gains by reporting that it no longer labels a class.
        limit = _mean(np.where(labelled, gamma, np.nan))
        counted = np.where(labelled | (gamma < limit[:, None]), gamma, np.nan)

        # Contributions gamma_i: the mean of (1 + Gamma_ij) / 2 over classes; normalised, they are
        # the weights (ShapFed-WA, Eq. 9).
        contributions = (1 + _mean(counted)) / 2
        if self.variant == "released":
            contributions = np.maximum(_mean(counted), 0.0)
        weights = normalise(contributions)

        # Personalised, client i receives gamma_i w_s + (1 - gamma_i) w_i (Eq. 10); in the authors'
        # code, the normalised gamma.
        reward = Mixed() if self.personalised else None
        merit = weights if self.variant == "released" else None

        for client, values in zip(names, gamma, strict=True):
            self.classes[client] = [None if np.isnan(one) else float(one) for one in values]
        self.weight.put(names, weights)

        # The paper averages with the previous weights, its authors' code with the new ones.
        aggregation = previous if self.variant == "paper" else weights
        details = {"class_value": counted}
        return self.finish(local, aggregation, contributions, reward, merit=merit, details=details)


def _cosines(grams: np.ndarray, labelled: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The cosine of each client's row with the server's in each class, shape (N, classes).

    A class that one client alone labels counts as labelled by nobody: the client would only agree
    with itself. What is not compared is NaN.
    """
    compared = labelled & (labelled.sum(0) > 1)
    found = np.full(labelled.shape, np.nan)
    for row, number in np.argwhere(compared):
        itself = np.eye(len(labelled))[row]
        found[row, number] = cosine(grams[number], itself, weights * compared[:, number])
    return found


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean of each client's class values that are known, shape (N,); 0 where none is."""
    is_known = ~np.isnan(values)
    total: np.ndarray = np.where(is_known, values, 0.0).sum(axis=1)
    return total / np.maximum(is_known.sum(axis=1), 1)
