# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Federations of the prostate bundle on tiny hospitals: by the command, and from Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from helpers import warm_python
from helpers.checkout import CHECKOUT, DEVICE, TINY

from monai_fairfl import BundleFederation

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
OVERRIDES = {k: v for k, v in TINY.items() if k != "decay_epochs"}


def command(root: Path, run_dir: Path, *arguments: str) -> list[str]:
    """The words after ``python`` that train a federation of the sites below ``root``.

    Starting worker processes takes longer than such a training: only tests of them have any. An
    epoch of each round is enough, as of :func:`federation`.
    """
    if "--local_epochs" not in arguments:
        arguments = (*arguments, "--local_epochs", "1")
    if "--jobs" not in arguments:
        arguments = (*arguments, "--jobs", "1")
    return [
        *("-W", "ignore", "-m", "monai.bundle", "run"),
        *("--config_file", str(BUNDLE / "configs" / "federate.json"), "--bundle_root", str(BUNDLE)),
        *(
            "--sites_root",
            str(root),
            "--run_dir",
            str(run_dir),
            "--overrides",
            json.dumps(OVERRIDES),
        ),
        *("--device", DEVICE, "--report", "False", *arguments),
    ]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a :func:`command` in a folder, whose modules it can import."""
    return warm_python.run(arguments, folder, PYTHONPATH=f"{CHECKOUT}{os.pathsep}{folder}")


def infer(run_dir: Path, volumes: Path, masks: Path) -> subprocess.CompletedProcess[str]:
    """The README's command that segments a folder of volumes with a federation's model."""
    arguments = [
        *("-W", "ignore", "-m", "monai.bundle", "run"),
        *(
            "--config_file",
            str(BUNDLE / "configs" / "inference.json"),
            "--bundle_root",
            str(BUNDLE),
        ),
        *("--ckpt_path", str(run_dir / "models" / "global.pt"), "--dataset_dir", str(volumes)),
        *("--output_dir", str(masks), "--device", DEVICE),
    ]
    return run(arguments, masks.parent)


def federation(root: Path, run_dir: Path, strategies: Any, **settings: Any) -> BundleFederation:
    settings = {
        "rounds": 2,
        "overrides": OVERRIDES,
        "report": False,
        "device": DEVICE,
        **settings,
    }
    return BundleFederation(str(BUNDLE), str(root), strategies, run_dir=str(run_dir), **settings)
