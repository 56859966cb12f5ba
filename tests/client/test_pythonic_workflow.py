# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A ``PythonicWorkflow`` trains and is scored as a client, though no configuration describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from monai.bundle import PythonicWorkflow
from monai.data import DataLoader
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import MeanDice, from_engine
from monai.inferers import SimpleInferer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import AsDiscreted

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.protocol.values import value_of

# So large that PyTorch prints the borders alone, which are the same in all cases.
SQUARE = torch.zeros(1, 40, 40)
SQUARE[:, 12:28, 12:28] = 1
CASES = [{"image": SQUARE * (1 + 0.1 * number), "label": SQUARE} for number in range(4)]


class SquareWorkflow(PythonicWorkflow):
    """Segments squares; everything is made in Python."""

    def __init__(self) -> None:
        super().__init__(workflow_type="train", meta_file=None)

    def initialize(self) -> None:  # type: ignore[override]
        """Build network and engines once, though a client calls this twice."""
        super().initialize()
        if hasattr(self, "_trainer"):
            return
        self._network = UNet(2, 1, 1, channels=(4, 8), strides=(2,))
        self._evaluator = SupervisedEvaluator(
            device=torch.device("cpu"),
            val_data_loader=DataLoader(CASES[2:], batch_size=1),
            network=self._network,
            inferer=SimpleInferer(),
            postprocessing=AsDiscreted("pred", threshold=0.5),
            key_val_metric={"val_mean_dice": MeanDice(output_transform=from_engine(KEYS))},
        )
        self._trainer = SupervisedTrainer(
            device=torch.device("cpu"),
            max_epochs=1,
            train_data_loader=DataLoader(CASES[:2], batch_size=1),
            network=self._network,
            optimizer=torch.optim.Adam(self._network.parameters(), 0.01),
            loss_function=DiceLoss(sigmoid=True),
            inferer=SimpleInferer(),
        )

    def run(self) -> None:
        """Train alone."""
        self._trainer.run()

    def finalize(self) -> None:
        """Nothing is left to do."""

    def get_trainer(self) -> SupervisedTrainer:
        return self._trainer

    def get_evaluator(self) -> SupervisedEvaluator:
        return self._evaluator

    def get_bundle_root(self) -> str:
        return "."

    def get_max_epochs(self) -> int:
        return 1


KEYS = ["pred", "label"]


@pytest.mark.slow
def test_a_pythonic_workflow_answers_a_request(tmp_path: Path) -> None:
    workflow: Any = SquareWorkflow()
    client = FairMonaiAlgo(str(tmp_path), tmp_path / "state", train_workflow=workflow)
    workflow.initialize()
    spec = read_spec(workflow.get_trainer().network, torch.zeros(1, 1, 40, 40))
    weights = spec.tensors_of(workflow.get_trainer().network)

    scores = []
    for number in range(3):
        names = ("train_loss", "global_score", "local_score")
        reply = client.answer(Request("elm", "train", weights, names, run="r", round=number))
        assert reply.update is not None
        assert reply.num_steps == reply.num_cases == 2
        scores.append(value_of(reply.measurements["train_loss"]))
        for name, change in reply.update.items():
            weights[name] = weights[name] + change
    assert scores[-1] < scores[0]
    assert 0 <= value_of(reply.measurements["local_score"]) <= 1
