# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client without MONAI: it answers the server's requests with a small classifier.

The network has no BatchNorm, so that all of a model crosses the wire. The client begins from the
received weights in every round and stores nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from classification.data import Samples
from torch import nn

from monai_fairfl.measurements.sharpness import gsam_direction, perturbation
from monai_fairfl.messages import Reply, Request, Weights


@dataclass(frozen=True)
class Recipe:
    """How every client trains: plain SGD on the cross-entropy.

    Args:
        features: values of a sample.
        hidden: units of the hidden layer.
        classes: of the labels.
        rate: learning rate.
        batch: samples of a batch.
        epochs: of one round.
    """

    features: int = 64
    hidden: int = 32
    classes: int = 10
    rate: float = 0.1
    batch: int = 16
    epochs: int = 1

    def network(self) -> nn.Sequential:
        """Build the network, with random weights."""
        first = nn.Linear(self.features, self.hidden)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(self.hidden, self.classes))


class Client:
    """Trains on its samples, and measures ``global_loss`` and ``sharpness`` on all of them.

    With ``sam_rho`` in a request's context it trains by SAM, with ``gsam_alpha`` by GSAM: the
    gradient is taken at the worst weights nearby.
    """

    def __init__(self, samples: Samples, recipe: Recipe):
        self.samples = samples
        self.recipe = recipe
        self.network = recipe.network()
        self.parameters = list(self.network.parameters())

    def answer(self, request: Request) -> Reply:
        """Measure what the request names, then train where it asks for that."""
        self.network.load_state_dict(dict(request.weights))
        measurements = {}
        for name in request.measure:
            if name == "global_loss":
                measurements[name] = float(self._loss(self.samples))
            elif name == "sharpness":
                measurements[name] = self._sharpness(request.context["sam_rho"])
        update = None
        if request.task == "train":
            self._train(request)
            update = {}
            for name, trained in self.network.state_dict().items():
                update[name] = trained - request.weights[name]
        return Reply(
            request.client,
            update,
            len(self.samples.labels),
            measurements,
            id=request.id,
            run=request.run,
            round=request.round,
        )

    def _train(self, request: Request) -> None:
        rho = request.context.get("sam_rho", 0.0)
        alpha = request.context.get("gsam_alpha", 0.0)
        generator = torch.Generator().manual_seed(request.seed)
        for _ in range(self.recipe.epochs):
            order = torch.randperm(len(self.samples.labels), generator=generator)
            for batch in order.split(self.recipe.batch):
                samples = Samples(self.samples.points[batch], self.samples.labels[batch])
                gradients = self._gradients(samples)
                if rho > 0:
                    gradients = self._sharpness_aware(samples, gradients, rho, alpha)
                self._move(gradients, -self.recipe.rate)

    def _sharpness_aware(
        self, samples: Samples, clean: list[torch.Tensor], rho: float, alpha: float
    ) -> list[torch.Tensor]:
        """The gradient at w + epsilon, less GSAM's share of what is orthogonal to it."""
        unperturbed = [parameter.detach().clone() for parameter in self.parameters]
        self._move(perturbation(clean, rho))
        perturbed = self._gradients(samples)
        self._put(unperturbed)
        if not alpha:
            return perturbed
        return gsam_direction(clean, perturbed, alpha)

    def _sharpness(self, rho: float) -> float:
        """L(w + rho g / ||g||) - L(w), with the loss and the gradient of all samples."""
        before = float(self._loss(self.samples))
        unperturbed = [parameter.detach().clone() for parameter in self.parameters]
        self._move(perturbation(self._gradients(self.samples), rho))
        after = float(self._loss(self.samples))
        self._put(unperturbed)
        return after - before

    def _loss(self, samples: Samples) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(samples.points), samples.labels)

    def _gradients(self, samples: Samples) -> list[torch.Tensor]:
        return list(torch.autograd.grad(self._loss(samples), self.parameters))

    @torch.no_grad()
    def _move(self, directions: list[torch.Tensor], factor: float = 1.0) -> None:
        for parameter, direction in zip(self.parameters, directions, strict=True):
            parameter.add_(direction, alpha=factor)

    @torch.no_grad()
    def _put(self, values: list[torch.Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)


def class_accuracies(recipe: Recipe, weights: Weights, test: Samples) -> np.ndarray:
    """Compute the accuracy on the test samples of every class."""
    right = _right(recipe, weights, test)
    labels = test.labels.numpy()
    return np.array([right.numpy()[labels == label].mean() for label in range(recipe.classes)])


def accuracy(recipe: Recipe, weights: Weights, test: Samples) -> float:
    """Compute the share of test samples that a model labels right."""
    return float(_right(recipe, weights, test).float().mean())


@torch.no_grad()
def _right(recipe: Recipe, weights: Weights, test: Samples) -> torch.Tensor:
    network = recipe.network()
    network.load_state_dict(dict(weights))
    return network(test.points).argmax(dim=1) == test.labels
