# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trains on labels of sites that label only some of the structures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from monai_fairfl.utils.tensors import labelled_channels


class LabelledLoss(nn.Module):
    r"""Mean of a loss over the structures that are labelled, each on the images that label it.

    .. math:: L = \frac{1}{|C|} \sum_{c \in C} L_c(\{(x_b, y_b) : c \text{ labelled in } b\})

    with C the channels that any image of the batch labels. A channel of the label is not labelled
    where it is below 0 (:class:`~monai_fairfl.data.LabelStructuresd` writes -1): its output is then
    not trained, and its gradient is 0. Where all is labelled this equals the loss itself, if that
    is a mean over channels, as Dice and binary cross-entropy are. (MONAI's ``DiceCELoss`` on
    several channels at once takes the softmax cross-entropy, which overlapping structures must not
    have; on one at a time, as here, it takes the binary one.)

    Args:
        loss: of predictions and labels (B, 1, ...), for example
            ``DiceCELoss(sigmoid=True, batch=True)``.

    >>> loss = LabelledLoss(nn.BCEWithLogitsLoss())
    >>> label = torch.stack([torch.ones(4, 4), -torch.ones(4, 4)])[None]
    >>> round(float(loss(torch.zeros(1, 2, 4, 4), label)), 4)
    0.6931
    """

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.loss = loss

    def forward(self, prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Scalar loss of predictions and labels (B, C, ...); 0 for a batch without any label."""
        losses = []
        # On the CPU: how many images label a channel decides what is computed. A GPU is waited for
        # here, once.
        labelled = labelled_channels(label).cpu()
        for channel in range(labelled.shape[1]):
            images = labelled[:, channel].nonzero()[:, 0]
            if len(images):
                images = images.to(prediction.device, non_blocking=True)
                # The axis of channels stays, with this one channel.
                only = slice(channel, channel + 1)
                losses.append(self.loss(prediction[images, only], label[images, only]))
        if not losses:
            # Zero with a gradient, so that ``backward`` works.
            return 0.0 * prediction.sum()
        return torch.stack(losses).mean()
