# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client without a configuration: its workflow is made in Python, and trains in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers.small_evaluators import evaluator_of
from helpers.small_trainers import trainer_of
from monai.bundle import PythonicWorkflow
from monai.handlers import MeanDice, from_engine
from monai.transforms import AsDiscreted
from torch import nn

from monai_fairfl import FairMonaiAlgo, read_spec


class ToyWorkflow(PythonicWorkflow):
    """A trainer and an evaluator that somebody else has made."""

    def __init__(self, trainer: Any, evaluator: Any):
        super().__init__(workflow_type="train", meta_file=None)
        self._trainer = trainer
        self._evaluator = evaluator

    def get_trainer(self) -> Any:
        return self._trainer

    def get_evaluator(self) -> Any:
        return self._evaluator

    def get_bundle_root(self) -> str:
        return "."

    def get_max_epochs(self) -> int:
        return 1

    def run(self) -> None:
        """A client runs the trainer itself."""

    def finalize(self) -> None:
        """Nothing is left to do."""


def toy_client(
    folder: Path,
    network: nn.Module,
    batches: Any,
    loss: Any,
    rate: float = 0.1,
    state: str = "state",
    **arguments: Any,
) -> tuple[FairMonaiAlgo, dict[str, torch.Tensor]]:
    """A client that trains ``network``, and the weights that it begins with.

    Args:
        folder: of its files.
        network: also evaluated, if there are images (B, C, H, W), on those of the first batch.
        batches: or a loader.
        loss: of the training.
        rate: of stochastic gradient descent, unless ``arguments`` have an optimizer.
        state: its private folder's name; another one makes a client without a past.
        **arguments: of the trainer.
    """
    optimizer = arguments.pop("optimizer", torch.optim.SGD(network.parameters(), rate))
    images = next(iter(batches))["image"]
    evaluator = None
    if images.ndim == 4:
        dice = MeanDice(output_transform=from_engine(["pred", "label"]))
        evaluator = evaluator_of(
            network,
            [{"image": image, "label": (image > 0.5).float()} for image in images],
            postprocessing=AsDiscreted("pred", threshold=0.5),
            key_val_metric={"val_mean_dice": dice},
        )
    trainer = trainer_of(network, batches, loss, optimizer, **arguments)
    workflow: Any = ToyWorkflow(trainer, evaluator)
    client = FairMonaiAlgo(str(folder), folder / state, train_workflow=workflow)
    return client, dict(read_spec(network).tensors_of(network))
