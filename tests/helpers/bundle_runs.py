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
OVERRIDES = TINY


def command(root: Path, run_dir: Path, *arguments: str) -> list[str]:
    """The words after ``python`` that train a federation of the sites below ``root``.

    Starting worker processes takes longer than such a training: only tests of them have any. An
    epoch of each round is enough, as of :func:`federation`. Of two options of one name the last
    counts.
    """
    return [
        *_bundle_run("federate"),
        *("--sites_root", str(root), "--run_dir", str(run_dir)),
        *("--overrides", json.dumps(OVERRIDES), "--local_epochs", "1", "--jobs", "1"),
        *("--report", "False", *arguments),
    ]


def _bundle_run(name: str) -> list[str]:
    """The words that run one of the bundle's configurations."""
    file = BUNDLE / "configs" / f"{name}.json"
    words = ["-W", "ignore", "-m", "monai.bundle", "run", "--config_file", str(file)]
    return [*words, "--bundle_root", str(BUNDLE), "--device", DEVICE]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a :func:`command` in a folder, whose modules it can import."""
    return warm_python.run(arguments, folder, PYTHONPATH=f"{CHECKOUT}{os.pathsep}{folder}")


def infer(run_dir: Path, volumes: Path, masks: Path) -> subprocess.CompletedProcess[str]:
    """The README's command that segments a folder of volumes with a federation's model."""
    model = str(run_dir / "models" / "global.pt")
    places = ["--ckpt_path", model, "--dataset_dir", str(volumes), "--output_dir", str(masks)]
    return run([*_bundle_run("inference"), *places], masks.parent)


def federation(root: Path, run_dir: Path, strategies: Any, **settings: Any) -> BundleFederation:
    given = {"rounds": 2, "overrides": OVERRIDES, "report": False, "device": DEVICE, **settings}
    return BundleFederation(str(BUNDLE), str(root), strategies, run_dir=str(run_dir), **given)
