# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Bundles as others write them, which know nothing of a federation, and images for them.

Each has the habits that keep a bundle from federating: a split by position, worker processes, one
cache folder, TensorBoard, a checkpoint to begin from, and no test cases.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from helpers.checkout import CHECKOUT
from monai.bundle import ConfigParser

EXAMPLE = CHECKOUT / "docs" / "examples" / "own_bundle" / "configs"

IN_3D = {"spatial_dims": 3, "in_channels": 1}
NETWORKS: dict[str, dict[str, Any]] = {
    "segresnet_ds": {
        "_target_": "SegResNetDS",
        "init_filters": 4,
        "blocks_down": [1, 1, 1],
        "norm": "INSTANCE_NVFUSER",
        "dsdepth": 2,
    },
    "dynunet": {
        "_target_": "DynUNet",
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16],
        "deep_supervision": True,
        "deep_supr_num": 1,
    },
}
"""Bundle -> its network, without what all have in common and ``out_channels``."""

LOSSES: dict[str, Any] = {
    # AutoRunner's SegResNet trains with this loss of all outputs.
    "segresnet_ds": {"_target_": "DeepSupervisionLoss", "loss": "@outputs_loss"},
    # DynUNet stacks its outputs along the second axis.
    "dynunet": "$lambda pred, label: sum(@outputs_loss(one, label) for one in pred.unbind(1))",
}

SCHEDULE = {
    "_target_": "torch.optim.lr_scheduler.CosineAnnealingLR",
    "optimizer": "@optimizer",
    "T_max": "@epochs",
}
HANDLERS = [
    {"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler"},
    {
        "_target_": "CheckpointLoader",
        "load_path": "$@ckpt_dir + '/model.pt'",
        "load_dict": {"model": "@network"},
    },
    {"_target_": "TensorBoardStatsHandler", "log_dir": "@output_dir"},
]


def write_foreign_bundle(root: Path, name: str, classes: int = 1) -> Path:
    """Write the documented bundle with one of :data:`NETWORKS`, and with those habits.

    Args:
        root: gets ``configs/``.
        name: of the bundle.
        classes: structures, beside the background.

    Returns:
        ``root``.
    """
    (root / "configs").mkdir(parents=True)
    train = (EXAMPLE / "train.json").read_text()
    habits = {"/imagesTr": "volumes", "/labelsTr": "outlines", ":-1]": ":-9]", "[-1:]": "[-9:]"}
    for old, new in habits.items():
        train = train.replace(old, new)
    config = ConfigParser(json.loads(train))
    network = {**IN_3D, **NETWORKS[name], "out_channels": classes + 1}
    changes = {
        "dataset_dir": "/workspace/data/",
        "output_dir": "$@bundle_root + '/eval'",
        "epochs": 50,
        "train#trainer#max_epochs": "@epochs",
        "network_def": network,
        "outputs_loss": config["loss"],
        "loss": LOSSES.get(name, "@outputs_loss"),
        "lr_scheduler": SCHEDULE,
        "postprocessing#transforms#1#to_onehot": classes + 1,
        "train#trainer#postprocessing": "@postprocessing",
        "train#trainer#key_train_metric": {
            "train_mean_dice": config["validate#evaluator#key_val_metric#val_mean_dice"]
        },
        "train#handlers": HANDLERS,
        "validate#evaluator#inferer": config["validate#inferer"],
        "validate#handlers": [],
    }
    for key, value in changes.items():
        config[key] = value
    del config["preprocessing"][2]  # into one orientation
    for part in ("train", "validate"):
        dataset = config[part]["dataset"]
        del dataset["progress"]
        dataset |= {"_target_": "PersistentDataset", "cache_dir": "$@bundle_root + '/cache'"}
        config[part]["dataloader"]["num_workers"] = 2
    metadata = json.loads((EXAMPLE / "metadata.json").read_text())
    tensor = metadata["network_data_format"]["outputs"]["pred"]
    names = {str(number): f"ball {number}" for number in range(1, classes + 1)}
    tensor |= {"num_channels": classes + 1, "channel_def": {"0": "background", **names}}
    (root / "configs" / "train.json").write_text(json.dumps(config.config, indent=4))
    (root / "configs" / "metadata.json").write_text(json.dumps(metadata, indent=4))
    return root


def write_nested_balls(
    root: Path,
    sites: Sequence[str],
    side: int,
    classes: int = 1,
    cases: int = 6,
    longer: int = 0,
    folders: tuple[str, str] = ("volumes", "outlines"),
) -> Path:
    """Write volumes of nested noisy balls, one a class.

    Args:
        root: of all sites.
        sites: their names.
        side: voxels of a volume along each axis.
        classes: balls of a volume; the innermost has the highest label.
        cases: of each site.
        longer: voxels by which a volume is longer along its first axis.
        folders: of a site, for volumes and for labels.

    Returns:
        ``root``.
    """
    rng = np.random.default_rng(0)
    for site in sites:
        for case in range(cases):
            centre = rng.uniform(0.4 * side, 0.6 * side, size=(3, 1, 1, 1))
            shape = (side + longer, side, side)
            distances = np.sqrt(((np.indices(shape) - centre) ** 2).sum(0))
            label = np.zeros(distances.shape, np.uint8)
            for ball in range(classes):
                label[distances < 0.35 * side * (1 - ball / classes)] = ball + 1
            image = (label + rng.normal(0, 0.3, label.shape)).astype(np.float32)
            for folder, volume in zip(folders, (image, label), strict=True):
                (root / site / folder).mkdir(parents=True, exist_ok=True)
                nifti = nib.Nifti1Image(volume, np.eye(4))
                nib.save(nifti, root / site / folder / f"case{case}.nii.gz")
    return root
