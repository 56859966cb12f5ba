# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Supervised evaluators of toy networks whose outputs are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedEvaluator
from torch import nn


class Scaled(nn.Module):
    """A network that multiplies its images by its only weight, ``scale``."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.scale * images


def evaluator_of(
    network: nn.Module,
    items: Sequence[Any],
    batch_size: int = 1,
    **arguments: Any,
) -> SupervisedEvaluator:
    """An evaluator of ``network`` on the CPU.

    Args:
        network: anything that takes images (B, C, ...).
        items: the cases, each with an ``"image"`` and a ``"label"``; :func:`cases_of` makes them of
            images.
        batch_size: cases per batch.
        **arguments: of ``SupervisedEvaluator``, such as ``inferer``, ``postprocessing`` or
            ``key_val_metric``.
    """
    loader = DataLoader(Dataset(items), batch_size=batch_size)
    return SupervisedEvaluator(torch.device("cpu"), loader, network, **arguments)


def cases_of(images: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Cases of these images (C, ...) for a test that reads no label: the image is its own."""
    return [{"image": image, "label": image} for image in images]
