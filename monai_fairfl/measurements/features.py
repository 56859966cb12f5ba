# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""Measures how alike the features of two models are, from the same images, layer by layer.

It is Fed-LWR's centred kernel alignment (Kornblith et al., ICML 2019). With features U (n x z) and
V, the linear kernel's Gram matrices K = U Uᵀ and L = V Vᵀ, and H = I - 11ᵀ/n:

.. math::

    \mathrm{CKA} =
    \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}, \qquad
    \mathrm{HSIC}(K, L) = \frac{\langle HKH, HLH \rangle}{(n - 1)^2}

The formulas here take *centred* Gram matrices HKH, which :func:`centred_gram` makes exactly and in
little memory. Features that do not vary between samples have the Gram matrix zero: alike (1) when
neither varies, else 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.networks.utils import eval_mode
from monai.utils import convert_to_tensor
from torch import nn

from monai_fairfl.measurements.functions import Context, Memory
from monai_fairfl.measurements.probe import (
    Probe,
    TrainingProbe,
    inferred,
    loaded,
    same_epoch,
)
from monai_fairfl.messages import Measurement, Weights, read_spec

MAX_SAMPLES = 64
"""Images: enough for a Gram matrix, few enough for every round."""

BATCH = 8
"""Images per forward pass, and per batch of the unbiased CKA."""

FLOATS = 6 * 2**23
"""Feature values in memory, of all models: 192 MiB."""

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


# ---- the measurements


