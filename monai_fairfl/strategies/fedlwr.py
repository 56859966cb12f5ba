# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: layer-wise re-weighting by how far each client's features moved from the average
model's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.averages import normalise, uniform
from monai_fairfl.protocol.messages import Measure, Train
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies.base import ImagesNeeded, Rounds, Strategy, check_choice

LEAST_IMAGES = 4
"""Different images that CKA needs: its unbiased estimate divides by n - 3."""

VARIANTS: dict[str, tuple[tuple[float, float], dict[str, float]]] = (
    {  # clip of the similarity, context of phase two
        "recommended": ((1e-4, 0.99), {}),
        "paper": ((-math.inf, 1.0), {"cka_training": 1.0}),
        "released": ((1e-4, 0.99), {"cka_unbiased": 1.0}),
    }
)


class FedLWR(Strategy):
    r"""Layer-wise re-weighting (Yan et al., MICCAI 2024, Eq. 1-6 and Algorithm 1), two phases a
    round.

    Phase one: clients train; the anchor is the plain mean of their models. Phase two: every client
    measures, layer by layer and on its own data, how alike its own model's features are to the
    anchor's, :math:`\delta_k^m = CKA(U_k^m, V_k^m)`. Layer m of the new model is the average with
    the weights

    .. math:: \rho_k^m = (1 - \delta_k^m) / \sum_j (1 - \delta_j^m)

    Args:
        clip: range that similarities are held in before 1 - delta; ``None``: as the variant says.
            Late in training most similarities are above 0.99, and clipping there makes their layers
            uniform.
        similarity: ``"cka"``, or ``"cosine"`` of the features (ablation v1).
        layerwise: ``False``: the weights of one layer for the whole model (ablation v2).
        encoder_layer: that layer's name; ``None``: the widest, by the smaller of its input and
            output channels, in a U-Net at the bottom.
        variant: ``"recommended"``: biased CKA on validation images, clipped to [1e-4, 0.99];
            ``"paper"``: on training images, not clipped; ``"released"``: unbiased mini-batch CKA on
            validation images, clipped. A client with fewer than four different ones of such images
            measures nothing.

    Layers are matched by module name. A layer that was not scored is averaged uniformly. The
    contribution reported for a client is its mean weight over layers.

    >>> FedLWR(similarity="cosine").requires
    frozenset({'feature_cosine'})
    """

    paper = "Yan et al., MICCAI 2024"
    client_does = "trains; compares its features with the average model's, per layer"
    client_sends = "update, 1 number per layer"
    phases = 2
    cost = "training + 2 passes over at most 64 images; 2 downloads"
    min_clients = 2

    def __init__(
        self,
        clip: Sequence[float] | None = None,
        similarity: str = "cka",
        layerwise: bool = True,
        encoder_layer: str | None = None,
        variant: str = "recommended",
    ):
        check_choice(self, "similarity", similarity, ("cka", "cosine"))
        check_choice(self, "variant", variant, VARIANTS)
        if clip is not None and not 0 <= clip[0] <= clip[1] <= 1:
            raise ValueError(
                f"FedLWR: clip must be two numbers, 0 <= low <= high <= 1, got {clip!r}"
            )
        self.clip, self.similarity, self.layerwise = clip, similarity, layerwise
        self.encoder_layer, self.variant = encoder_layer, variant
        self.measurement = "cka" if similarity == "cka" else "feature_cosine"
        self.requires = frozenset({self.measurement})  # type: ignore[misc]
        if similarity == "cka":
            self.images_needed = _images_for_cka(variant)  # type: ignore[misc]

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        anchor = {**self.weights, **local.average(uniform(local.clients), self.buffers)}
        context = VARIANTS[self.variant][1]
        compared = yield [
            Measure(client, anchor, (self.measurement,), context) for client in local.clients
        ]
        local = local.without(
            {r.id: "not in phase two" for r in local if r.client not in compared.clients}
        )
        shift = self._shifts(compared)
        at_clip = self._at_clip(shift)
        weights: dict[str, Any] = {
            layer: normalise(by_client) for layer, by_client in shift.items()
        }
        if not self.layerwise:
            weights = weights[self._encoder(weights)]
            details: dict[str, Any] = {
                "similarity": _by_client(shift, lambda s: 1 - s),
                "at_clip": at_clip,
            }
            return self.finish(local, weights, weights, details=details)
        mean = {c: sum(by[c] for by in weights.values()) / len(weights) for c in compared.clients}
        similarity = _by_client(shift, lambda s: 1 - s)
        details = {
            "layer_weight": _by_client(weights),
            "similarity": similarity,
            "at_clip": at_clip,
        }
        return self.finish(local, weights, mean, details=details)

    def _shifts(self, compared: Replies) -> dict[str, dict[str, float]]:
        """layer -> client -> 1 - delta; what a client did not measure is the mean of the others,
        and noted.
        """
        low, high = self.clip if self.clip is not None else VARIANTS[self.variant][0]
        found: dict[str, dict[str, float]] = {}
        for reply in compared:
            layers = reply.measurements.get(self.measurement)
            for layer, value in layers.items() if isinstance(layers, Mapping) else ():
                if layer != "mean":
                    found.setdefault(layer, {})[reply.client] = 1 - min(
                        max(float(value), low), high
                    )
        if not found:
            raise FederationError(
                f"{self.name} needs {self.measurement!r}, and no client of {compared.clients} measured it"
                f"{self._why_not_measured()}"
            )
        for by_client in found.values():
            filler = sum(by_client.values()) / len(by_client)
            for client in set(compared.clients) - set(by_client):
                self.note(
                    client, f"{self.measurement} absent for some layers: mean of the others used"
                )
                by_client[client] = filler
        return {
            layer: dict(sorted(by_client.items())) for layer, by_client in sorted(found.items())
        }

    def _why_not_measured(self) -> str:
        """For an error: how many images a client needs, and what to do where it has fewer."""
        needed = self.images_needed
        if needed is None:
            return ""
        return (
            f". A client measures it on at least {needed.least} different {needed.data} images: add {needed.data} "
            f"cases, {needed.instead}"
        )

    def _at_clip(self, shift: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """client -> share of its layers that are as similar as the clip lets them be; all at 1 is a
        plain average.
        """
        high = (self.clip if self.clip is not None else VARIANTS[self.variant][0])[1]
        clients = sorted({client for by_client in shift.values() for client in by_client})
        return {
            c: sum(by[c] <= 1 - high + 1e-12 for by in shift.values()) / len(shift) for c in clients
        }

    def _encoder(self, scored: Mapping[str, Any]) -> str:
        if self.encoder_layer is not None:
            if self.encoder_layer not in scored:
                raise ValueError(
                    f"FedLWR: encoder_layer {self.encoder_layer!r} is not a scored layer: {list(scored)}"
                )
            return self.encoder_layer
        kernels = {n: self.weights[n] for n in self.spec.parameters if self.weights[n].ndim > 1}
        width = {
            self.spec.layers[n]: min(kernel.shape[:2]) for n, kernel in kernels.items()
        }  # transposed ones, too
        return max((layer for layer in scored if layer in width), key=lambda layer: width[layer])


def _images_for_cka(variant: str) -> ImagesNeeded:
    """The images that CKA takes, with advice that does not name what is set already."""
    cosine = "similarity='cosine', which takes any number of images"
    if VARIANTS[variant][1].get("cka_training"):
        return ImagesNeeded("training", LEAST_IMAGES, f"or use {cosine}")
    return ImagesNeeded(
        "validation",
        LEAST_IMAGES,
        f"or use variant='paper', which compares on training images, or {cosine}",
    )


def _by_client(
    values: Mapping[str, Mapping[str, float]], rule: Any = lambda value: value
) -> dict[str, dict[str, float]]:
    clients = sorted({client for by_client in values.values() for client in by_client})
    return {c: {layer: rule(by[c]) for layer, by in values.items() if c in by} for c in clients}
