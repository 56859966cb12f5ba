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

KEYS = ["image", "label"]

NETWORKS: dict[str, dict[str, Any]] = {
    "segresnet": {
        "_target_": "SegResNet",
        "spatial_dims": 3,
        "in_channels": 1,
        "init_filters": 8,
        "blocks_down": [1, 1],
        "blocks_up": [1],
    },
    "segresnet_ds": {
        "_target_": "SegResNetDS",
        "spatial_dims": 3,
        "in_channels": 1,
        "init_filters": 8,
        "blocks_down": [1, 1, 1],
        "norm": "INSTANCE_NVFUSER",
        "dsdepth": 2,
    },
    "dynunet": {
        "_target_": "DynUNet",
        "spatial_dims": 3,
        "in_channels": 1,
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16],
        "deep_supervision": True,
        "deep_supr_num": 1,
    },
    "basic_unet_plus_plus": {
        "_target_": "BasicUNetPlusPlus",
        "spatial_dims": 3,
        "in_channels": 1,
        "features": [4, 4, 8, 8, 8, 4],
        "deep_supervision": True,
    },
}
"""Bundle -> its network, without ``out_channels``."""

SIDES = {"basic_unet_plus_plus": 32}
"""Bundle -> voxels of a patch along each axis, 16 for the others. BasicUNet++ halves them four
times, and its normalisation needs more than one voxel at the end."""

DICE_CE = {"_target_": "DiceCELoss", "to_onehot_y": True, "softmax": True}
LOSSES: dict[str, Any] = {
    # AutoRunner's SegResNet trains with this loss of all outputs.
    "segresnet_ds": {"_target_": "DeepSupervisionLoss", "loss": "@outputs_loss"},
    "basic_unet_plus_plus": {"_target_": "DeepSupervisionLoss", "loss": "@outputs_loss"},
    # DynUNet stacks its outputs along the second axis.
    "dynunet": "$lambda pred, label: sum(@outputs_loss(one, label) for one in pred.unbind(1))",
}

SCHEDULE = {
    "_target_": "torch.optim.lr_scheduler.CosineAnnealingLR",
    "optimizer": "@optimizer",
    "T_max": "@epochs",
}


def write_foreign_bundle(root: Path, name: str, classes: int = 1) -> Path:
    """Write one of :data:`NETWORKS` as a bundle of others.

    Args:
        root: gets ``configs/``.
        name: of the bundle.
        classes: structures, beside the background.

    Returns:
        ``root``.
    """
    configs = root / "configs"
    configs.mkdir(parents=True)
    side = SIDES.get(name, 16)
    (configs / "train.json").write_text(json.dumps(_train(name, classes + 1, side), indent=4))
    (configs / "metadata.json").write_text(json.dumps(_metadata(classes + 1, side), indent=4))
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


def _metadata(channels: int, side: int) -> dict[str, Any]:
    shape = [side, side, side]
    names = {str(number): f"ball {number}" for number in range(1, channels)}
    return {
        "version": "0.1.0",
        "network_data_format": {
            "inputs": {"image": {"num_channels": 1, "spatial_shape": shape}},
            "outputs": {
                "pred": {
                    "num_channels": channels,
                    "spatial_shape": shape,
                    "channel_def": {"0": "background", **names},
                }
            },
        },
    }


def _train(name: str, channels: int, side: int) -> dict[str, Any]:
    """The content of ``train.json``."""
    patch = [side, side, side]
    metric = {
        "_target_": "MeanDice",
        "include_background": False,
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
    }
    cached = {"_target_": "PersistentDataset", "cache_dir": "$@bundle_root + '/cache'"}
    loader = {"_target_": "DataLoader", "batch_size": 1, "num_workers": 2}
    return {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "ckpt_dir": "$@bundle_root + '/models'",
        "output_dir": "$@bundle_root + '/eval'",
        "dataset_dir": "/workspace/data/",
        "images": "$sorted(glob.glob(@dataset_dir + 'volumes/*.nii.gz'))",
        "labels": "$sorted(glob.glob(@dataset_dir + 'outlines/*.nii.gz'))",
        "epochs": 50,
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "network_def": {**NETWORKS[name], "out_channels": channels},
        "network": "$@network_def.to(@device)",
        "outputs_loss": DICE_CE,
        "loss": LOSSES.get(name, "@outputs_loss"),
        "optimizer": {
            "_target_": "torch.optim.AdamW",
            "params": "$@network.parameters()",
            "lr": 0.005,
        },
        "lr_scheduler": SCHEDULE,
        "preprocessing": [
            {"_target_": "LoadImaged", "keys": KEYS},
            {"_target_": "EnsureChannelFirstd", "keys": KEYS},
            {"_target_": "ScaleIntensityd", "keys": "image"},
        ],
        "crop": {
            "_target_": "RandCropByPosNegLabeld",
            "keys": KEYS,
            "label_key": "label",
            "spatial_size": patch,
            "num_samples": 2,
        },
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "Activationsd", "keys": "pred", "softmax": True},
                {
                    "_target_": "AsDiscreted",
                    "keys": ["pred", "label"],
                    "argmax": [True, False],
                    "to_onehot": channels,
                },
            ],
        },
        "train": {
            "dataset": {
                **cached,
                "data": "$[{'image': i, 'label': l} for i, l in zip(@images[:-9], @labels[:-9])]",
                "transform": {
                    "_target_": "Compose",
                    "transforms": "$@preprocessing + [@crop]",
                },
            },
            "dataloader": {**loader, "dataset": "@train#dataset", "shuffle": True},
            "handlers": [
                {"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler"},
                {
                    "_target_": "CheckpointLoader",
                    "load_path": "$@ckpt_dir + '/model.pt'",
                    "load_dict": {"model": "@network"},
                },
                {"_target_": "TensorBoardStatsHandler", "log_dir": "@output_dir"},
            ],
            "trainer": {
                "_target_": "SupervisedTrainer",
                "max_epochs": "@epochs",
                "device": "@device",
                "train_data_loader": "@train#dataloader",
                "network": "@network",
                "loss_function": "@loss",
                "optimizer": "@optimizer",
                "inferer": {"_target_": "SimpleInferer"},
                "postprocessing": "@postprocessing",
                "key_train_metric": {"train_mean_dice": metric},
                "train_handlers": "@train#handlers",
            },
        },
        "validate": {
            "dataset": {
                **cached,
                "data": "$[{'image': i, 'label': l} for i, l in zip(@images[-9:], @labels[-9:])]",
                "transform": {"_target_": "Compose", "transforms": "@preprocessing"},
            },
            "dataloader": {**loader, "dataset": "@validate#dataset"},
            "evaluator": {
                "_target_": "SupervisedEvaluator",
                "device": "@device",
                "val_data_loader": "@validate#dataloader",
                "network": "@network",
                "inferer": {"_target_": "SlidingWindowInferer", "roi_size": patch},
                "postprocessing": "@postprocessing",
                "key_val_metric": {"val_mean_dice": metric},
            },
        },
        "run": ["$@train#trainer.run()"],
    }
