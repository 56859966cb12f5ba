# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes losses and gradients of given weights on a client's training data.

The crops are the same in every measurement, and nothing of the training is disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from monai.engines import SupervisedTrainer

from monai_fairfl.errors import DataError
from monai_fairfl.measurements.forward import (
    has_no_batch,
    inferred,
    layers_in_eval_mode,
    loaded,
    same_epoch,
)
from monai_fairfl.measurements.sharpness import perturbation
from monai_fairfl.messages import Estimate, Weights


class BatchGradients(NamedTuple):
    """The gradient of one batch's mean loss.

    Args:
        loss: of the batch, the mean over its images; where the network is, since a GPU would be
            waited for after every batch.
        images: number of images in the batch.
        gradients: one tensor per trainable parameter, in the order of ``network.parameters()``;
            zeros for a parameter that the batch did not use.
    """

    loss: torch.Tensor
    images: int
    gradients: list[torch.Tensor]


class TrainingProbe:
    """Losses and gradients of weights, made with a bundle's own trainer.

    Its loader, transforms, inferer and loss pass over the training data once, with all layers in
    evaluation mode (running statistics, no dropout) and in full precision. A network with deep
    supervision gives all its outputs, as the loss expects them. Random transforms stay, since a
    random crop may be what makes an image fit the network, but under a fixed seed: the same crops
    in every measurement, so that losses of two models can be compared. The trainer, its gradients,
    its random state and that of its transforms are left as they were.

    Args:
        trainer: built by the bundle.

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> batches = [{"image": torch.ones(2, 1), "label": torch.full((2, 1), 3.0)}]
    >>> network, loss = torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> optimizer = None  # a probe takes no step
    >>> probe = TrainingProbe(SupervisedTrainer("cpu", 1, batches, network, optimizer, loss))
    >>> [probe.loss({"weight": torch.tensor([[w]])}).value for w in (1.0, 2.0)]
    [4.0, 1.0]
    """

    def __init__(self, trainer: SupervisedTrainer):
        self.engine = trainer

    def loss(self, weights: Weights) -> Estimate:
        r"""The mean loss over images, :math:`\sum_b n_b L_b / \sum_b n_b`.

        Standard error and n are of the batches.

        Raises:
            DataError: when the trainer has no batch of training images.
        """
        with loaded(self.engine.network, weights), layers_in_eval_mode(self.engine.network):
            losses = self._losses()
        mean = _mean(losses)
        n = len(losses)
        squares = [((loss - mean) ** 2, images) for loss, images in losses]
        stderr = math.sqrt(_mean(squares) / (n - 1)) if n > 1 else None
        return Estimate(mean, stderr, n)

    def sharpness(self, weights: Weights, rho: float) -> float:
        r"""FedISM's sharpness: how far the loss rises within ``rho``, along the gradient.

        .. math::

            s = L(w + \epsilon) - L(w), \qquad
            \epsilon = \rho\, \nabla L(w) / \lVert \nabla L(w) \rVert

        Loss and gradient are those of the whole training set; to first order s is rho times the
        gradient's norm.

        Args:
            weights: w.
            rho: radius, in the unit of the weights.

        Raises:
            DataError: when the trainer has no batch of training images.
        """
        parameters = self._parameters()
        with loaded(self.engine.network, weights), layers_in_eval_mode(self.engine.network):
            # Gradient of the mean loss over all images.
            losses = []
            batch_sizes = []
            sums = [torch.zeros_like(parameter) for parameter in parameters]
            for batch in self._batches(parameters):
                losses.append(batch.loss)
                batch_sizes.append(batch.images)
                for total, gradient in zip(sums, batch.gradients, strict=True):
                    total += batch.images * gradient
            all_images = sum(batch_sizes)

            # Loss at w + epsilon. ``loaded`` puts the weights back.
            with torch.no_grad():
                steps = perturbation([total / all_images for total in sums], rho)
                for parameter, step in zip(parameters, steps, strict=True):
                    parameter.add_(step)
            perturbed_losses = self._losses()
        clean_losses = list(zip([loss.item() for loss in losses], batch_sizes, strict=True))
        return _mean(perturbed_losses) - _mean(clean_losses)

    def batch_gradients(self, weights: Weights) -> Iterator[BatchGradients]:
        """Yields loss and gradient of each training batch at ``weights``, one batch in memory.

        While the generator runs, the network has ``weights``: run it to its end.
        """
        with loaded(self.engine.network, weights), layers_in_eval_mode(self.engine.network):
            yield from self._batches(self._parameters())

    def _parameters(self) -> list[torch.nn.Parameter]:
        parameters = self.engine.network.parameters()
        return [parameter for parameter in parameters if parameter.requires_grad]

    def _losses(self) -> list[tuple[float, int]]:
        """Each batch's (loss, images), at the network's present weights."""
        batches = list(self._batches([]))
        losses = [batch.loss.item() for batch in batches]
        return list(zip(losses, [batch.images for batch in batches], strict=True))

    def _batches(self, parameters: Sequence[torch.nn.Parameter]) -> Iterator[BatchGradients]:
        """Loss and gradients of each batch, at the network's present weights."""
        if has_no_batch(self.engine):
            raise DataError(
                "no loss without a batch of training images: add cases to 'training' in the site's "
                "data list (datalist_file), or lower batch_size"
            )
        for batch in same_epoch(self.engine):
            gradients = []
            with torch.set_grad_enabled(bool(parameters)):
                predicted, labels, images = inferred(self.engine, batch)
                loss = self.engine.loss_function(predicted, labels).mean()
            if parameters:
                # torch.autograd.grad leaves the parameters' own ``grad`` alone: zeros in the place
                # of ``None`` would make an optimizer move what the training never touches.
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, found, strict=True):
                    gradients.append(torch.zeros_like(parameter) if gradient is None else gradient)
            yield BatchGradients(loss.detach(), images, gradients)


def _mean(values: Sequence[tuple[float, int]]) -> float:
    """The mean of (value, images) over images."""
    all_images = sum(images for _, images in values)
    return sum(value * images for value, images in values) / all_images
