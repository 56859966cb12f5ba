# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Features that two models compute from the same images, layer by layer and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.networks.utils import eval_mode
from monai.utils import convert_to_tensor
from torch import nn

from monai_fairfl.measurements.probe import load_weights, loaded
from monai_fairfl.measurements.training_probe import same_batches
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.protocol.values import Weights

MAX_SAMPLES = 64  # images; enough for a Gram matrix, little enough for every round
BATCH = 8  # images per forward pass, and per batch of the unbiased CKA
FLOATS = 3 * 2**23  # of features held per model: 96 MiB


def scored_layers(network: nn.Module) -> tuple[str, ...]:
    """Modules that own trainable parameters, by name: each tensor's layer in ``ModelSpec.layers``.

    >>> scored_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)))
    ('0', '2')
    """
    spec = read_spec(network)
    return tuple(sorted({spec.layers[name] for name in spec.parameters}))


def network_inputs(
    engine: SupervisedEvaluator | SupervisedTrainer, most: int = MAX_SAMPLES
) -> torch.Tensor:
    """Up to ``most`` images that pass the network when ``engine`` runs over its data, evenly
    spaced, on the CPU.

    The engine's own loader and inferer feed a stand-in for the network, so an image is what the
    network takes: a slice of a volume under ``SliceInferer``, a window under
    ``SlidingWindowInferer``. The same images each time. Images of another shape than the first are
    left out, since features must have one length.

    Returns:
        (n, C, H, W) or (n, C, H, W, D).

    Raises:
        ValueError: when the network takes more than the image, or no image came.
    """
    kept: list[torch.Tensor] = []
    seen, stride = 0, 1

    def stand_in(images: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal seen, stride
        if args or kwargs:
            raise ValueError(
                "features of a network that takes more than an image cannot be compared here"
            )
        for image in convert_to_tensor(images, track_meta=False):
            if kept and image.shape != kept[0].shape:
                continue
            if seen % stride == 0:
                kept.append(image.cpu().clone())
            seen += 1
            if len(kept) == 2 * most:
                kept[:], stride = kept[::2], 2 * stride
        return images.new_zeros((len(images), 1, *images.shape[2:]))

    with torch.no_grad(), same_batches(engine.data_loader) as loader:
        for batch in islice(loader, engine.state.epoch_length):
            inputs, _, *rest = engine.prepare_batch(
                batch, engine.state.device, engine.non_blocking, **engine.to_kwargs
            )
            args, kwargs = rest or ((), {})
            engine.inferer(inputs, stand_in, *args, **kwargs)
    if not kept:
        raise ValueError("no image passed the network: the data list is empty")
    chosen = torch.linspace(0, len(kept) - 1, min(most, len(kept))).round().long()
    return torch.stack([kept[i] for i in chosen])


def count_different(images: torch.Tensor) -> int:
    """How many different images there are among ``images`` (n, C, ...).

    >>> count_different(torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]], [[0.0, 2.0]]]))
    2
    """
    return len(torch.unique(images.flatten(1), dim=0))


def paired_features(
    network: nn.Module, first: Weights, second: Weights, images: torch.Tensor, layers: Sequence[str]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yields (layer, its features under ``first``, the same under ``second``) piece by piece, each
    (n, columns).

    A large layer comes in several pieces; only as many are held as fit in memory, and the images
    pass again for the next ones. Outputs are found by the module's name. A module that runs twice
    counts with its last output; one that does not run, or whose output does not have the images as
    its first axis, is not yielded.

    Args:
        network: its own weights, mode and random state are left as they were.
        first: one model.
        second: the other.
        images: (n, C, ...).
        layers: names of modules of ``network``; ``""`` is the network itself.
    """
    sizes = _sizes(network, images[:BATCH], layers)
    for pieces in _groups(sizes, max(1, FLOATS // len(images))):
        with loaded(network, first):
            one = _features(network, images, pieces, sizes)
            load_weights(network, second)
            two = _features(network, images, pieces, sizes)
        for layer, _ in pieces:
            yield layer, one.pop(0), two.pop(
                0
            )  # memory given back before the next group takes as much


Piece = tuple[str, slice]  # a layer and some columns of its features


def _groups(sizes: Mapping[str, int], width: int) -> Iterator[list[Piece]]:
    """All layers' columns as pieces of at most ``width`` columns, in groups that together have no
    more.
    """
    group: list[Piece] = []
    room = width
    for layer, size in sizes.items():
        begin = 0
        while begin < size:
            end = min(size, begin + room)
            group.append((layer, slice(begin, end)))
            begin, room = end, room - (end - begin)
            if room == 0:
                yield group
                group, room = [], width
    if group:
        yield group


def _sizes(network: nn.Module, images: torch.Tensor, layers: Sequence[str]) -> dict[str, int]:
    """Length of one image's features in each layer."""
    sizes: dict[str, int] = {}

    def read(layer: str, output: torch.Tensor) -> None:
        sizes[layer] = output.shape[1]

    _run(network, images, layers, read)
    return sizes


def _features(
    network: nn.Module, images: torch.Tensor, pieces: Sequence[Piece], sizes: Mapping[str, int]
) -> list[torch.Tensor]:
    """Features of every piece, one tensor (n, columns) each; NaN where a layer gave none."""
    features = [
        torch.full((len(images), columns.stop - columns.start), torch.nan) for _, columns in pieces
    ]
    for begin in range(0, len(images), BATCH):
        rows = slice(begin, begin + BATCH)

        def keep(layer: str, output: torch.Tensor, rows: slice = rows) -> None:
            if output.shape[1] == sizes[layer]:
                for i, (name, columns) in enumerate(pieces):
                    if name == layer:
                        features[i][rows] = output[:, columns].float().cpu()

        _run(network, images[rows], [layer for layer, _ in pieces], keep)
    return features


def _run(network: nn.Module, images: torch.Tensor, layers: Sequence[str], see: Any) -> None:
    """One forward pass in evaluation mode; ``see(layer, output)`` with each output as (images,
    features).
    """

    def hook(layer: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, (tuple, list)) else output
        if isinstance(tensor, torch.Tensor) and tensor.ndim and len(tensor) % len(images) == 0:
            see(layer, tensor.detach().reshape(len(images), -1))

    device = next(network.parameters()).device
    with ExitStack() as stack, eval_mode(network):
        for layer in dict.fromkeys(layers):
            handle = network.get_submodule(layer).register_forward_hook(partial(hook, layer))
            stack.callback(handle.remove)
        network(images.to(device))
