# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: layer-wise re-weighting by how far a client's features are from the average model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Measure
from monai_fairfl.replies import Replies, normalise, uniform
from monai_fairfl.strategies.base import Rounds, Strategy
from monai_fairfl.utils.arguments import argument

ByLayer = dict[str, np.ndarray]
"""layer -> numbers of the clients, shape (N,)."""

TOLERANCE = 1e-12
"""A similarity this close to the upper limit counts as being at it."""

VARIANTS: Mapping[str, tuple[tuple[float, float], dict[str, float]]] = {
    "recommended": ((1e-4, 0.99), {}),
    "paper": ((-math.inf, 1.0), {"cka_training": 1.0}),
    "released": ((1e-4, 0.99), {"cka_unbiased": 1.0}),
}
"""Variant -> least and largest similarity, and the context of the requests of phase two."""


class FedLWR(Strategy):
    r"""Layer-wise re-weighting (Yan et al., MICCAI 2024, Eq. 1-6 and Algorithm 1).

    A round has two phases. Phase one: clients train; the anchor is the plain mean of their models.
    Phase two: every client measures, layer by layer and on its own data, how alike its own model's
    features are to the anchor's, :math:`\delta_k^m = CKA(U_k^m, V_k^m)`. Layer m of the new model
    is the average with the weights

    .. math:: \rho_k^m = (1 - \delta_k^m) / \sum_j (1 - \delta_j^m)

    Args:
        clip: range to which similarities are clipped before 1 - delta; ``None``: the variant's.
            Late in training most similarities are above 0.99, and clipping there makes their layers
            uniform.
        similarity: ``"cka"``, or ``"cosine"`` of the features (ablation v1).
        layerwise: ``False``: the whole model has the weights of the widest layer, by the smaller of
            its input and output channels: in a U-Net, the one at the bottom (ablation v2).
        variant: ``"recommended"``: biased CKA on validation images, clipped to [1e-4, 0.99];
            ``"paper"``: on training images, not clipped; ``"released"``: unbiased mini-batch CKA on
            validation images, clipped. A client with fewer than four different ones of such images
            measures nothing.

    Layers are matched by module name. A layer that was not scored is averaged uniformly. The
    contribution of a client is its mean weight over layers. It trusts the similarities that clients
    report, and costs two passes over at most 64 images, and a second download.

    >>> FedLWR(similarity="cosine").requires
    frozenset({'feature_cosine'})
    """

    clip: Sequence[float] | None = None
    similarity: str = argument("cka", ("cka", "cosine"))
    layerwise: bool = True
    variant: str = argument("recommended", tuple(VARIANTS))

    min_clients = 2

    def __post_init__(self, *parts: object) -> None:
        super().__post_init__(*parts)
        if self.clip is not None:
            low, high = self.clip
            if not 0 <= low <= high <= 1:
                raise ConfigError(
                    f"FedLWR: clip must be two numbers, 0 <= low <= high <= 1, got {self.clip!r}"
                )
        self.measurement = "cka" if self.similarity == "cka" else "feature_cosine"
        self.requires = frozenset({self.measurement})  # type: ignore[misc]

    def round(self, clients: list[str]) -> Rounds:
        # Phase one: the anchor is the plain mean of the trained models (Eq. 1).
        local = yield self.train(clients)
        anchor = {**self.weights, **local.average(uniform(local), self.buffers)}

        # Phase two: every client compares its own model with the anchor (Eq. 2-4).
        own_range, context = VARIANTS[self.variant]
        compared = yield [
            Measure(client, anchor, (self.measurement,), context) for client in local.clients
        ]

        # A client that is absent in phase two has no weights.
        absent = [reply.id for reply in local if reply.client not in compared.clients]
        local = local.without(dict.fromkeys(absent, "not in phase two"))

        # Weights rho_k^m = (1 - delta_k^m) / sum_j (1 - delta_j^m) of each layer m (Eq. 5).
        low, high = self.clip or own_range
        distances = self._distances(compared, low, high)
        weights = {layer: normalise(distance) for layer, distance in distances.items()}

        # The average, layer by layer (Eq. 6), or by the weights of one layer (ablation v2).
        at_clip = [distance <= 1 - high + TOLERANCE for distance in distances.values()]
        details: dict[str, Any] = {
            "similarity": {layer: 1 - distance for layer, distance in distances.items()},
            # Where all clients are at 1, the round is a plain average.
            "at_clip": np.mean(at_clip, axis=0),
        }
        if not self.layerwise:
            of_one_layer = weights[self._widest(weights)]
            return self.finish(local, of_one_layer, of_one_layer, details=details)
        details = {"layer_weight": weights, **details}
        contributions = np.sum(list(weights.values()), axis=0) / len(weights)
        return self.finish(local, weights, contributions, details=details)

    def _distances(self, compared: Replies, low: float, high: float) -> ByLayer:
        """The distance 1 - delta of each layer, sorted by name; delta is clipped.

        Layers that never leave the clients, such as FedBN's, have no weights and do not count. What
        a client did not measure is the mean of the others, and noted.
        """
        tensors = (*self.spec.parameters, *self.spec.buffers)
        averaged = {self.spec.layers.get(name, name) for name in tensors}
        found: ByLayer = {}
        for row, reply in enumerate(compared):
            layers = reply.measurements.get(self.measurement)
            if not isinstance(layers, Mapping):
                continue
            for layer in averaged.intersection(layers) - {"mean"}:
                distance = found.setdefault(layer, np.full(len(compared), np.nan))
                distance[row] = 1 - min(max(float(layers[layer]), low), high)
        if not found:
            raise self._nobody_measured(compared, self.measurement)
        for distance in found.values():
            is_absent = np.isnan(distance)
            distance[is_absent] = distance[~is_absent].sum() / (~is_absent).sum()
            for absent in np.flatnonzero(is_absent):
                self.note(
                    compared[absent].client,
                    f"{self.measurement} absent for some layers: mean of the others used",
                )
        return dict(sorted(found.items()))

    def _widest(self, scored: ByLayer) -> str:
        """The scored layer with the widest kernel, in ablation v2."""
        # Of a kernel's first two axes, one is its input and one its output, also where the
        # convolution is transposed.
        widths = {}
        for name in self.spec.parameters:
            kernel = self.weights[name]
            layer = self.spec.layers[name]
            if kernel.ndim > 1 and layer in scored:
                widths[layer] = min(kernel.shape[:2])
        return max(sorted(widths), key=widths.__getitem__)
