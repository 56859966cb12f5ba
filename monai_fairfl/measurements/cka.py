# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""Measures how alike the features of two models are, layer by layer (Fed-LWR).

It is the centred kernel alignment of two sets of features of the same samples.

Source: Kornblith et al., ICML 2019. With features U (n x z) and V, the linear kernel's Gram
matrices K = U Uᵀ and L = V Vᵀ, and H = I - 11ᵀ/n:

.. math::

    \mathrm{CKA} =
    \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}, \qquad
    \mathrm{HSIC}(K, L) = \frac{\langle HKH, HLH \rangle}{(n - 1)^2}

The functions here take *centred* Gram matrices HKH, which :func:`centred_gram` makes exactly and in
little memory. Features that do not vary between samples have the Gram matrix zero: alike (1) when
neither varies, else 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from monai_fairfl.measurements.entry import Context, Memory
from monai_fairfl.measurements.features import (
    BATCH,
    count_different,
    features_of,
    network_inputs,
    scored_layers,
)
from monai_fairfl.measurements.forward import has_no_batch
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.messages import Measurement, Weights
from monai_fairfl.utils.tensors import CPU, moved

LEAST_IMAGES = 4
"""Different images that CKA needs: of two the biased estimate is 1 whatever the models are, and the
unbiased estimate needs four.
"""

COLUMNS = 16384
"""Features that are in float64 at once."""

PRODUCT_COLUMNS = 4096
"""Features multiplied at once, in their own type: the sum of such float32 products is wrong by
1e-7, one product over millions of features by 1e-3.
"""

ROUNDING = 1e-12
"""Share of the features' squares below which their variance between samples is rounding error."""


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
    own_grams = _grams(probe, memory.present, images)
    anchor_grams = _grams(probe, weights, images)

    values = {}
    for layer, own_gram in own_grams.items():
        values[layer] = cka_of_grams(
            own_gram, anchor_grams[layer], is_unbiased=bool(context.get("cka_unbiased", 0))
        )
    return _with_mean(values)


def _grams(probe: Probe | TrainingProbe, weights: Weights, images: torch.Tensor) -> Weights:
    """Layer -> centred Gram matrix (n, n) of its features under ``weights``.

    They are computed where the network is, and come to the CPU together.
    """
    network = probe.engine.network
    grams: dict[str, torch.Tensor] = {}
    for layer, [features] in features_of(network, [weights], images, scored_layers(network)):
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
    pairs = features_of(network, [memory.present, weights], images, scored_layers(network))

    # layer -> (3, n): inner products u.v, u.u and v.v of each image's features.
    products: dict[str, torch.Tensor] = {}
    for layer, [own_features, anchor_features] in pairs:
        # Blocks of columns: float64 copies of all columns would be large.
        own_blocks = own_features.split(COLUMNS, 1)
        anchor_blocks = anchor_features.split(COLUMNS, 1)
        for own_block, anchor_block in zip(own_blocks, anchor_blocks, strict=True):
            u = own_block.double()
            v = anchor_block.double()
            block = torch.stack([(u * v).sum(1), u.square().sum(1), v.square().sum(1)])
            products[layer] = products[layer] + block if layer in products else block

    values = {}
    for layer, (product, first, second) in moved(products, CPU).items():
        cosines = product / (first.sqrt() * second.sqrt())
        # 1 where both vectors are zero, 0 where one is.
        one_is_zero = (first == 0) | (second == 0)
        both_are_zero = (first == 0) & (second == 0)
        cosines = torch.where(one_is_zero, both_are_zero.double(), cosines)
        values[layer] = float(cosines.mean())
    return _with_mean(values)


def _with_mean(values: Mapping[str, float]) -> Measurement | None:
    """The ``values`` that are finite, and their ``"mean"``; ``None`` when none is finite."""
    finite = {layer: value for layer, value in values.items() if math.isfinite(value)}
    if not finite:
        return None
    mean = sum(finite.values()) / len(finite)
    return {"mean": mean, **finite}


