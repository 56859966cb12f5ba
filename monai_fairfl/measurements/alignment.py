# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures how alike the features of two models are, layer by layer (Fed-LWR)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from monai_fairfl.measurements.cka import (
    COLUMNS,
    LEAST_IMAGES,
    centred_gram,
    cka_of_grams,
    minibatch_cka,
)
from monai_fairfl.measurements.entry import Context, Memory
from monai_fairfl.measurements.features import (
    count_different,
    features_of,
    network_inputs,
    paired_features,
    scored_layers,
)
from monai_fairfl.measurements.forward import has_no_batch
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.messages import Measurement, Weights
from monai_fairfl.utils.tensors import CPU, moved


def cka(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """Fed-LWR's CKA between this client's trained model and ``weights``, the anchor.

    Source: MICCAI 2024, Eq. 3-4. The value is layer -> CKA, and ``"mean"`` over the layers; nothing
    of fewer than four different images: of two, the biased estimate is 1 whatever the models are.
    ``cka_unbiased`` takes the mini-batch estimator of the authors' code.
    """
    if memory.present is None or has_no_batch(probe.engine):
        return None
    images = network_inputs(probe.engine)
    if count_different(images) < LEAST_IMAGES:
        return None
    own_grams = _grams(probe.engine.network, memory.present, images)
    anchor_grams = _grams(probe.engine.network, weights, images)

    values = {}
    for layer, own_gram in own_grams.items():
        anchor_gram = anchor_grams[layer]
        if context.get("cka_unbiased", 0):
            values[layer] = minibatch_cka(own_gram, anchor_gram)
        else:
            values[layer] = cka_of_grams(own_gram, anchor_gram)
    return _with_mean(values)


def _grams(network: nn.Module, weights: Weights, images: torch.Tensor) -> Weights:
    """Layer -> centred Gram matrix (n, n) of its features under ``weights``.

    They are computed where the network is, and come to the CPU together.
    """
    grams: dict[str, torch.Tensor] = {}
    for layer, features in features_of(network, weights, images, scored_layers(network)):
        gram = centred_gram(features)
        # Those of a layer's pieces add up to that of the layer.
        grams[layer] = grams[layer] + gram if layer in grams else gram
    return moved(grams, CPU)


def feature_cosine(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """The cosine of both models' features, mean over images (Fed-LWR's ablation).

    The value is layer -> cosine, and ``"mean"`` over the layers; nothing without any image.
    """
    if memory.present is None or has_no_batch(probe.engine):
        return None
    network = probe.engine.network
    images = network_inputs(probe.engine)
    pairs = paired_features(network, memory.present, weights, images, scored_layers(network))

    # layer -> (3, n): inner products u.v, u.u and v.v of each image's features.
    products: dict[str, torch.Tensor] = {}
    for layer, own_features, anchor_features in pairs:
        # Blocks of columns: float64 copies of all columns would be large.
        own_blocks = own_features.split(COLUMNS, 1)
        anchor_blocks = anchor_features.split(COLUMNS, 1)
        for own_block, anchor_block in zip(own_blocks, anchor_blocks, strict=True):
            u = own_block.double()
            v = anchor_block.double()
            block = torch.stack([(u * v).sum(1), u.square().sum(1), v.square().sum(1)])
            if layer in products:
                products[layer] += block
            else:
                products[layer] = block

    values = {}
    for layer, sums in moved(products, CPU).items():
        values[layer] = float(_cosines(sums[0], sums[1], sums[2]).mean())
    return _with_mean(values)


def _cosines(product: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Cosines from inner products; 1 where both vectors are zero, 0 where one is."""
    cosines = product / (first.sqrt() * second.sqrt())
    one_is_zero = (first == 0) | (second == 0)
    both_are_zero = (first == 0) & (second == 0)
    return torch.where(one_is_zero, both_are_zero.double(), cosines)


def _with_mean(values: Mapping[str, float]) -> Measurement | None:
    """The ``values`` that are finite, and their ``"mean"``; ``None`` when none is finite."""
    finite = {layer: value for layer, value in values.items() if math.isfinite(value)}
    if not finite:
        return None
    mean = sum(finite.values()) / len(finite)
    return {"mean": mean, **finite}
