# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``doctor``: what this machine has, what is wrong, and how to mend it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from monai_fairfl.cli.build import build_of
from monai_fairfl.cli.command import Add, Answer

PACKAGE = "monai-fairfl"
FOR_USERS = ("report", "nvflare", "flower", "dicom", "onnx", "tracking")
"""Extras for users, in the order of the list; the others are for developers."""

NEEDS = {
    "report": "the page report.html",
    "nvflare": "NVIDIA FLARE",
    "flower": "Flower",
    "dicom": "DICOM series and DICOM-SEG",
    "onnx": "export to ONNX",
    "tracking": "curves in TensorBoard",
}
"""Extra -> what it is for."""

GIB = 2**30
LEAST_DISK = 2 * GIB
"""A run stores three checkpoints, with a model for each client, and a state for each site."""

LEAST_MEMORY = GIB
"""Of a training with a process of its own: libraries, network and images of small sites."""

OK, NOTE, WRONG = "ok", "note", "WRONG"
NOT_RIGHT = 2


@dataclass(frozen=True)
class Finding:
    """One line of the answer.

    Args:
        what: was looked at.
        status: ``ok``, ``note`` where something optional is missing, or ``WRONG``.
        found: in words.
        fix: what to do; empty where nothing is to be done.
    """

    what: str
    status: str
    found: str
    fix: str = ""

    @property
    def line(self) -> str:
        """The finding for a terminal.

        >>> Finding("Python", "ok", "3.11.2").line
        'ok     Python: 3.11.2'
        """
        text = f"{self.status:<6} {self.what}: {self.found}"
        if self.fix:
            text = f"{text.rstrip('.')}; {self.fix}"
        return text


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "doctor",
        doctor,
        "doctor\n"
        "doctor hospitals        # and the data of your sites\n"
        "doctor hospitals/alder  # and the data of one hospital\n"
        "doctor kit              # and local/fairfl.json of a hospital's startup kit\n"
        "doctor /data/site       # and local/fairfl.json of a hospital's folder for Flower",
    )
    command.add_argument(
        "folder",
        metavar="DATA",
        nargs="?",
        help=(
            "one folder per hospital, one hospital's own folder, its startup kit, or its folder "
            "for Flower"
        ),
    )


def doctor(args: argparse.Namespace) -> Answer:
    """Check the environment, the machine and your data, and say how to fix each problem.

    Exit code 2: there is a problem. A note is not a problem: it names something optional that is
    missing, or something unusual in the data.
    """
    findings = [*environment(), *extras(), *machine(Path.cwd())]
    if args.folder:
        folder = Path(args.folder).absolute()
        findings += [own_settings(folder)] if _has_own_settings(folder) else data(folder)
    wrong = [finding for finding in findings if finding.status == WRONG]
    lines = [finding.line for finding in findings]
    lines.append(f"{len(wrong)} of {len(findings)} checks found something wrong.")
    code = NOT_RIGHT if wrong else 0
    return Answer({"checks": [asdict(finding) for finding in findings]}, "\n".join(lines), code)


# --- environment


def environment() -> Iterator[Finding]:
    """Python, the system, and each library that this package needs, against what it supports."""
    from packaging.specifiers import SpecifierSet

    yield Finding(PACKAGE, OK, build_of())
    yield _python(platform.python_version(), SpecifierSet(_required_python()))
    system = platform.system()
    if system in ("Linux", "Darwin"):
        yield Finding("system", OK, f"{system} {platform.release()}")
    else:
        fix = "use Linux or macOS: a run's folder is locked with a Unix call"
        yield Finding("system", WRONG, system, fix)
    for name, specifier in _requirements(None):
        yield library(name, specifier)


def _python(version: str, supported: object) -> Finding:
    if version in supported:  # type: ignore[operator]
        return Finding("Python", OK, version)
    return Finding("Python", WRONG, version, f"make an environment with Python {supported}")


