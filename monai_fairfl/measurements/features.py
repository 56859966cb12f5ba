# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes the features of two models from the same images, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.networks.utils import eval_mode
from monai.utils import convert_to_tensor
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.forward import device_of, inferred, loaded, same_epoch
from monai_fairfl.messages import Weights, read_spec

MAX_SAMPLES = 64
"""Images: enough for a Gram matrix, few enough for every round."""

BATCH = 8
"""Images per forward pass, and per batch of the unbiased CKA."""

FLOATS = 6 * 2**23
"""Feature values in memory, of all models: 192 MiB."""


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
    # Every stride-th image is stored. When there are twice as many as asked for, every second one
    # is dropped and the stride doubles: so they are evenly spaced over all, in bounded memory.
    images: list[torch.Tensor] = []
    seen = 0
    stride = 1

    def stand_in(batch: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal images, seen, stride
        if args or kwargs:
            raise ValueError(
                "features of a network that takes more than an image cannot be compared here"
            )
        for image in convert_to_tensor(batch, track_meta=False):
            # Features must have one length: images of another shape than the first are left out.
            if images and image.shape != images[0].shape:
                continue
            if seen % stride == 0:
                images.append(image.cpu().clone())
            seen += 1
            if len(images) == 2 * most:
                images = images[::2]
                stride *= 2
        # The inferer puts together an output of one channel, which nobody reads.
        return batch.new_zeros((len(batch), 1, *batch.shape[2:]))

    with torch.no_grad():
        for batch in same_epoch(engine):
            inferred(engine, batch, stand_in)

    if not images:
        raise ValueError("no image passed the network: the data list is empty")
    chosen = torch.linspace(0, len(images) - 1, min(most, len(images))).round().long()
    return torch.stack([images[i] for i in chosen])


def count_different(images: torch.Tensor) -> int:
    """How many different images there are among ``images`` (n, C, ...).

    >>> count_different(torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]], [[0.0, 2.0]]]))
    2
    """
    return len(torch.unique(images.flatten(1), dim=0))


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
    # layer -> length of one image's features in it.
    sizes: dict[str, int] = {}

    def read_size(layer: str, output: torch.Tensor) -> None:
        sizes[layer] = output.shape[1]

    _forward(network, images[:BATCH], layers, read_size)
    width = max(1, FLOATS // (len(models) * len(images)))
    for begin in range(0, sum(sizes.values()), width):
        pieces = _columns(sizes, begin, begin + width)
        of_models = []
        for weights in models:
            with loaded(network, weights):
                of_models.append(_features(network, images, pieces, sizes))
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
    network: nn.Module,
    images: torch.Tensor,
    pieces: Mapping[str, slice],
    sizes: Mapping[str, int],
) -> dict[str, torch.Tensor]:
    """Layer -> features of its piece (n, columns); NaN where it gave none.

    They stay where the network is.
    """
    features = {}
    for layer, columns in pieces.items():
        shape = (len(images), columns.stop - columns.start)
        features[layer] = torch.full(shape, torch.nan, device=device_of(network))
    for begin in range(0, len(images), BATCH):
        rows = slice(begin, begin + BATCH)

        def copy_rows(layer: str, output: torch.Tensor, rows: slice = rows) -> None:
            # Another model may give a layer another length, which cannot be compared.
            if output.shape[1] == sizes[layer]:
                features[layer][rows] = output[:, pieces[layer]].float()

        _forward(network, images[rows], pieces, copy_rows)
    return features


def _forward(
    network: nn.Module,
    images: torch.Tensor,
    layers: Collection[str],
    read: Callable[[str, torch.Tensor], None],
) -> None:
    """One forward pass in evaluation mode.

    It calls ``read(layer, output)`` for each layer's output (images, features), which is not kept.
    """

    def hook(layer: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, (tuple, list)) else output
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            return
        if len(tensor) % len(images) == 0:
            read(layer, tensor.detach().reshape(len(images), -1))

    with ExitStack() as stack, eval_mode(network):
        for layer in layers:
            handle = network.get_submodule(layer).register_forward_hook(partial(hook, layer))
            stack.callback(handle.remove)
        # A compiled network does not call hooks that came after its compilation.
        with torch.compiler.set_stance("force_eager"):
            network(images.to(device_of(network)))
