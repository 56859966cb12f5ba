# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl try``: from a folder of hospitals to a small comparison and its report, in one
command.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from monai_fairfl.bundle.shipped import copy_bundle
from monai_fairfl.data.datalist import find_cases
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.data.layouts.image_files import is_nifti
from monai_fairfl.data.overview import overview
from monai_fairfl.errors import ConfigError, DataError, FairFLError
from monai_fairfl.utils.terminal import noted
from monai_fairfl.workflow.photographs import in_colour


@dataclass(frozen=True)
class Small:
    """A bundle's settings for a first look: minutes on a laptop, not its best.

    Args:
        overrides: plain values of its configuration.
        local_epochs: of every round.
        structures: names of the label's nested structures, as its data list wants them.
    """

    overrides: Mapping[str, Any]
    local_epochs: int
    structures: tuple[str, ...] = ()


SMALL = {
    "prostate_mri_segmentation": Small({"size": [96, 96], "channels": [16, 32, 64, 128]}, local_epochs=3),
    "fundus_disc_cup_segmentation": Small(
        {"size": [96, 96], "working_size": 384, "channels": [16, 32, 64, 128]}, local_epochs=3,
        structures=("disc", "cup"),
    ),
}  # fmt: skip
STRATEGIES = [
    {"_target_": f"monai_fairfl.strategies.{name}"} for name in ("Standalone", "FedAvg", "FedCE")
]


def try_sites(
    root: Path, out: Path, rounds: int = 10, stereo: bool | None = None, output: Any = None
) -> dict[str, Any]:
    """Check every file, copy the bundle that fits, then train Standalone, FedAvg and FedCE at a
    small size.

    What a stopped run finished is kept: the same call goes on from there.

    Args:
        root: one folder per hospital, in any layout of docs/data.md.
        out: gets ``bundle/``, a copy to go on with, and ``run/`` with ``report.html``.
        rounds: of each strategy.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        output: where the training prints; standard output by default.

    Returns:
        ``sites``, ``bundle``, ``command`` (what was run, as a line for a shell), ``report``, and
        ``full_run``: the command of a run that may be judged, ``None`` where this one may be. The
            report says how long it takes.

    Raises:
        DataError: with all that is wrong in the data, and how to mend it.
        ConfigError: when ``out`` is of other hospitals, there is one only, or ``stereo`` is told of
            volumes.
        FairFLError: when the training, or that of one strategy, failed; what it printed says why.
    """
    with noted() as noticed:
        folders = site_folders(root)
    name = bundle_for(folders)
    if stereo is not None and not SMALL[name].structures:
        raise ConfigError(
            f"whether photographs are stereo pairs was told, but {root} holds volumes: leave it out"
        )
    found, text = overview(folders, SMALL[name].structures, stereo, noticed)
    print(text, file=output, flush=True)
    if found["problems"]:
        raise DataError(
            f"{len(found['problems'])} problem(s) in {root}, told above. Mend these files, or move a site that is not "
            "to take part out of the folder; then give the same command again."
        )
    if len(folders) < 2:
        raise ConfigError(
            f"{root} holds one site, {', '.join(folders)}; a federation needs two: give the folder above"
        )
    _check_same_sites(out, folders)
    bundle = out / "bundle"
    if not (bundle / "configs").is_dir():
        copy_bundle(name, bundle)
    words = command(name, bundle, root, out / "run", rounds, stereo)
    line = shlex.join(["python", *words[1:]])
    print(f"\n{line}\n", file=output, flush=True)
    if subprocess.run(words, stdout=output).returncode:
        raise FairFLError(
            "the training did not finish; the lines above say why. The same command goes on where it stopped"
        )
    return {
        "sites": list(folders),
        "bundle": str(bundle),
        "command": line,
        "report": str(out / "run" / "report.html"),
        "full_run": _full_run(out / "run" / "report.json"),
    }


def _full_run(report: Path) -> str | None:
    """The command of a full run, as the report has it."""
    entries = json.loads(report.read_text())["first_look"] if report.exists() else []
    return next((entry["command"] for entry in entries if entry["command"]), None)


def _check_same_sites(out: Path, folders: Mapping[str, Path]) -> None:
    """That what an earlier call left in ``out`` is of these hospitals: their report would be shown
    for these.
    """
    config = out / "run" / "config.json"
    if config.exists() and json.loads(config.read_text())["data"] != {
        n: str(f.absolute()) for n, f in folders.items()
    }:
        raise ConfigError(
            f"{out} holds a first look at other hospitals: give this one a folder of its own with --out"
        )


def bundle_for(folders: Mapping[str, Path]) -> str:
    """The bundle for these sites: prostate for volumes, fundus for photographs.

    Raises:
        DataError: when some hold volumes and others photographs, or grey pictures; all are named.
    """
    grey: list[str] = []
    kinds: dict[str, list[str]] = {
        "prostate_mri_segmentation": [],
        "fundus_disc_cup_segmentation": [],
    }
    for site, folder in folders.items():
        try:
            image = find_cases(folder)[0]["image"]
            nifti = is_nifti(image)
            if not nifti:
                with Image.open(image) as picture:
                    grey += [] if in_colour(np.asarray(picture.convert("RGB"))) else [site]
        except (DataError, OSError):
            continue  # its own problems are told by the check
        kinds["prostate_mri_segmentation" if nifti else "fundus_disc_cup_segmentation"].append(site)
    volumes, photographs = kinds.values()
    if grey:
        raise DataError(
            f"{', '.join(grey)} hold grey pictures, such as slices: no bundle of this package is for these. Give "
            "volumes (NIfTI) or colour photographs of the fundus, or make a bundle of your own (docs/guide.md)"
        )
    if volumes and photographs:
        raise DataError(
            f"two kinds of sites: {', '.join(volumes)} hold volumes (NIfTI), {', '.join(photographs)} photographs; "
            "they cannot train one model. Put each kind into a folder of its own and try these one after the other"
        )
    return "fundus_disc_cup_segmentation" if photographs else "prostate_mri_segmentation"


def command(
    name: str, bundle: Path, root: Path, run_dir: Path, rounds: int, stereo: bool | None = None
) -> Sequence[str]:
    """What runs the comparison: ``python -m monai.bundle run`` and its arguments."""
    small = SMALL[name]
    overrides = {**small.overrides, **({} if stereo is None else {"stereo": stereo})}
    return [
        *(sys.executable, "-m", "monai.bundle", "run"),
        *("--config_file", str(bundle / "configs" / "federate.json"), "--bundle_root", str(bundle)),
        *("--sites_root", str(root), "--run_dir", str(run_dir), "--rounds", str(rounds)),
        *("--local_epochs", str(small.local_epochs), "--overrides", json.dumps(overrides)),
        *("--strategies", json.dumps(STRATEGIES), "--resume", "True"),
    ]
