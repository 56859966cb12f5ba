# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl try``: a small comparison on a folder of hospitals, and its report."""

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
from monai_fairfl.utils.terminal import warnings_as_notes
from monai_fairfl.workflow.photographs import in_colour

PROSTATE = "prostate_mri_segmentation"
FUNDUS = "fundus_disc_cup_segmentation"


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
    PROSTATE: Small(
        overrides={"size": [96, 96], "channels": [16, 32, 64, 128]},
        local_epochs=3,
    ),
    FUNDUS: Small(
        overrides={"size": [96, 96], "working_size": 384, "channels": [16, 32, 64, 128]},
        local_epochs=3,
        structures=("disc", "cup"),
    ),
}
STRATEGIES = [
    {"_target_": "monai_fairfl.strategies.Standalone"},
    {"_target_": "monai_fairfl.strategies.FedAvg"},
    {"_target_": "monai_fairfl.strategies.FedCE"},
]


def try_sites(
    root: Path,
    out: Path,
    rounds: int = 10,
    stereo: bool | None = None,
    output: Any = None,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Train Standalone, FedAvg and FedCE at a small size with the bundle that fits the images.

    Every file is checked before. A run that was stopped is continued by the same call.

    Args:
        root: one folder per hospital, in any layout of docs/data.md.
        out: gets ``bundle/``, a copy to go on with, and ``run/`` with ``report.html``.
        rounds: of each strategy.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        output: where the training prints; standard output by default.
        jobs: strategies, then hospitals, that train at a time; as many as cores and memory allow
            where it is not given.

    Returns:
        ``sites``, ``bundle``, ``command`` (what was run, as a line for a shell), ``report``, and
        ``full_run``: the command of a run that may be judged, ``None`` where this one may be. The
        report estimates how long it takes.

    Raises:
        DataError: with all that is wrong in the data, and how to mend it.
        ConfigError: when ``out`` is of other hospitals, there is one only, or ``stereo`` is given
            for volumes.
        FairFLError: when the training, or that of one strategy, failed; the reason is in what it
            printed.
    """
    with warnings_as_notes() as notes:
        folders = site_folders(root)
    name = bundle_for(folders)
    structures = SMALL[name].structures
    if stereo is not None and not structures:
        raise ConfigError(f"--stereo is for photographs, but {root} holds volumes: leave it out")
    found, text = overview(folders, structures, stereo, notes)
    print(text, file=output, flush=True)
    if found["problems"]:
        raise DataError(
            f"{len(found['problems'])} problem(s) in {root}, listed above. Mend these files, or "
            "move a site that is not to take part out of the folder; then give the same command "
            "again."
        )
    if len(folders) < 2:
        raise ConfigError(
            f"{root} holds one site, {', '.join(folders)}; a federation needs two: give the folder "
            "above"
        )
    _require_same_sites(out, folders)

    bundle = out / "bundle"
    if not (bundle / "configs").is_dir():
        copy_bundle(name, bundle)
    words = command(name, bundle, root, out / "run", rounds, stereo, jobs)
    line = shlex.join(["python", *words[1:]])
    print(f"\n{line}\n", file=output, flush=True)
    if subprocess.run(words, stdout=output).returncode:
        raise FairFLError(
            "the training did not finish; the reason is in the lines above. The same command goes "
            "on where it stopped"
        )
    return {
        "sites": list(folders),
        "bundle": str(bundle),
        "command": line,
        "report": str(out / "run" / "report.html"),
        "full_run": _full_run(out / "run" / "report.json"),
    }


def bundle_for(folders: Mapping[str, Path]) -> str:
    """Choose the bundle for these sites: prostate for volumes, fundus for photographs.

    Raises:
        DataError: when some hold volumes and others photographs, or grey pictures; all are named.
    """
    volumes = []
    photographs = []
    grey = []
    for site, folder in folders.items():
        # What cannot be read is reported by the check of the whole site.
        try:
            image = find_cases(folder)[0]["image"]
            if is_nifti(image):
                volumes.append(site)
                continue
            coloured = _is_coloured(image)
        except (DataError, OSError):
            continue
        photographs.append(site)
        if not coloured:
            grey.append(site)
    if grey:
        raise DataError(
            f"{', '.join(grey)} hold grey pictures, such as slices: no bundle of this package is "
            "for these. Give volumes (NIfTI) or colour photographs of the fundus, or make a bundle "
            "of your own (docs/guide.md)"
        )
    if volumes and photographs:
        raise DataError(
            f"two kinds of sites: {', '.join(volumes)} hold volumes (NIfTI), "
            f"{', '.join(photographs)} photographs; they cannot train one model. Put each kind "
            "into a folder of its own and try these one after the other"
        )
    if photographs:
        return FUNDUS
    return PROSTATE


def _is_coloured(image: str) -> bool:
    with Image.open(image) as picture:
        return in_colour(np.asarray(picture.convert("RGB")))


def _require_same_sites(out: Path, folders: Mapping[str, Path]) -> None:
    """Refuse a folder with the run of other hospitals: its report would be shown for these."""
    config = out / "run" / "config.json"
    if not config.exists():
        return
    data = {site: str(folder.absolute()) for site, folder in folders.items()}
    if json.loads(config.read_text())["data"] != data:
        raise ConfigError(
            f"{out} holds a first look at other hospitals: give this one a folder of its own with "
            "--out"
        )


def command(
    name: str,
    bundle: Path,
    root: Path,
    run_dir: Path,
    rounds: int,
    stereo: bool | None = None,
    jobs: int | None = None,
) -> Sequence[str]:
    """Compose the command that runs the comparison: ``python -m monai.bundle run`` and arguments.

    Args:
        name: of the shipped bundle, whose small settings are used.
        bundle: folder of its copy.
        root: one folder per hospital.
        run_dir: gets the run.
        rounds: of each strategy.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        jobs: processes that train at a time; by the bundle's configuration where it is not given.
    """
    small = SMALL[name]
    overrides = dict(small.overrides)
    if stereo is not None:
        overrides["stereo"] = stereo
    arguments = {
        "config_file": str(bundle / "configs" / "federate.json"),
        "bundle_root": str(bundle),
        "sites_root": str(root),
        "run_dir": str(run_dir),
        "rounds": str(rounds),
        "local_epochs": str(small.local_epochs),
        "overrides": json.dumps(overrides),
        "strategies": json.dumps(STRATEGIES),
        "resume": "True",
    }
    if jobs is not None:
        arguments["jobs"] = str(jobs)
    words = [sys.executable, "-m", "monai.bundle", "run"]
    for argument, value in arguments.items():
        words += [f"--{argument}", value]
    return words


def _full_run(report: Path) -> str | None:
    """Return the command of a full run, as the report has it."""
    if not report.exists():
        return None
    for entry in json.loads(report.read_text())["first_look"]:
        if entry["command"]:
            found: str = entry["command"]
            return found
    return None
