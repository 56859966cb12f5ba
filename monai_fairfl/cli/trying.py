# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl try``: a small comparison on a folder of hospitals, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.shipped import copy_bundle
from monai_fairfl.cli.choosing import STRUCTURES, bundle_for, require_two_sites
from monai_fairfl.cli.federation_line import federation_line
from monai_fairfl.cli.running import MonaiLine, require_end, text_of_report
from monai_fairfl.data.checks import overview
from monai_fairfl.data.sites import site_folders
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.run.resuming import recorded_config
from monai_fairfl.utils.terminal import warnings_as_notes

STRATEGIES = ["Standalone", "FedAvg", "FedCE"]


def try_sites(
    root: Path,
    out: Path,
    rounds: int | None = None,
    stereo: bool | None = None,
    output: Any = None,
    jobs: int | None = None,
    verbose: bool = False,
) -> dict[str, Any]:
    """Train Standalone, FedAvg and FedCE at a small size with the bundle that fits the images.

    Every file is checked first. A run that was stopped is continued by the same call.

    Args:
        root: one folder per hospital, in any layout of docs/data.md.
        out: gets ``bundle/``, a copy to go on with, and ``run/`` with ``report.html``.
        rounds: of each strategy; ``None``: those of the bundle's first look.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        output: where the check, the line that is run and the report's text go; standard output by
            default.
        jobs: strategies, then hospitals, that train at a time; as many as cores and memory allow
            where it is not given.
        verbose: show what libraries print; else it goes into ``out/run/log.txt``.

    Returns:
        ``sites``, ``bundle``, ``command`` (what was run, as a line for a shell) and ``report``.

    Raises:
        DataError: with all that is wrong in the data, and how to mend it.
        ConfigError: when ``out`` is of other hospitals, there is one only, or ``stereo`` is given
            for volumes.
        FairFLError: when the training, or that of one strategy, failed, or a signal stopped it.
    """
    with warnings_as_notes() as notes:
        folders = site_folders(root)
    name = bundle_for(folders)
    structures = STRUCTURES.get(name, ())
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
    require_two_sites(root, folders)
    _require_same_sites(out, folders)

    bundle = out / "bundle"
    if not (bundle / "configs").is_dir():
        copy_bundle(name, bundle)
    run_dir = out / "run"
    line = line_of(bundle, root, run_dir, rounds, stereo, jobs)
    print(f"{', '.join(STRATEGIES)}. Log: {run_dir / 'log.txt'}", file=output, flush=True)
    line.run(run_dir / "log.txt", verbose)
    require_end(run_dir)
    print(text_of_report(run_dir), file=output, flush=True)
    return {
        "sites": list(folders),
        "bundle": str(bundle),
        "command": line.text,
        "report": str(run_dir / "report.html"),
    }


def _require_same_sites(out: Path, folders: Mapping[str, Path]) -> None:
    """Refuse a folder with the run of other hospitals: its report would be shown for these."""
    run_dir = out / "run"
    if not (run_dir / "settings.json").exists():
        return
    data = {site: str(folder.absolute()) for site, folder in folders.items()}
    if recorded_config(run_dir).get("data") != data:
        raise ConfigError(
            f"{out} holds a first look at other hospitals: give this one a folder of its own with "
            "--out"
        )


def line_of(
    bundle: Path,
    root: Path,
    run_dir: Path,
    rounds: int | None = None,
    stereo: bool | None = None,
    jobs: int | None = None,
) -> MonaiLine:
    """The line that runs the comparison.

    Args:
        bundle: folder of a copy of a shipped bundle.
        root: one folder per hospital.
        run_dir: gets the run.
        rounds: of each strategy; by the bundle's first look where it is not given.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        jobs: processes that train at a time; by the bundle's configuration where it is not given.
    """
    keys: dict[str, Any] = {"rounds": rounds, "jobs": jobs, "overrides#stereo": stereo}
    return federation_line(bundle, root, run_dir, STRATEGIES, quick=True, **keys)
