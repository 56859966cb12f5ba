# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The shipped bundles, and what tests of them need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT, DEVICE
from monai.bundle import ConfigWorkflow

from monai_fairfl.data import CLINICS, SITES, write_clinics, write_sites
from monai_fairfl.model_files import state_of_file

# The configuration files of each workflow.
TRAIN = ("train",)
EVALUATE = ("train", "evaluate")
INFERENCE = ("inference",)

OWN = "own overlay"
"""In place of a recipe: the overlay of a user's own."""


@dataclass(frozen=True)
class Bundle:
    """A shipped bundle, and what tests of it need.

    Args:
        name: of its folder.
        write: writes two generated sites of four cases each below a folder, and returns their
            names.
        small: overrides for a small and quick network.
        overlays: further files of ``configs`` that training accepts, each with those before it.
        images: folder of a site whose images inference reads.
        masks: pattern of the masks that inference writes.
        metrics: of ``evaluate.json``.
        quick_learning: overrides for masks that are neither empty nor full after 60 epochs.
        recipes: other recipes whose models are used otherwise than those of the bundle's own, and
            further overrides for a small network.
        own_overlay: changes inputs and layers of the network, and how it looks.
        partial: the one of the two sites that labels the first structure only.
        copy: folder of a copy that is used in the place of the bundle.
    """

    name: str
    write: Callable[[Path], list[str]]
    small: Mapping[str, Any]
    overlays: tuple[tuple[str, ...], ...]
    images: str
    masks: str
    metrics: frozenset[str]
    quick_learning: Mapping[str, Any]
    recipes: Mapping[str, Mapping[str, Any]]
    own_overlay: Mapping[str, Any]
    partial: str | None = None
    copy: Path | None = None

    @property
    def root(self) -> Path:
        return self.copy or CHECKOUT / "bundles" / self.name

    @property
    def configs(self) -> Path:
        return self.root / "configs"

    def files(self, *names: str) -> list[str]:
        return [str(self.configs / f"{name}.json") for name in names]

    def config(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.configs / f"{name}.json").read_text())
        return content

    def whole_sites(self, root: Path) -> list[str]:
        """Names of the written sites whose cases carry all labels."""
        names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        return [name for name in names if name != self.partial]

    def without_overrides(self) -> Bundle:
        """The bundle of a user who names folders and a model, and no values."""
        return replace(self, small={})

    def workflow(
        self, names: tuple[str, ...], data: Path, out: Path, **overrides: Any
    ) -> ConfigWorkflow:
        """The workflow of these config files at a small size, parsed and ready to run."""
        infer = "inference" in names
        sizes = dict(self.small)
        if infer:
            known = self.config("inference")
            sizes = {key: value for key, value in self.small.items() if key in known}
        else:
            sizes["ckpt_dir"] = str(out)
        arguments = {
            "bundle_root": str(self.root),
            "dataset_dir": str(data),
            "output_dir": str(out / "eval"),
            "device": DEVICE,
            **sizes,
            **overrides,
        }
        made = ConfigWorkflow(
            config_file=self.files(*names),
            meta_file=str(self.configs / "metadata.json"),
            logging_file=False,
            workflow_type="infer" if infer else "train",
            **arguments,
        )
        made.initialize()
        return made

    def run(
        self, names: tuple[str, ...], data: Path, out: Path, **overrides: Any
    ) -> ConfigWorkflow:
        made = self.workflow(names, data, out, **overrides)
        made.run()
        made.finalize()
        return made

    def prediction_of(self, model: Path) -> tuple[torch.Tensor, torch.Tensor]:
        """Three random images of 32 pixels a side, and what a model gives for them."""
        parser = self.workflow(TRAIN, model.parent, model.parent).parser
        network = parser.get_parsed_content("network_def").eval()
        network.load_state_dict(dict(state_of_file(model)))
        metadata = self.config("metadata")["network_data_format"]["inputs"]["image"]
        image = torch.rand(3, metadata["num_channels"], 32, 32)
        with torch.no_grad():
            return image, network(image)

    def cause_of_failed_run(
        self, names: tuple[str, ...], data: Path, out: Path, **overrides: Any
    ) -> BaseException:
        """The error that ends :meth:`run`; MONAI wraps it into a ``RuntimeError``."""
        with pytest.raises(RuntimeError) as failed:
            self.run(names, data, out, **overrides)
        cause = failed.value.__cause__
        assert cause is not None
        return cause


PROSTATE = Bundle(
    name="prostate_mri_segmentation",
    write=partial(write_sites, sites=SITES[:2], size=(48, 48, 8), cases=4),
    small={"size": [32, 32], "channels": [4, 8, 16], "slices_per_volume": 4},
    overlays=(("strong", "two_channel"), ("light", "paper_setting")),
    images=".",
    masks="*_pred.nii.gz",
    metrics=frozenset({"val_mean_dice", "dice_slices", "hd95"}),
    quick_learning={"learning_rate": 0.01, "augmentation": [], "slices_per_volume": 8},
    recipes={"light": {}, "volumes": {"slices": 4, "windows_per_volume": 1}},
    own_overlay={
        "neighbours": 2,
        "part": "largest",
        "network_def#act_name": "relu",
        "validate#inferer#mode": "gaussian",
    },
)
FUNDUS = Bundle(
    name="fundus_disc_cup_segmentation",
    # The second labels the disc only.
    write=partial(write_clinics, clinics=CLINICS[1:3], size=96, cases=4),
    small={"size": [32, 32], "channels": [4, 8, 16], "working_size": 64},
    overlays=(("light", "paper_setting"),),
    images="images",
    masks="*_pred.png",
    metrics=frozenset({"val_mean_dice", "cup_to_disc_error"}),
    quick_learning={"learning_rate": 0.01, "augmentation": [], "photographs_per_epoch": 2},
    recipes={"light": {}},
    own_overlay={
        "network_def#act": "RELU",
        "validate#inferer#margin": 3.0,
        "validate#inferer#passes": 2,
    },
    partial="cypress",
)
BUNDLES = (PROSTATE, FUNDUS)

Federated = Callable[[Bundle, str], Path]
