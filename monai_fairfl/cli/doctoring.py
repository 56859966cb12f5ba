# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``doctor``: what this machine has, what is wrong, and how to mend it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from packaging.requirements import Requirement

from monai_fairfl import __version__
from monai_fairfl.cli.answers import Answer, say
from monai_fairfl.cli.choosing import FUNDUS, bundle_for
from monai_fairfl.data import overview, site_datalist
from monai_fairfl.data.layouts import sites_at
from monai_fairfl.errors import FairFLError
from monai_fairfl.transports.engines.site import SITE_FILE, Site
from monai_fairfl.utils.devices import free_memory, usable_cores
from monai_fairfl.utils.terminal import warnings_as_notes

PACKAGE = "monai-fairfl"

GIB = 2**30

OK, NOTE, WRONG = "ok", "note", "WRONG"


class Finding(NamedTuple):
    """One line of the answer: what was looked at, whether it is right, and what was found.

    The status is ``ok``, ``note`` where something optional is missing, or ``WRONG``.
    """

    what: str
    status: str
    found: str


def doctor(args: argparse.Namespace) -> Answer:
    """Carry out ``doctor``."""
    if args.flare_policy:
        return _flare_policy(args)
    findings = [] if args.write_lists else [*_environment(), *_machine()]
    found: dict[str, Any] = {}
    lines = []
    if args.folder or args.write_lists:
        folder = Path(args.folder or "").absolute()
        if (folder / SITE_FILE).is_file() or (folder / "startup").is_dir():
            findings.append(_own_settings(folder))
        else:
            of_data, found, text = _data(folder, args)
            findings += of_data
            lines.append(text)
    for one in findings:
        if args.verbose or args.write_lists or one.status != OK:
            lines.append(f"{one.status:<6} {one.what}: {one.found}")
    counts = Counter(one.status for one in findings)
    lines.append(f"{counts[OK]} fine, {counts[NOTE]} to note, {counts[WRONG]} wrong")
    data = {"checks": [one._asdict() for one in findings], **found}
    return Answer(data, "\n".join(filter(None, lines)), 2 if counts[WRONG] else 0)


# --- environment and machine


def _environment() -> Iterator[Finding]:
    """Python, and each library that is needed."""
    yield Finding(PACKAGE, OK, __version__)
    yield Finding("Python", OK, f"{platform.python_version()}, {platform.platform()}")
    needed: list[Requirement] = []
    # A checkout on PYTHONPATH is not installed.
    with suppress(importlib.metadata.PackageNotFoundError):
        needed = [Requirement(text) for text in importlib.metadata.requires(PACKAGE) or []]
    for one in needed:
        if one.marker and not one.marker.evaluate({"extra": ""}):
            # It is for an extra, or for another system.
            continue
        found, fix = "not installed", f"; pip install '{one.name}{one.specifier}'"
        with suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.version(one.name)
            if one.specifier.contains(found, prereleases=True):
                fix = ""
        yield Finding(one.name, WRONG if fix else OK, found + fix)


def _machine() -> Iterator[Finding]:
    """Cores, GPU, free memory, and free disk of this folder, in which runs are written."""
    yield Finding("cores", OK, f"{usable_cores()} usable")
    gpus = torch.cuda.device_count()
    yield Finding("GPUs", OK if gpus else NOTE, f"{gpus}; they need a CUDA build of torch")
    for what, free, least, fix in (
        ("free memory", free_memory(), 1, "end other programs, or give --jobs 1 and --quick"),
        # Of a run's checkpoints, models and states.
        ("free disk", shutil.disk_usage(".").free, 2, f"make space at {Path.cwd()}"),
    ):
        found = f"{free / GIB:.1f} GiB, a training needs {least} GiB; if less, {fix}"
        yield Finding(what, OK if free >= least * GIB else WRONG, found)


# --- a hospital's own settings, and data


def _own_settings(root: Path) -> Finding:
    """The settings in a startup kit, or in a folder for Flower, read as a job's site reads them."""
    what = f"site {root.name}"
    try:
        site = Site(root.name, root, job={})
        settings = site.settings()
        if settings.bundle:
            site.bundle_root(settings)
        images = site.images(settings)
    except (FairFLError, TypeError, ValueError) as error:
        return Finding(what, WRONG, f"{SITE_FILE}: {error}")
    if not images.exists():
        return Finding(what, WRONG, f"{images} does not exist; mend dataset_dir in {SITE_FILE}")
    datalist = str(settings.overrides.get("datalist_file", "$"))
    if not datalist.startswith("$") and not Path(datalist).exists():
        fix = "correct datalist_file if you made a split; else a job makes a new split there"
        return Finding(what, NOTE, f"no data list {datalist}; {fix}")
    return Finding(what, OK, f"{SITE_FILE} can be read; images in {images}")


def _data(root: Path, args: argparse.Namespace) -> tuple[list[Finding], dict[str, Any], str]:
    """The sites of a folder, or one hospital's own: every file is read once.

    Where nothing is wrong, the lists of ``--write-lists`` are written.

    Returns:
        What was found; ``sites``, ``warnings`` and ``problems`` for JSON; and these as a table.
    """
    what = f"data {root.name}"
    bundle = ""
    with warnings_as_notes() as notes:
        folders = sites_at(root)
    try:
        bundle = bundle_for(folders)
        findings = [Finding(what, OK, f"{', '.join(folders)}, for the bundle {bundle}")]
    except FairFLError as error:
        # Images of a bundle of one's own may have lists.
        findings = [Finding(what, NOTE if args.write_lists else WRONG, str(error))]
    structures = ("disc", "cup") if bundle == FUNDUS else ()
    say("Every file is read ...")
    found, text = overview(folders, structures, notes, root)
    findings += [Finding(what, WRONG, problem) for problem in found["problems"]]
    if found["problems"] or not args.write_lists:
        return findings, found, text
    for site, summary in found["sites"].items():
        file = Path(args.write_lists)
        if root not in folders.values():
            file /= f"{site}.json"
        done = "kept as it is" if file.exists() else "written"
        parts = site_datalist(folders[site], file, structures, summary.get("values"))
        counts = {part: len(cases) for part, cases in parts.items()}
        summary |= counts | {"file": str(file)}
        sizes = ", ".join(f"{count} {part}" for part, count in counts.items())
        findings.append(Finding(f"list of {site}", OK, f"{file} is {done}: {sizes}"))
    return findings, found, text


# --- the policy of NVIDIA FLARE


def _flare_policy(args: argparse.Namespace) -> Answer:
    """Show, check or add what NVIDIA FLARE must allow for jobs that bring no code."""
    from monai_fairfl.transports.flare.policy import ENTRY, NEEDS, allowed

    if args.folder is None:
        return Answer({"class_allow_list": ENTRY}, NEEDS)
    entries = ", ".join([ENTRY, *args.also])
    if allowed(args.folder, args.also, args.add):
        text = f"{args.folder}: allowed is {entries}; restart what runs from it after a change"
        return Answer({"allowed": True}, text)
    text = f"{args.folder} does not allow {entries}: the same command with --add adds it"
    return Answer({"allowed": False}, text, 2)
