# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The loss of local training, and the images seen, collected while the trainer runs."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys

from monai_fairfl.handlers.base import Detachable
from monai_fairfl.handlers.stock_client import board
from monai_fairfl.losses import labelled_channels


class TrainLoss(Detachable):
    r"""Mean training loss over the images of a round, :math:`\sum_b n_b L_b / \sum_b n_b`, and what
    was trained on.

    Beside the number of images and of optimizer steps it keeps, for each channel of the label,
    whether any image told it: a channel below 0 is one that this site does not label
    (:class:`~monai_fairfl.losses.LabelledLoss`). A label with other channels than the prediction
    holds indices of classes, and says nothing of that.

    Args:
        board: name under which :class:`~monai_fairfl.handlers.MeasurementsFilter` finds the value;
            only for a stock ``MonaiAlgo``.

    Example, in a bundle's ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.TrainLoss"}
    """

    def __init__(self, board: str = "default"):
        self.board = board
        self.reset()

    def reset(self) -> None:
        """Begin a new round."""
        self.total, self.images, self.steps = 0.0, 0, 0
        self.labelled: tuple[bool, ...] = ()

    @property
    def value(self) -> float | None:
        """The mean so far; ``None`` before the first step."""
        return self.total / self.images if self.images else None

    def attach(self, engine: Engine) -> None:
        """Count from the start of every run of ``engine``."""
        self._handles = [
            engine.add_event_handler(Events.STARTED, self.reset),
            engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self._step),
            engine.add_event_handler(Events.COMPLETED, self._publish),
        ]

    def _step(self, engine: Engine) -> None:
        output: Any = engine.state.output
        images = len(output[CommonKeys.IMAGE])
        self.total += float(output[CommonKeys.LOSS].detach().mean()) * images
        self.images += images
        self.steps += _is_step(engine)
        label, predicted = output.get(CommonKeys.LABEL), output.get(CommonKeys.PRED)
        channels = getattr(predicted, "shape", ())[1:2]
        if isinstance(label, torch.Tensor) and label.ndim > 2 and label.shape[1:2] == channels:
            told = labelled_channels(label).any(0).tolist()
            self.labelled = tuple(
                a or b for a, b in zip_longest(self.labelled, told, fillvalue=False)
            )

    def _publish(self, engine: Engine) -> None:
        if self.value is not None:
            board(self.board).values["train_loss"] = self.value


def _is_step(engine: Engine) -> bool:
    """Whether MONAI's trainer steps in this iteration: with the last batch of each group, and of
    each epoch.
    """
    length, batches = engine.state.epoch_length, getattr(engine, "accumulation_steps", 1)
    done = engine.state.iteration if length is None else (engine.state.iteration - 1) % length + 1
    return done % batches == 0 or done == length