def _required_python() -> str:
    try:
        return importlib.metadata.metadata(PACKAGE)["Requires-Python"] or ">=3.10"
    except importlib.metadata.PackageNotFoundError:
        return ">=3.10"


def library(name: str, specifier: str) -> Finding:
    """A library that is needed: whether it is installed, in a version that is supported.

    >>> library("numpy", ">=1").status, library("numpy", "<1").fix
    ('ok', "pip install 'numpy<1'")
    >>> library("no-such-library", "").found
    'not installed'
    """
    from packaging.specifiers import SpecifierSet

    fix = f"pip install '{name}{specifier}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, WRONG, "not installed", fix)
    if not SpecifierSet(specifier).contains(version, prereleases=True):
        return Finding(name, WRONG, f"{version}, supported is {specifier}", fix)
    return Finding(name, OK, version)


def extras() -> Iterator[Finding]:
    """The optional libraries, one line for each extra."""
    for extra in FOR_USERS:
        faults = []
        installed = []
        for name, specifier in _requirements(extra):
            found = library(name, specifier)
            if found.status == WRONG:
                faults.append(f"{name} {found.found}")
            else:
                installed.append(f"{name} {found.found}")
        if faults:
            fix = f"pip install '{PACKAGE}[{extra}]' for {NEEDS[extra]}"
            yield Finding(f"extra {extra}", NOTE, ", ".join(faults), fix)
        else:
            # Server and sites need the same version of some, such as nvflare.
            versions = ", ".join(installed) or "no library is listed"
            yield Finding(f"extra {extra}", OK, f"{versions}, for {NEEDS[extra]}")


def _requirements(extra: str | None) -> Iterator[tuple[str, str]]:
    """Name and supported versions of what the package needs, or an extra of it."""
    from packaging.requirements import Requirement

    try:
        written = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        # A checkout on PYTHONPATH that is not installed.
        written = []
    for text in written:
        requirement = Requirement(text)
        of_all = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if extra is None and of_all:
            yield requirement.name, str(requirement.specifier)
        elif extra is not None and not of_all and requirement.marker is not None:
            if requirement.marker.evaluate({"extra": extra}):
                yield requirement.name, str(requirement.specifier)


# --- machine


def machine(folder: Path) -> Iterator[Finding]:
    """Cores, GPU, precision, free memory, and free disk of the folder in which runs are written."""
    from monai_fairfl.utils.machine import free_memory, usable_cores

    yield Finding("cores", OK, f"{usable_cores()} usable")
    gpu = _gpu()
    yield gpu
    if gpu.status != WRONG:
        yield _precision()
    memory = free_memory()
    fix = "end other programs, or train with --jobs 1 and small images (--quick)"
    yield enough("free memory", memory, LEAST_MEMORY, fix)
    fix = f"make space, or work in a folder elsewhere than {folder}"
    yield enough("free disk", shutil.disk_usage(folder).free, LEAST_DISK, fix)


def enough(what: str, free: int, least: int, fix: str) -> Finding:
    """Whether so many bytes will do.

    >>> enough("free disk", 3 * 2**30, 2**30, "make space").line
    'ok     free disk: 3.0 GiB'
    """
    found = f"{free / GIB:.1f} GiB"
    if free >= least:
        return Finding(what, OK, found)
    return Finding(what, WRONG, f"{found}, a training needs {least / GIB:.1f} GiB", fix)


def _gpu() -> Finding:
    try:
        import torch
    except Exception as error:  # whatever an installation that is broken raises
        return Finding("GPU", WRONG, f"torch cannot be imported: {error}", "install torch again")
    if not torch.cuda.is_available():
        fix = "trainings use processors; for a GPU install the CUDA build of torch and a driver"
        return Finding("GPU", NOTE, "none that torch can use", fix)
    names = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        names.append(f"cuda:{number} {properties.name}, {properties.total_memory / GIB:.0f} GiB")
    return Finding("GPU", OK, "; ".join(names))


