# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The training loss of given weights on a client's training data: the same crops each time, and
nothing disturbed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from monai.networks.utils import eval_mode
from monai.transforms import Randomizable
from torch.utils.data import Dataset

from monai_fairfl.measurements.probe import loaded
from monai_fairfl.measurements.sharpness import perturbation
from monai_fairfl.protocol.values import Estimate, Weights
from monai_fairfl.utils.random_state import own_random_state


class TrainingProbe:
    """Loss and sharpness of weights, made with a bundle's own trainer: its loader, transforms,
    inferer and loss.

    One epoch of the training data in evaluation mode (running statistics, no dropout) and full
    precision. Random transforms stay, since a random crop may be what makes an image fit the
    network, but under a fixed seed: the same crops in every measurement, so that losses of two
    models can be compared. The trainer, its gradients, its random state and that of its transforms
    are left as they were.

    Args:
        trainer: built by the bundle.
    """

    def __init__(self, trainer: SupervisedTrainer):
        self.engine = trainer

    def loss(self, weights: Weights) -> Estimate:
        r"""The mean loss over images, :math:`\sum_b n_b L_b / \sum_b n_b`; standard error and n are
        of the batches.
        """
        with loaded(self.engine.network, weights), eval_mode(self.engine.network):
            losses, _ = self._pass()
        mean, n = _mean(losses), len(losses)
        squares = [((loss - mean) ** 2, images) for loss, images in losses]
        return Estimate(mean, math.sqrt(_mean(squares) / (n - 1)) if n > 1 else None, n)

    def sharpness(self, weights: Weights, rho: float) -> float:
        r"""FedISM's sharpness: how far the loss rises within ``rho`` of the weights, along its
        gradient.

        .. math:: s = L(w + \epsilon) - L(w), \qquad \epsilon = \rho\, \nabla L(w) / \lVert \nabla L(w) \rVert

        Loss and gradient are those of the whole training set; to first order s is rho times the
        gradient's norm.

        Args:
            weights: w.
            rho: radius, in the unit of the weights.
        """
        network = self.engine.network
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        with loaded(network, weights), eval_mode(network):
            clean, gradients = self._pass(parameters)
            for parameter, step in zip(parameters, perturbation(gradients, rho), strict=True):
                parameter.add_(step)
            perturbed, _ = self._pass()
        return _mean(perturbed) - _mean(clean)

    def _pass(
        self, parameters: list[torch.nn.Parameter] | None = None
    ) -> tuple[list[tuple[float, int]], list[Any]]:
        """Each batch's (loss, images), and the gradient of the mean loss where ``parameters`` are
        given.

        ``torch.autograd.grad`` leaves the parameters' own ``grad`` alone: zeros in the place of
        ``None`` would make an optimizer move what the training never touches.
        """
        losses: list[tuple[float, int]] = []
        gradients = [torch.zeros_like(parameter) for parameter in parameters or ()]
        with same_batches(self.engine.data_loader) as loader:
            for batch in islice(loader, self.engine.state.epoch_length):
                with torch.set_grad_enabled(bool(parameters)):
                    loss, images = _batch_loss(self.engine, batch)
                if parameters:
                    for total, gradient in zip(
                        gradients, torch.autograd.grad(loss, parameters, allow_unused=True)
                    ):
                        if gradient is not None:
                            total += images * gradient
                losses.append((float(loss), images))
        everything = sum(images for _, images in losses)
        return losses, [total / everything for total in gradients]


def _mean(values: list[tuple[float, int]]) -> float:
    """The mean of (value, images) over images."""
    return sum(value * images for value, images in values) / sum(images for _, images in values)


def _batch_loss(engine: SupervisedTrainer, batch: Any) -> tuple[torch.Tensor, int]:
    """Loss of one batch, as the trainer makes it, and its number of images."""
    inputs, targets, *rest = engine.prepare_batch(
        batch, engine.state.device, engine.non_blocking, **engine.to_kwargs
    )
    args, kwargs = rest or ((), {})
    return engine.loss_function(
        engine.inferer(inputs, engine.network, *args, **kwargs), targets
    ).mean(), len(inputs)


@contextmanager
def same_batches(loader: Any, seed: int = 0) -> Iterator[Any]:
    """``loader``, which inside gives the same batches every time: order and random transforms
    follow from ``seed``.

    The transforms are copied, so that the datasets' own go on afterwards as if nothing had
    happened, and so does the loader's generator. Workers that outlive an epoch
    (``persistent_workers``) keep their own random state and cannot be repeated.
    """
    with own_random_state(seed), ExitStack() as stack:
        for dataset, name, usual in list(_transforms(loader)):
            setattr(dataset, name, copy.deepcopy(usual))
            stack.callback(setattr, dataset, name, usual)
        for generator in _generators(loader):
            stack.callback(generator.set_state, generator.get_state())
        seed_loader(loader, seed)
        yield loader


def seed_loader(loader: Any, seed: int) -> None:
    """Seed what keeps a random state of its own: transforms of ``loader``'s datasets, and
    generators.
    """
    for _, _, transform in _transforms(loader):
        if isinstance(transform, Randomizable):
            transform.set_random_state(seed)
    for generator in _generators(loader):
        generator.manual_seed(seed)


def _transforms(loader: Any) -> Iterator[tuple[Any, str, Any]]:
    """(dataset, attribute, transform) of ``loader``'s dataset and of those that it is made of."""
    dataset: Any = getattr(loader, "dataset", None)
    while isinstance(dataset, Dataset):
        for name in ("transform", "patch_func", "patch_transform"):
            if hasattr(dataset, name):
                yield dataset, name, getattr(dataset, name)
        dataset = getattr(dataset, "dataset", getattr(dataset, "data", None))


def _generators(loader: Any) -> list[torch.Generator]:
    holders = (loader, getattr(loader, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in found if generator is not None]