# ---- the formulas


def cka_of_grams(first: torch.Tensor, second: torch.Tensor, is_unbiased: bool = False) -> float:
    r"""CKA of two centred Gram matrices (n, n); 1 where neither varies, 0 where one does not.

    Biased it is in [0, 1] (Fed-LWR, MICCAI 2024, Eq. 2). Unbiased it is a ratio of sums of HSIC_1
    over batches of eight images, the blocks on the diagonal (Nguyen et al., ICLR 2021, Eq. 2): it
    can be negative or above 1, and a last batch of fewer than 4 images is dropped.
    """
    criterion = hsic_unbiased if is_unbiased else hsic
    batch = BATCH if is_unbiased else len(first)
    criteria = []
    for begin in range(0, len(first), batch):
        block = slice(begin, begin + batch)
        k = first[block, block]
        v = second[block, block]
        if len(k) >= LEAST_IMAGES:
            criteria.append(torch.stack((criterion(k, v), criterion(k, k), criterion(v, v))))
    cross, of_first, of_second = (terms.sum() for terms in torch.stack(criteria, 1))
    if bool(cross.isnan()) or (of_first > 0 and of_second > 0):
        return float(cross / (of_first.sqrt() * of_second.sqrt()))
    return float(bool(of_first == 0 and of_second == 0))


def centred_gram(features: torch.Tensor) -> torch.Tensor:
    """The Gram matrix (n, n) of features (n, z) less their mean over samples, in float64.

    It is computed in blocks of columns, whose products are in the features' own type and whose sum
    is in float64. Of float32 features it is wrong by about 1e-7 of its norm. Sums of the Gram
    matrices of some columns are the Gram matrix of all, so that features may come piece by piece.

    >>> centred_gram(torch.tensor([[1.0], [3.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    n = len(features)
    total = torch.zeros(n, n, dtype=torch.float64, device=features.device)
    for block in features.split(PRODUCT_COLUMNS, dim=1):
        # Without what all samples have in common: a small variation of large features loses no
        # digits.
        differences = block - block[:1]
        total += differences @ differences.T

    # In float64: in float32 the squares of a diverged model would be infinite.
    length = torch.linalg.vector_norm(features[:1], dtype=torch.float64)
    squares = n * length.square() + total.trace()
    centred = total - total.mean(0) - total.mean(1, keepdim=True) + total.mean()
    # No question in between: a GPU would be waited for.
    is_constant = centred.trace() <= ROUNDING * squares
    return torch.where(is_constant, torch.zeros_like(total), centred)


def hsic(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The biased Hilbert-Schmidt independence criterion of two centred Gram matrices.

    It is <K, L> / (n - 1)^2.
    """
    return (first * second).sum() / (len(first) - 1) ** 2


def hsic_unbiased(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    r"""The unbiased criterion HSIC_1 of Gram matrices (n, n), n at least 4.

    Source: Song et al., JMLR 2012, Eq. 5. With the diagonals of K and L set to zero,

    .. math:: \frac{1}{n (n - 3)} \Bigl[\mathrm{tr}(KL) + \frac{1^T K 1\; 1^T L 1}{(n - 1)(n - 2)}
        - \frac{2}{n - 2} 1^T K L 1\Bigr]

    Centring the features first does not change it.
    """
    n = len(first)
    k = first - torch.diag(torch.diagonal(first))
    v = second - torch.diag(torch.diagonal(second))  # L

    # The three terms in the brackets; K and L are symmetric.
    trace = (k * v).sum()
    product_of_sums = k.sum() * v.sum() / ((n - 1) * (n - 2))
    product_of_rows = 2 / (n - 2) * (k.sum(0) @ v.sum(0))
    return (trace + (product_of_sums - product_of_rows)) / (n * (n - 3))
