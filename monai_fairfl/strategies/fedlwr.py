# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: layer-wise re-weighting by how far a client's features are from the average model's."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import Measure, ModelSpec, Train
from monai_fairfl.replies import Replies, mean_over_layers, normalise, uniform
from monai_fairfl.strategies.arguments import check_choice, check_layer
from monai_fairfl.strategies.base import ImagesNeeded, Rounds, Strategy
from monai_fairfl.strategies.quantities import Quantity

ByLayer = dict[str, dict[str, float]]
"""layer -> client -> number."""

LEAST_IMAGES = 4
"""Different images that CKA needs: its unbiased estimate divides by n - 3."""

TOLERANCE = 1e-12
"""A similarity this close to the upper limit counts as being at it."""


@dataclass(frozen=True)
class _Variant:
    """What a variant decides.

    Args:
        clip: least and largest similarity.
        context: of the requests of phase two.
    """

    clip: tuple[float, float]
    context: Mapping[str, float] = field(default_factory=dict)


VARIANTS = {
    "recommended": _Variant(clip=(1e-4, 0.99)),
    "paper": _Variant(clip=(-math.inf, 1.0), context={"cka_training": 1.0}),
    "released": _Variant(clip=(1e-4, 0.99), context={"cka_unbiased": 1.0}),
}


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
        layerwise: ``False``: the weights of one layer for the whole model (ablation v2).
        encoder_layer: that layer's name; ``None``: the widest, by the smaller of its input and
            output channels, in a U-Net at the bottom.
        variant: ``"recommended"``: biased CKA on validation images, clipped to [1e-4, 0.99];
            ``"paper"``: on training images, not clipped; ``"released"``: unbiased mini-batch CKA on
            validation images, clipped. A client with fewer than four different ones of such images
            measures nothing.

    Layers are matched by module name. A layer that was not scored is averaged uniformly. The
    contribution of a client is its mean weight over layers.

    A round costs two downloads, and two passes over at most 64 images; the server trusts the
    similarities that clients report.

    >>> FedLWR(similarity="cosine").requires
    frozenset({'feature_cosine'})
    """

    min_clients = 2
    quantities = {
        "layer_weight": Quantity(
            "Layer weights", "Weight", "Weight of each site in each layer; a layer sums to 1."
        ),
        "at_clip": Quantity(
            "Layers too alike to tell",
            "Share",
            "Share of a site's layers whose similarity is at its upper limit; where all sites are "
            "at 1, the round was a plain average.",
        ),
        "similarity": Quantity(
            "Similarity of features",
            "Similarity",
            "How alike the features of the site's own and of the average model are on its data, "
            "per layer: 1 is the same. It is clipped as the strategy says.",
        ),
    }

    def __init__(
        self,
        clip: Sequence[float] | None = None,
        similarity: str = "cka",
        layerwise: bool = True,
        encoder_layer: str | None = None,
        variant: str = "recommended",
        **parts: Any,
    ):
        check_choice(self, "similarity", similarity, ("cka", "cosine"))
        check_choice(self, "variant", variant, VARIANTS)
        check_choice(self, "layerwise", layerwise, (True, False))
        if clip is not None and not _is_range(clip):
            raise ValueError(
                f"FedLWR: clip must be two numbers, 0 <= low <= high <= 1, got {clip!r}"
            )
        self.clip = clip
        self.similarity = similarity
        self.layerwise = layerwise
        self.encoder_layer = encoder_layer
        self.variant = variant
        self.measurement = "cka" if similarity == "cka" else "feature_cosine"
        self.requires = frozenset({self.measurement})  # type: ignore[misc]
        if similarity == "cka":
            self.images_needed = _images_for_cka(variant)  # type: ignore[misc]
        super().__init__(**parts)

    def check_model(self, spec: ModelSpec, buffers: str) -> None:
        if self.encoder_layer is not None:
            trained = [layer for name, layer in spec.layers.items() if name in spec.parameters]
            check_layer(self, "encoder_layer", self.encoder_layer, list(dict.fromkeys(trained)))

    def round(self, clients: Sequence[str]) -> Rounds:
        # Phase one: the anchor is the plain mean of the trained models (Eq. 1).
        local = yield [Train(client, self.start_of(client)) for client in clients]
        anchor = {**self.weights, **local.average(uniform(local.clients), self.buffers)}

        # Phase two: every client compares its own model with the anchor (Eq. 2-4).
        context = VARIANTS[self.variant].context
        compared = yield [
            Measure(client, anchor, (self.measurement,), context) for client in local.clients
        ]

        # A client that is absent in phase two has no weights.
        absent = {}
        for reply in local:
            if reply.client not in compared.clients:
                absent[reply.id] = "not in phase two"
        local = local.without(absent)

        distances = self._distances(compared)

        # Weights rho_k^m = (1 - delta_k^m) / sum_j (1 - delta_j^m) of each layer m (Eq. 5).
        weights = {layer: normalise(by_client) for layer, by_client in distances.items()}

        # The average, layer by layer (Eq. 6), or by the weights of one layer (ablation v2).
        details: dict[str, Mapping[str, Any]] = {}
        if self.layerwise:
            details["layer_weight"] = _by_client(weights)
        details["similarity"] = _by_client(_similarities(distances))
        details["at_clip"] = self._at_clip(distances)
        if not self.layerwise:
            of_one_layer = weights[self._encoder(weights)]
            return self.finish(local, of_one_layer, of_one_layer, details=details)
        contributions = mean_over_layers(weights)
        return self.finish(local, weights, contributions, details=details)

    def _distances(self, compared: Replies) -> ByLayer:
        """The distance 1 - delta of each layer and client, sorted by both; delta is clipped.

        Layers that never leave the clients, such as FedBN's, have no weights and do not count. What
        a client did not measure is the mean of the others, and noted.
        """
        low, high = self._limits()
        layers_of_model = set(self.spec.layers.values())
        averaged = set()
        for name in (*self.spec.parameters, *self.spec.buffers):
            averaged.add(self.spec.layers.get(name, name))
        found: ByLayer = {}
        for reply in compared:
            layers = reply.measurements.get(self.measurement)
            if not isinstance(layers, Mapping):
                continue
            unknown = sorted(set(layers) - layers_of_model - {"mean"})
            if unknown:
                self.note(
                    reply.client,
                    f"{self.measurement} of {unknown[0]!r} does not count: the model has no such "
                    "layer",
                )
            for layer, value in layers.items():
                if layer in averaged and layer != "mean":
                    similarity = min(max(float(value), low), high)
                    found.setdefault(layer, {})[reply.client] = 1 - similarity
        if not found:
            raise FederationError(
                f"{self.name} needs {self.measurement!r}, and "
                f"{self._nobody_measured(compared, self.measurement)}{self._why_not_measured()}"
            )
        for by_client in found.values():
            mean = sum(by_client.values()) / len(by_client)
            for client in compared.clients:
                if client not in by_client:
                    by_client[client] = mean
                    self.note(
                        client,
                        f"{self.measurement} absent for some layers: mean of the others used",
                    )
        return {layer: dict(sorted(found[layer].items())) for layer in sorted(found)}

    def _limits(self) -> Sequence[float]:
        """The least and the largest similarity."""
        if self.clip is not None:
            return self.clip
        return VARIANTS[self.variant].clip

    def _why_not_measured(self) -> str:
        """For an error: how many images a client needs, and what to do where it has fewer."""
        needed = self.images_needed
        if needed is None:
            return ""
        return (
            f". A client measures it on at least {needed.least} different {needed.data} images: "
            f"add {needed.data} cases, {needed.instead}"
        )

    def _at_clip(self, distances: ByLayer) -> dict[str, float]:
        """client -> share of its layers whose similarity is at the upper limit.

        Where all clients are at 1, the round is a plain average.
        """
        _, high = self._limits()
        shares = {}
        for client, by_layer in _by_client(distances).items():
            at_limit = [distance <= 1 - high + TOLERANCE for distance in by_layer.values()]
            shares[client] = sum(at_limit) / len(distances)
        return shares

    def _encoder(self, scored: Collection[str]) -> str:
        """The layer whose weights the whole model takes, in ablation v2."""
        if self.encoder_layer is not None:
            if self.encoder_layer not in scored:
                raise ValueError(
                    f"FedLWR: encoder_layer {self.encoder_layer!r} is not a scored layer: "
                    f"{list(scored)}"
                )
            return self.encoder_layer

        # The widest one: of a kernel's first two axes, one is its input and one its output, also
        # where the convolution is transposed.
        widths = {}
        for name in self.spec.parameters:
            kernel = self.weights[name]
            if kernel.ndim > 1:
                widths[self.spec.layers[name]] = min(kernel.shape[:2])
        candidates = [layer for layer in scored if layer in widths]
        if not candidates:
            raise FederationError(
                f"{self.name} takes the weights of the widest layer, and no client measured "
                f"{self.measurement!r} of a convolution or linear layer: name one (encoder_layer)"
            )
        return max(candidates, key=lambda layer: widths[layer])


def _is_range(clip: Any) -> bool:
    """Whether ``clip`` is two numbers between 0 and 1, the lower one first."""
    try:
        low, high = clip
        return bool(0 <= low <= high <= 1)
    except (TypeError, ValueError):
        return False


def _images_for_cka(variant: str) -> ImagesNeeded:
    """The images that CKA takes, with advice that does not name what is set already."""
    cosine = "similarity='cosine', which takes any number of images"
    if "cka_training" in VARIANTS[variant].context:
        return ImagesNeeded("training", LEAST_IMAGES, f"or use {cosine}")
    return ImagesNeeded(
        "validation",
        LEAST_IMAGES,
        f"or use variant='paper', which compares on training images, or {cosine}",
    )


def _similarities(distances: ByLayer) -> ByLayer:
    found: ByLayer = {}
    for layer, by_client in distances.items():
        found[layer] = {client: 1 - distance for client, distance in by_client.items()}
    return found


def _by_client(by_layer: ByLayer) -> dict[str, dict[str, float]]:
    """client -> layer -> number."""
    found: dict[str, dict[str, float]] = {}
    for layer, by_client in by_layer.items():
        for client, value in by_client.items():
            found.setdefault(client, {})[layer] = value
    return dict(sorted(found.items()))
