# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Three hospitals that train with ignite engines of their own, without a bundle."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from monai.bundle import PythonicWorkflow
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import MeanDice, from_engine
from monai.transforms import AsDiscreted
from own_client import images, initial, network
from torch import nn

from monai_fairfl import Client, Federation, InProcess
from monai_fairfl.client import FairMonaiAlgo
from monai_fairfl.handlers import Proximal
from monai_fairfl.strategies import FedCE

CPU = torch.device("cpu")


def loader(count: int, seed: int, batch_size: int) -> DataLoader:
    """Batches of ``count`` cases, each with an image and its mask."""
    cases = [{"image": image, "label": mask} for image, mask in zip(*images(count, seed))]
    return DataLoader(Dataset(cases), batch_size=batch_size, shuffle=batch_size > 1)


class Engines(PythonicWorkflow):
    """The trainer and the evaluator of one hospital, on the same network."""

    def __init__(self, number: int):
        super().__init__(workflow_type="train", meta_file=[])
        self.network = network()
        dice = MeanDice(output_transform=from_engine(["pred", "label"]))
        self.evaluator = SupervisedEvaluator(
            CPU,
            loader(6, 100 + number, batch_size=1),
            self.network,
            postprocessing=AsDiscreted("pred", threshold=0.0),  # a logit above 0
            key_val_metric={"val_mean_dice": dice},
        )
        self.trainer = SupervisedTrainer(
            CPU,
            1,
            loader(12, number, batch_size=4),
            self.network,
            torch.optim.Adam(self.network.parameters(), 0.01),
            nn.BCEWithLogitsLoss(),
            train_handlers=[Proximal(0.01)],
        )

    def get_trainer(self) -> SupervisedTrainer:
        return self.trainer

    def get_evaluator(self) -> SupervisedEvaluator:
        return self.evaluator

    def get_max_epochs(self) -> int:
        return 1

    def get_bundle_root(self) -> str:
        return "."

    def run(self) -> None:
        self.trainer.run()

    def finalize(self) -> None:
        """There is nothing to close."""


def client(number: int, private: Path) -> Client:
    workflow = Engines(number)
    return FairMonaiAlgo(".", private, local_epochs=1, train_workflow=workflow)


def hospitals(private: Path) -> dict[str, Callable[[], Client]]:
    sites = ("alder", "birch", "cedar")
    return {site: partial(client, number, private / site) for number, site in enumerate(sites)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    transport = InProcess(hospitals(folder / "private"))
    federation = Federation(FedCE(), transport, 4, initial, run_dir=folder / "run", min_clients=3)
    for record in federation.run(resume=True).rounds:
        print(record["aggregation"])
