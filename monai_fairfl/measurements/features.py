# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes the features of two models from the same images, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.networks.utils import eval_mode
from monai.utils import convert_to_tensor
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.forward import inferred, prepared, same_epoch
from monai_fairfl.measurements.loading import device_of, load_weights, loaded
from monai_fairfl.messages import Weights, read_spec

MAX_SAMPLES = 64
"""Images: enough for a Gram matrix, few enough for every round."""

BATCH = 8
"""Images per forward pass, and per batch of the unbiased CKA."""

FLOATS = 3 * 2**23
"""Feature values in memory per model: 96 MiB."""


class Piece(NamedTuple):
    """Some columns of a layer's features."""

    layer: str
    columns: slice


def scored_layers(network: nn.Module) -> tuple[str, ...]:
    """Modules that own trainable parameters, by name: each tensor's layer in ``ModelSpec.layers``.

    >>> scored_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)))
    ('0', '2')
    """
    spec = read_spec(network)
    layers = {spec.layers[name] for name in spec.parameters}
    return tuple(sorted(layers))


def network_inputs(
    engine: SupervisedEvaluator | SupervisedTrainer, most: int = MAX_SAMPLES
) -> torch.Tensor:
    """Up to ``most`` images that pass the network when ``engine`` runs over its data.

    They are evenly spaced, on the CPU, and the same ones each time. The engine's own loader and
    inferer feed a stand-in for the network, so an image is what the network takes: a slice of a
    volume under ``SliceInferer``, a window under ``SlidingWindowInferer``. Images of another shape
    than the first are left out, since features must have one length.

    Returns:
        (n, C, H, W) or (n, C, H, W, D).

    Raises:
        ConfigError: when ``most`` is below 1.
        ValueError: when the network takes more than the image, or no image came.

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
    if most < 1:
        raise ConfigError(f"network_inputs: most must be at least 1 image, got {most}")
    sample = _SpacedSample(most)

    def stand_in(images: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs:
            raise ValueError(
                "features of a network that takes more than an image cannot be compared here"
            )
        for image in convert_to_tensor(images, track_meta=False):
            sample.add(image)
        # The inferer puts together an output of one channel, which nobody reads.
        return images.new_zeros((len(images), 1, *images.shape[2:]))

    with torch.no_grad():
        for batch in same_epoch(engine):
            inferred(engine, prepared(engine, batch), stand_in)

    found = len(sample.images)
    if found == 0:
        raise ValueError("no image passed the network: the data list is empty")
    chosen = torch.linspace(0, found - 1, min(most, found)).round().long()
    return torch.stack([sample.images[i] for i in chosen])


class _SpacedSample:
    """Up to ``2 * most - 1`` images, evenly spaced over all that were seen.

    Every ``stride``-th image is stored. When there are ``2 * most``, every second one is dropped
    and the stride doubles.
    """

    def __init__(self, most: int):
        self.images: list[torch.Tensor] = []
        self.most = most
        self.seen = 0
        self.stride = 1

    def add(self, image: torch.Tensor) -> None:
        # Features must have one length: images of another shape than the first are left out.
        if self.images and image.shape != self.images[0].shape:
            return
        if self.seen % self.stride == 0:
            self.images.append(image.cpu().clone())
        self.seen += 1
        if len(self.images) == 2 * self.most:
            self.images = self.images[::2]
            self.stride *= 2


def count_different(images: torch.Tensor) -> int:
    """How many different images there are among ``images`` (n, C, ...).

    >>> count_different(torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]], [[0.0, 2.0]]]))
    2
    """
    return len(torch.unique(images.flatten(1), dim=0))


def features_of(
    network: nn.Module, weights: Weights, images: torch.Tensor, layers: Sequence[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (layer, its features under ``weights``), piece by piece; see :func:`paired_features`.

    The features of one model fill the memory that those of two take there, so that the images pass
    half as often.

    Args:
        network: its own weights, mode and random state are left as they were.
        weights: the model.
        images: (n, C, ...).
        layers: names of modules of ``network``; ``""`` is the network itself.
    """
    sizes = _sizes(network, images[:2], layers)
    width = max(1, 2 * FLOATS // len(images))
    for pieces in _groups(sizes, width):
        with loaded(network, weights):
            features = _features(network, images, pieces, sizes)
        for piece in pieces:
            # ``pop`` frees a piece's memory before the next group takes as much.
            yield piece.layer, features.pop(0)


def paired_features(
    network: nn.Module, first: Weights, second: Weights, images: torch.Tensor, layers: Sequence[str]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yields (layer, its features under ``first``, the same under ``second``), piece by piece.

    Features are (n, columns). A large layer comes in several pieces; only as many are computed at
    once as fit in memory, and the images pass again for the next ones. Outputs are found by the
    module's name. A module that runs twice counts with its last output; one that does not run, or
    whose output does not have the images as its first axis, is not yielded.

    Args:
        network: its own weights, mode and random state are left as they were.
        first: one model.
        second: the other.
        images: (n, C, ...).
        layers: names of modules of ``network``; ``""`` is the network itself.
    """
    sizes = _sizes(network, images[:BATCH], layers)
    width = max(1, FLOATS // len(images))
    for pieces in _groups(sizes, width):
        with loaded(network, first):
            first_features = _features(network, images, pieces, sizes)
            load_weights(network, second)
            second_features = _features(network, images, pieces, sizes)
        for piece in pieces:
            # ``pop`` frees a piece's memory before the next group takes as much.
            yield piece.layer, first_features.pop(0), second_features.pop(0)


def _groups(sizes: Mapping[str, int], width: int) -> Iterator[list[Piece]]:
    """All layers' columns as pieces, in groups of at most ``width`` columns together."""
    group: list[Piece] = []
    room = width
    for layer, size in sizes.items():
        begin = 0
        while begin < size:
            end = min(size, begin + room)
            group.append(Piece(layer, slice(begin, end)))
            room -= end - begin
            begin = end
            if room == 0:
                yield group
                group = []
                room = width
    if group:
        yield group


def _sizes(network: nn.Module, images: torch.Tensor, layers: Sequence[str]) -> dict[str, int]:
    """layer -> length of one image's features in it."""
    sizes: dict[str, int] = {}

    def read_size(layer: str, output: torch.Tensor) -> None:
        sizes[layer] = output.shape[1]

    _forward(network, images, layers, read_size)
    return sizes


def _features(
    network: nn.Module, images: torch.Tensor, pieces: Sequence[Piece], sizes: Mapping[str, int]
) -> list[torch.Tensor]:
    """Features of every piece, one tensor (n, columns) each; NaN where a layer gave none.

    They stay where the network is.
    """
    layers = [piece.layer for piece in pieces]
    device = device_of(network)
    features = []
    for piece in pieces:
        width = piece.columns.stop - piece.columns.start
        features.append(torch.full((len(images), width), torch.nan, device=device))

    for begin in range(0, len(images), BATCH):
        rows = slice(begin, begin + BATCH)

        def copy_rows(layer: str, output: torch.Tensor, rows: slice = rows) -> None:
            # Another model may give a layer another length, which cannot be compared.
            if output.shape[1] != sizes[layer]:
                return
            for piece, tensor in zip(pieces, features, strict=True):
                if piece.layer == layer:
                    tensor[rows] = output[:, piece.columns].float()

        _forward(network, images[rows], layers, copy_rows)
    return features


def _forward(
    network: nn.Module,
    images: torch.Tensor,
    layers: Sequence[str],
    read: Callable[[str, torch.Tensor], None],
) -> None:
    """One forward pass in evaluation mode; calls ``read(layer, output)`` for each layer's output.

    Outputs are (images, features).
    """

    def hook(layer: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, (tuple, list)) else output
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            return
        if len(tensor) % len(images) == 0:
            read(layer, tensor.detach().reshape(len(images), -1))

    with ExitStack() as stack, eval_mode(network):
        # A large layer may come in several pieces: dict.fromkeys drops repetitions, in order.
        for layer in dict.fromkeys(layers):
            handle = network.get_submodule(layer).register_forward_hook(partial(hook, layer))
            stack.callback(handle.remove)
        # A compiled network does not call hooks that came after its compilation.
        with torch.compiler.set_stance("force_eager"):
            network(images.to(device_of(network)))
