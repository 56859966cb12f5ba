# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every system of the comparison trains, and a site's part of it as a plain training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from monai.data import decollate_batch
from monai.metrics import DiceMetric
from study import ROOT

from monai_fairfl.measurements.batches import seed_loader
from monai_fairfl.utils.random_state import own_random_state, seed_of

BUNDLE = "prostate_mri_segmentation"
BUNDLE_ROOT = ROOT / "bundles" / BUNDLE
STRONG = ("configs/train.json", "configs/strong.json")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Task:
    """One federated training: data, network, splits, rounds and seed.

    Args:
        sites_root: folder with a folder of images for each site.
        rounds: of the federation.
        local_epochs: of every round.
        seed: of the first model and of all draws.
        overrides: plain values of the bundle's configuration, the same at all sites.
        config: configuration files, relative to the bundle, merged in order.
    """

    sites_root: str
    rounds: int
    local_epochs: int
    seed: int
    overrides: Mapping[str, Any]
    config: Sequence[str] = STRONG

    @classmethod
    def read(cls, file: str | Path) -> Task:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads(Path(file).read_text()))

    def write(self, file: Path) -> None:
        """Write it as JSON, for another process."""
        file.write_text(json.dumps(asdict(self)))

    @property
    def sites(self) -> list[str]:
        """The sites' names, sorted."""
        return sorted(path.name for path in Path(self.sites_root).iterdir() if path.is_dir())

    def parser(self, site: str, folder: Path) -> ConfigParser:
        """Read a site's configuration, with the values that our engine gives its own sites.

        Args:
            site: its name.
            folder: where its data list lies, or is written to.
        """
        parser = ConfigParser()
        parser.read_config([str(BUNDLE_ROOT / file) for file in self.config])
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "dataset_dir": str(Path(self.sites_root) / site),
            "datalist_file": str(folder / "datalist.json"),
            "device": CPU,
            "decay_epochs": self.rounds * self.local_epochs,
            **self.overrides,
        }
        for key, value in values.items():
            parser[key] = value
        return parser


class PlainSite:
    """A site's network, data and optimizer, built from the bundle, and a loop around them.

    There is nothing of our engine in it. The draws of every round are seeded as our engine seeds
    them, so that all systems see the same batches.

    Args:
        task: what is trained.
        site: the site's name.
        folder: for its data list.
    """

    def __init__(self, task: Task, site: str, folder: Path):
        self.task = task
        self.site = site
        built = task.parser(site, folder).get_parsed_content
        self.network: torch.nn.Module = built("network")
        self.loss = built("loss")
        self.optimizer = built("optimizer")
        self.scheduler = built("lr_scheduler")
        self.training = built("train#dataloader")
        self.training_inferer = built("train#inferer")
        self.validation = built("validate#dataloader")
        self.validation_inferer = built("validate#inferer")
        self.postprocessing = built("validate#postprocessing")

    def train(self, number: int) -> int:
        """Train the local epochs of a round.

        Args:
            number: of the round, from 0.

        Returns:
            The number of images of an epoch.
        """
        images_seen = 0
        seed = seed_of(self.task.seed, self.site, number)
        with own_random_state(seed):
            seed_loader(self.training, seed)
            for _ in range(self.task.local_epochs):
                for batch in self.training:
                    self.network.train()
                    self.optimizer.zero_grad()
                    logits = self.training_inferer(batch["image"], self.network)
                    self.loss(logits, batch["label"]).backward()
                    self.optimizer.step()
                    images_seen += len(logits)
                self.scheduler.step()
        return images_seen // self.task.local_epochs

    def dice(self, network: torch.nn.Module) -> float:
        """Score a network: mean Dice of the validation volumes, as the bundle validates."""
        metric = DiceMetric(include_background=True, reduction="mean")
        network.eval()
        with torch.no_grad(), own_random_state(0):
            for batch in self.validation:
                batch["pred"] = self.validation_inferer(batch["image"], network)
                cases = [self.postprocessing(case) for case in decollate_batch(batch)]
                metric([case["pred"] for case in cases], [case["label"] for case in cases])
        return float(metric.aggregate())  # type: ignore[arg-type]


def copied_state(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy a network's ``state_dict``."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
