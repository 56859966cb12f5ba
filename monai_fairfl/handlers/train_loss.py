# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Collects the loss of local training, and what was trained on, while the trainer runs."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys, convert_to_tensor

from monai_fairfl.handlers import boards
from monai_fairfl.handlers.detachable import Callbacks, Detachable
from monai_fairfl.losses import labelled_channels


class TrainLoss(Detachable):
    r"""Mean training loss over the images of a round, :math:`\sum_b n_b L_b / \sum_b n_b`.

    It also counts images and optimizer steps, and records for each channel of the label whether any
    image labels it: a channel below 0 is one that this site does not label
    (:class:`~monai_fairfl.losses.LabelledLoss`). A label with other channels than the prediction
    has indices of classes, from which this cannot be read.

    No number is read while the training runs, so that a GPU never waits for the processor's next
    step: the losses stay where they are until somebody asks for one of the sums.

    Args:
        board: name under which :class:`~monai_fairfl.handlers.MeasurementsFilter` finds the value,
            for a stock ``MonaiAlgo``; ``None``: the value stays in :attr:`value`.

    Example, in a bundle's ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.TrainLoss"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> batches = [(torch.ones(1, 1), 2.0), (torch.ones(3, 1), 1.0)]
    >>> data = [{"image": image, "label": label * image} for image, label in batches]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.0), TrainLoss(board=None)
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.value, handler.images, handler.steps  # (1 * 4 + 3 * 1) / 4
    (1.75, 4, 2)
    """

    def __init__(self, board: str | None = "default"):
        self.board = None if board is None else boards.board(board)
        self.reset()

    def reset(self) -> None:
        """Begin a new round."""
        self.images = 0
        self.steps = 0
        # Of each batch: its loss, where it was computed, and its number of images.
        self._losses: list[torch.Tensor] = []
        self._batch_sizes: list[int] = []
        # Which channels any batch so far labels.
        self._labelled: torch.Tensor | None = None

    @property
    def total(self) -> float:
        """The sum of the losses over the images so far."""
        total = 0.0
        for loss, images in zip(self._losses, self._batch_sizes, strict=True):
            total += loss.item() * images
        return total

    @property
    def labelled(self) -> tuple[bool, ...]:
        """For each channel of the label, whether any image so far labels it."""
        if self._labelled is None:
            return ()
        return tuple(self._labelled.tolist())

    @property
    def value(self) -> float | None:
        """The mean so far; ``None`` before the first step."""
        return self.total / self.images if self.images else None

    def callbacks(self) -> Callbacks:
        """Count from the start of every run."""
        return {
            Events.STARTED: self.reset,
            IterationEvents.LOSS_COMPLETED: self._count,
            Events.COMPLETED: self._publish,
        }

    def _count(self, engine: Engine) -> None:
        output: Any = engine.state.output
        images = len(output[CommonKeys.IMAGE])
        loss = convert_to_tensor(output[CommonKeys.LOSS].detach(), track_meta=False)
        self._losses.append(loss.mean())
        self._batch_sizes.append(images)
        self.images += images
        self.steps += _is_optimizer_step(engine)

        label = output.get(CommonKeys.LABEL)
        predicted = output.get(CommonKeys.PRED)
        if _has_channels_of(label, predicted):
            plain_label = convert_to_tensor(label, track_meta=False)
            labelled = labelled_channels(plain_label).any(0)
            self._labelled = labelled if self._labelled is None else self._labelled | labelled

    def _publish(self, engine: Engine) -> None:
        if self.board is not None and self.value is not None:
            self.board.write(engine, "train_loss", self.value)


def _has_channels_of(label: Any, predicted: Any) -> bool:
    """Whether ``label`` (B, C, ...) has one channel for each channel of the prediction.

    A network with deep supervision gives several predictions: a list of them, the finest first, or
    one tensor (B, S, C, ...).
    """
    if not isinstance(label, torch.Tensor) or label.ndim <= 2:
        return False
    if isinstance(predicted, (list, tuple)) and predicted:
        predicted = predicted[0]
    predicted_shape = tuple(getattr(predicted, "shape", ()))
    if len(predicted_shape) == label.ndim + 1:
        predicted_shape = (predicted_shape[0], *predicted_shape[2:])
    return tuple(label.shape[1:2]) == predicted_shape[1:2]


def _is_optimizer_step(engine: Engine) -> bool:
    """Whether MONAI's trainer steps in this iteration.

    It steps with the last batch of each group of accumulated batches, and of each epoch.
    """
    batches_per_step = getattr(engine, "accumulation_steps", 1)
    epoch_length = engine.state.epoch_length
    batch = engine.state.iteration
    if epoch_length is not None:
        batch = (batch - 1) % epoch_length + 1
    return batch % batches_per_step == 0 or batch == epoch_length
