# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The shipped bundles, and what tests of them need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai.bundle import ConfigWorkflow

from monai_fairfl.data import CLINICS, SITES, write_clinics, write_sites

ROOT = Path(__file__).parents[2]
TRAIN, EVALUATE, INFERENCE = ("train",), ("train", "evaluate"), ("inference",)


@dataclass(frozen=True)
class Bundle:
    """A shipped bundle, and what tests of it need.

    Args:
        name: of its folder.
        write: writes two generated sites of four cases each below a folder, and returns their
            names.
        small: overrides for a small and quick network.
        overlays: further files of ``configs`` that training accepts.
        images: folder of a site whose images inference reads.
        masks: pattern of the masks that inference writes.
        metrics: of ``evaluate.json``.
        partial: the one of the two sites that labels the first structure only.
    """

    name: str
    write: Callable[[Path], list[str]]
    small: Mapping[str, Any]
    overlays: tuple[str, ...]
    images: str
    masks: str
    metrics: frozenset[str]
    partial: str | None = None

    @property
    def root(self) -> Path:
        return ROOT / "bundles" / self.name

    @property
    def configs(self) -> Path:
        return self.root / "configs"

    def files(self, *names: str) -> list[str]:
        return [str(self.configs / f"{name}.json") for name in names]

    def config(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.configs / f"{name}.json").read_text())
        return content

    def workflow(
        self, names: tuple[str, ...], data: Path, out: Path, **overrides: Any
    ) -> ConfigWorkflow:
        """The workflow of these config files at a small size, parsed and ready to run."""
        infer = "inference" in names
        small = {k: v for k, v in self.small.items() if not infer or k in self.config("inference")}
        folders = (
            {"output_dir": str(out / "eval")}
            if infer
            else {"output_dir": str(out / "eval"), "ckpt_dir": str(out)}
        )
        made = ConfigWorkflow(
            config_file=self.files(*names),
            meta_file=str(self.configs / "metadata.json"),
            logging_file=False,
            workflow_type="infer" if infer else "train",
            **{
                "bundle_root": str(self.root),
                "dataset_dir": str(data),
                "device": "cpu",
                **small,
                **folders,
                **overrides,
            },
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


BUNDLES = (
    Bundle(
        "prostate_mri_segmentation",
        lambda root: write_sites(root, sites=SITES[:2], size=(48, 48, 8), cases=4),
        {"size": [32, 32], "channels": [4, 8, 16], "slices_per_volume": 4},
        ("two_channel", "paper_setting", "corrupted_images"),
        ".",
        "*_pred.nii.gz",
        frozenset({"val_mean_dice", "dice_slices", "hd95"}),
    ),
    Bundle(
        "fundus_disc_cup_segmentation",
        lambda root: write_clinics(
            root, clinics=CLINICS[1:3], size=96, cases=4
        ),  # the second labels the disc only
        {"size": [32, 32], "channels": [4, 8, 16], "working_size": 64},
        ("paper_setting", "corrupted_images"),
        "images",
        "*_pred.png",
        frozenset({"val_mean_dice", "cup_to_disc_error"}),
        partial="cypress",
    ),
)