def _precision() -> Finding:
    """What a recipe that trains in bfloat16 where the hardware has it uses on each device."""
    import torch

    from monai_fairfl.utils.devices import has_bfloat16

    devices = ["cpu", *[f"cuda:{number}" for number in range(torch.cuda.device_count())]]
    found = []
    for device in devices:
        precision = "bfloat16" if has_bfloat16(device) else "float32, without bfloat16 in hardware"
        found.append(f"{device} {precision}")
    return Finding("training precision", OK, "; ".join(found))


# --- a hospital's own settings, and data


def _has_own_settings(folder: Path) -> bool:
    """Whether a folder is a startup kit, or a site's folder for Flower with its settings."""
    from monai_fairfl.transports.engines.site_settings import SITE_FILE

    return _is_kit(folder) or (folder / SITE_FILE).is_file()


def _is_kit(folder: Path) -> bool:
    """Whether a folder is a startup kit of NVIDIA FLARE."""
    return (folder / "startup").is_dir() and (folder / "local").is_dir()


def own_settings(root: Path) -> Finding:
    """The settings in a startup kit, or in a folder for Flower, read as a job's site reads them."""
    from monai_fairfl.errors import FairFLError
    from monai_fairfl.transports.engines.site import Site
    from monai_fairfl.transports.engines.site_settings import SITE_FILE

    is_kit = _is_kit(root)
    what = f"kit {root.name}" if is_kit else f"site {root.name}"
    if is_kit and not (root / "startup" / "fed_client.json").exists():
        fix = "give a hospital's kit, or a folder of data"
        return Finding(what, WRONG, "no kit of a hospital: no startup/fed_client.json", fix)
    try:
        site = Site(root.name, root, job={})
        settings = site.settings()
        bundle_root = site.bundle_root(settings) if settings.bundle else root
        images = site.images(settings, bundle_root)
    except (FairFLError, TypeError, ValueError) as error:
        return Finding(what, WRONG, f"{SITE_FILE}: {error}")
    if not images.exists():
        fix = f"mend dataset_dir in {root / SITE_FILE}"
        return Finding(what, WRONG, f"the images {images} do not exist", fix)
    found = f"{SITE_FILE} can be read; images in {images}"
    datalist = settings.overrides.get("datalist_file")
    if isinstance(datalist, str) and not datalist.startswith("$") and not Path(datalist).exists():
        fix = "correct datalist_file if you made a split; else a job makes a new split there"
        return Finding(what, NOTE, f"{found}; no data list {datalist}", fix)
    return Finding(what, OK, found)


def data(root: Path) -> Iterator[Finding]:
    """The sites of a folder, or one hospital's own, in short: every file is read once."""
    from monai_fairfl.cli.choosing import STRUCTURES, bundle_for
    from monai_fairfl.data.layouts import sites_at
    from monai_fairfl.data.overview import overview
    from monai_fairfl.errors import FairFLError
    from monai_fairfl.utils.terminal import warnings_as_notes
    from monai_fairfl.utils.words import count_words

    what = f"data {root.name}"
    try:
        with warnings_as_notes() as notes:
            folders = sites_at(root)
        bundle = bundle_for(folders)
        found, _ = overview(folders, STRUCTURES.get(bundle, ()), None, notes)
    except FairFLError as error:
        yield Finding(what, WRONG, str(error))
        return
    is_one_hospital = root in folders.values()
    is_alone = len(folders) < 2 and not is_one_hospital
    if is_one_hospital:
        about = f"one hospital, for the bundle {bundle}"
    else:
        about = f"{len(folders)} sites ({', '.join(folders)}), for the bundle {bundle}"
    if not is_alone and not found["problems"]:
        yield Finding(what, OK, about)
    if is_alone:
        fix = "a federation needs two: give the folder above"
        yield Finding(what, WRONG, "one site alone", fix)
    shown = f"monai-fairfl datalist {root} --check shows all"
    for problem in found["problems"]:
        yield Finding(what, WRONG, str(problem), shown)
    if found["warnings"]:
        yield Finding(what, NOTE, count_words(len(found["warnings"]), "note"), shown)