def cka(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """Fed-LWR's CKA between this client's trained model and ``weights``, the anchor.

    Source: MICCAI 2024, Eq. 3-4. The value is layer -> CKA, and ``"mean"`` over the layers; nothing
    of fewer than four different images: of two, the biased estimate is 1 whatever the models are.
    ``cka_unbiased`` takes the mini-batch estimator of the authors' code.
    """
    if memory.present is None:
        return None
    images = network_inputs(probe.engine)
    if len(torch.unique(images.flatten(1), dim=0)) < LEAST_IMAGES:
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
    return {layer: gram.cpu() for layer, gram in grams.items()}


def feature_cosine(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """The cosine of both models' features, mean over images (Fed-LWR's ablation).

    The value is layer -> cosine, and ``"mean"`` over the layers; nothing without any image.
    """
    if memory.present is None:
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
    for layer, of_layer in products.items():
        product, first, second = of_layer.cpu()
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


# ---- the features


def scored_layers(network: nn.Module) -> tuple[str, ...]:
    """Modules that own trainable parameters, by name: each tensor's layer in ``ModelSpec.layers``.

    >>> scored_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)))
    ('0', '2')
    """
    spec = read_spec(network)
    layers = {spec.layers[name] for name in spec.parameters}
    return tuple(sorted(layers))


def network_inputs(engine: SupervisedEvaluator | SupervisedTrainer) -> torch.Tensor:
    """Up to :data:`MAX_SAMPLES` images that pass the network when ``engine`` runs over its data.

    They are evenly spaced, on the CPU, and the same ones each time. The engine's own loader and
    inferer feed a stand-in for the network, so an image is what the network takes: a slice of a
    volume under ``SliceInferer``, a window under ``SlidingWindowInferer``. Images of another shape
    than the first are left out, since features must have one length.

    Returns:
        (n, C, H, W) or (n, C, H, W, D).

    Raises:
        TypeError: when the network takes more than the image.
        ValueError: when no image came.

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator
    >>> from monai.inferers import SliceInferer
    >>> volume = torch.zeros(1, 1, 8, 8, 5)
    >>> batches = [{"image": volume, "label": volume}]
    >>> slices = SliceInferer(roi_size=(8, 8), spatial_dim=2)
    >>> engine = SupervisedEvaluator("cpu", batches, torch.nn.Identity(), inferer=slices)
    >>> network_inputs(engine).shape
    torch.Size([5, 1, 8, 8])
    """
    # Every stride-th image is stored. When there are twice as many as asked for, every second one
    # is dropped and the stride doubles: so they are evenly spaced over all, in bounded memory.
    images: list[torch.Tensor] = []
    seen = 0
    stride = 1

    def stand_in(batch: torch.Tensor) -> torch.Tensor:
        nonlocal images, seen, stride
        for image in convert_to_tensor(batch, track_meta=False):
            # Features must have one length: images of another shape than the first are left out.
            if images and image.shape != images[0].shape:
                continue
            if seen % stride == 0:
                images.append(image.cpu().clone())
            seen += 1
            if len(images) == 2 * MAX_SAMPLES:
                images = images[::2]
                stride *= 2
        # The inferer puts together an output of one channel, which nobody reads.
        return batch.new_zeros((len(batch), 1, *batch.shape[2:]))

    with torch.no_grad():
        for batch in same_epoch(engine):
            inferred(engine, batch, stand_in)

    if not images:
        raise ValueError("no image passed the network: the data list is empty")
    chosen = torch.linspace(0, len(images) - 1, min(MAX_SAMPLES, len(images))).round().long()
    return torch.stack([images[i] for i in chosen])


def features_of(
    network: nn.Module, models: Sequence[Weights], images: torch.Tensor, layers: Sequence[str]
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yields (layer, its features under each model), piece by piece.

    Features are (n, columns). A large layer comes in several pieces; only as many are computed at
    once as fit in memory, and the images pass again for the next ones. Outputs are found by the
    module's name. A module that runs twice counts with its last output; one that does not run, or
    whose output does not have the images as its first axis, is not yielded.

    Args:
        network: its own weights, mode and random state are left as they were.
        models: weights, one model or several.
        images: (n, C, ...).
        layers: names of modules of ``network``; ``""`` is the network itself.
    """
    # Where the network computes: the CPU where it has no parameter.
    first = next(network.parameters(), None)
    images = images if first is None else images.to(first.device)
    # layer -> length of one image's features in it.
    outputs = _outputs(network, images[:1], dict.fromkeys(layers, slice(None)))
    sizes = {layer: output.shape[1] for layer, output in outputs.items()}
    width = max(1, FLOATS // (len(models) * len(images)))
    for begin in range(0, sum(sizes.values()), width):
        pieces = _columns(sizes, begin, begin + width)
        of_models = []
        for weights in models:
            with loaded(network, weights):
                of_models.append(_features(network, images, pieces))
        for layer in pieces:
            yield layer, [features[layer] for features in of_models]


def _columns(sizes: Mapping[str, int], begin: int, end: int) -> dict[str, slice]:
    """Layer -> its columns between two places of all layers' columns, put end to end."""
    found = {}
    for layer, size in sizes.items():
        first = max(0, begin)
        last = min(size, end)
        if first < last:
            found[layer] = slice(first, last)
        begin -= size
        end -= size
    return found


def _features(
    network: nn.Module, images: torch.Tensor, pieces: Mapping[str, slice]
) -> dict[str, torch.Tensor]:
    """Layer -> features of its piece (n, columns); NaN where it gave none.

    They stay where the network is.
    """
    features = {}
    for layer, columns in pieces.items():
        shape = (len(images), columns.stop - columns.start)
        features[layer] = torch.full(shape, torch.nan, device=images.device)
    for begin in range(0, len(images), BATCH):
        rows = slice(begin, begin + BATCH)
        for layer, output in _outputs(network, images[rows], pieces).items():
            # Another length, as of a layer whose output is of no image, cannot be compared.
            if output.shape[1] == features[layer].shape[1]:
                features[layer][rows] = output
    return features


def _outputs(
    network: nn.Module, images: torch.Tensor, pieces: Mapping[str, slice]
) -> dict[str, torch.Tensor]:
    """Layer -> the piece of its features (images, columns), by a pass in evaluation mode."""
    found: dict[str, torch.Tensor] = {}

    def hook(layer: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, (tuple, list)) else output
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            return
        if len(tensor) % len(images) == 0:
            features = tensor.detach().reshape(len(images), -1)
            # A copy: the rest of a large output is not kept.
            found[layer] = features[:, pieces[layer]].float().clone()

    with ExitStack() as stack, eval_mode(network):
        for layer in pieces:
            handle = network.get_submodule(layer).register_forward_hook(partial(hook, layer))
            stack.callback(handle.remove)
        # A compiled network does not call hooks that came after its compilation.
        with torch.compiler.set_stance("force_eager"):
            network(images)
    return found
