# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs other weights on an engine's own batches, as the engine does, and leaves no trace in it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.networks.utils import eval_mode
from monai.transforms import Randomizable
from torch import nn
from torch.utils.data import Dataset

from monai_fairfl.messages import Weights
from monai_fairfl.utils.random_state import own_random_state
from monai_fairfl.utils.tensors import CPU, moved

TRANSFORM_ATTRIBUTES = ("transform", "patch_func", "patch_transform")
"""Where MONAI's datasets hold the transforms that they apply."""

INNER_DATASETS = ("dataset", "datasets", "data")
"""Where datasets hold others: torch's Subset, torch's ConcatDataset, MONAI's datasets."""


# ---- weights


def device_of(network: nn.Module) -> torch.device:
    """Where ``network`` computes: the device of its first parameter; the CPU where it has none.

    >>> device_of(nn.Linear(1, 1))
    device(type='cpu')
    """
    first = next(network.parameters(), None)
    return CPU if first is None else first.device


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Load ``weights`` into ``network``; tensors that ``weights`` lacks stay as they are.

    Raises:
        KeyError: when ``weights`` holds a name that the network does not have.
    """
    there = moved(weights, device_of(network))
    unexpected = network.load_state_dict(dict(there), strict=False).unexpected_keys
    if unexpected:
        raise KeyError(f"the network has no tensor {unexpected[0]!r}")


@contextmanager
def loaded(network: nn.Module, weights: Weights) -> Iterator[None]:
    """Inside, ``network`` has ``weights``; afterwards it has its own again, to the bit."""
    own_weights = {}
    for name, tensor in network.state_dict().items():
        own_weights[name] = tensor.detach().clone()
    try:
        load_weights(network, weights)
        yield
    finally:
        network.load_state_dict(own_weights)


@contextmanager
def layers_in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Inside, every layer is in evaluation mode, and the network's outputs are those of training.

    A network with deep supervision, such as MONAI's ``DynUNet`` and ``SegResNetDS``, gives its
    further outputs where its own ``training`` is true, and a loss of them needs all. Dropout and
    normalisation are layers below it.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with layers_in_eval_mode(network):
    ...     network.training, network[1].training
    (True, False)
    """
    with eval_mode(network):
        network.training = True
        try:
            yield
        finally:
            network.training = False


# ---- batches


def inferred(
    engine: SupervisedEvaluator | SupervisedTrainer,
    batch: Any,
    network: Callable[..., Any] | None = None,
    images: torch.Tensor | None = None,
) -> tuple[Any, Any, int]:
    """What the engine's inferer makes of a batch, as the engine itself calls it.

    Args:
        engine: whose ``prepare_batch`` splits the batch into images, labels, and what the network
            takes besides.
        batch: of the engine's loader.
        network: that predicts; ``None``: the engine's own.
        images: that take the place of the batch's own.

    Returns:
        The prediction; the labels, on the engine's device; and the number of images.
    """
    own_images, labels, *further = engine.prepare_batch(
        batch, engine.state.device, engine.non_blocking, **engine.to_kwargs
    )
    arguments, named = further or ((), {})
    images = own_images if images is None else images
    network = engine.network if network is None else network
    predicted = engine.inferer(images, network, *arguments, **named)
    return predicted, labels, len(images)


def same_epoch(engine: SupervisedEvaluator | SupervisedTrainer) -> Iterator[Any]:
    """Yields one epoch of the engine's batches: the same order and random crops every time.

    The transforms are copied, so that the datasets' own go on afterwards as if nothing had
    happened, and so does the loader's generator. Workers that outlive an epoch
    (``persistent_workers``) have a random state of their own and cannot be repeated.
    """
    loader = engine.data_loader
    with own_random_state(0), ExitStack() as stack:
        for dataset, attribute, transform in list(_transforms_in(_dataset(engine))):
            setattr(dataset, attribute, copy.deepcopy(transform))
            stack.callback(setattr, dataset, attribute, transform)
        for generator in _generators_of(loader):
            stack.callback(generator.set_state, generator.get_state())
        seed_loader(engine, 0)
        yield from islice(loader, engine.state.epoch_length)


def seed_loader(engine: SupervisedEvaluator | SupervisedTrainer, seed: int) -> None:
    """Seed every part of the engine's loader that has a random state of its own.

    These are the transforms of its datasets, its generator and that of its sampler.
    """
    for _, _, transform in _transforms_in(_dataset(engine)):
        if isinstance(transform, Randomizable):
            transform.set_random_state(seed)
    for generator in _generators_of(engine.data_loader):
        generator.manual_seed(seed)


def has_no_batch(engine: SupervisedEvaluator | SupervisedTrainer) -> bool:
    """Whether the engine has no batch of data. MONAI then skips its run.

    >>> has_no_batch(SupervisedEvaluator("cpu", [], nn.Identity()))
    True
    """
    return engine.state.epoch_length == 0


def files_of_cases(engine: Any) -> list[tuple[str, ...] | None]:
    """The image files of each of the engine's cases; ``None`` for a case that names none."""
    dataset = _dataset(engine)
    cases = getattr(dataset, "data", dataset)
    if isinstance(cases, Sequence) and not isinstance(cases, str):
        return [image_files_of(case) for case in cases]
    return [None] * len(cases) if isinstance(cases, Sized) else []


def image_files_of(case: object) -> tuple[str, ...] | None:
    """The files of one case's image, which may be made of several, one per channel.

    Args:
        case: an item of a dataset.

    Returns:
        ``None`` where the case names no file: its image may be in memory.

    >>> image_files_of({"image": "a.nii.gz"}), image_files_of({"image": ["t1.nii.gz", "t2.nii.gz"]})
    (('a.nii.gz',), ('t1.nii.gz', 't2.nii.gz'))
    >>> image_files_of({"image": [0.5, 0.25]}) is None
    True
    """
    image = case.get("image") if isinstance(case, Mapping) else None
    files = image if isinstance(image, (list, tuple)) else [image]
    if not files or not all(isinstance(file, (str, os.PathLike)) for file in files):
        return None
    return tuple(str(file) for file in files)


def _dataset(engine: Any) -> Any:
    return getattr(engine.data_loader, "dataset", None)


def _transforms_in(dataset: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields (dataset, attribute, transform) of ``dataset`` and of those inside it.

    Of anything else, such as a case, nothing.
    """
    if not isinstance(dataset, Dataset):
        return
    for attribute in TRANSFORM_ATTRIBUTES:
        if hasattr(dataset, attribute):
            yield dataset, attribute, getattr(dataset, attribute)
    for attribute in INNER_DATASETS:
        inner = getattr(dataset, attribute, None)
        for one in inner if isinstance(inner, (list, tuple)) else [inner]:
            yield from _transforms_in(one)


def _generators_of(loader: Any) -> list[torch.Generator]:
    holders = (loader, getattr(loader, "sampler", None))
    generators = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in generators if generator is not None]
