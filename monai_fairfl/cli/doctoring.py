# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``doctor``: what this machine has, what is wrong, and how to mend it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.cli.build import build_of
from monai_fairfl.cli.command import STEREO, Answer, add_stereo, positive, progress_stream, whole
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.utils.terminal import warnings_as_notes

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

OLDEST_PYTHON = ">=3.10"

GIB = 2**30
LEAST_DISK = 2 * GIB
"""A run stores three checkpoints, with a model for each client, and a state for each site."""

LEAST_MEMORY = GIB
"""Of a training with a process of its own: libraries, network and images of small sites."""

OK, NOTE, WRONG = "ok", "note", "WRONG"
COUNTED = {NOTE: "to note", WRONG: "wrong"}
NOT_RIGHT = 2

LINE_OF_SITE = (
    "{site}: {num_cases} cases, {training} training, {validation} validation, "
    "{testing} testing; labels {labels}, {gland_slices} labelled slices"
)
"""What is said of a site whose split is written."""


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


def doctor_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``doctor``."""
    command.add_argument(
        "folder",
        metavar="DATA",
        nargs="?",
        help=(
            "one folder per hospital, one hospital's own folder or data list, its startup kit, or "
            "its folder for Flower"
        ),
    )
    command.add_argument("--verbose", action="store_true", help="also show what is fine")
    lists = command.add_argument_group("split of the data into cases")
    lists.add_argument(
        "--write-lists",
        metavar="PATH",
        help=(
            "write the split: a file for one hospital; for several a folder, which gets a file "
            "SITE.json for each; lists that are there are kept"
        ),
    )
    lists.add_argument(
        "--structures",
        nargs="+",
        metavar="NAME",
        help=(
            "nested structures, the outermost first, whose pixel values the list records "
            "(default: those of the bundle for these images)"
        ),
    )
    lists.add_argument(
        "--folds",
        type=positive,
        metavar="K",
        help="split into K folds for cross-validation, in place of 0.5/0.25/0.25",
    )
    lists.add_argument(
        "--fold",
        type=whole,
        metavar="F",
        help="which fold of --folds to test, counted from 0 (default: 0)",
    )
    lists.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="S",
        help="seed of the shuffle before the split (default: 0)",
    )
    add_stereo(lists)
    policy = command.add_argument_group("what NVIDIA FLARE must allow for jobs that bring no code")
    policy.add_argument(
        "--flare-policy",
        action="store_true",
        help="show it, or check it in the startup kit DATA; exit code 2 if it is missing there",
    )
    policy.add_argument("--add", action="store_true", help="add it to the kit")
    policy.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="CLASS",
        help=(
            "your own classes that a job may name, such as my_methods.MyStrategy; for "
            "the server's kit only"
        ),
    )


def doctor(args: argparse.Namespace) -> Answer:
    """Check the environment, the machine and your data, and say how to fix each problem.

    Exit code 2: there is a problem. A note is not a problem: it names something optional that is
    missing, or something unusual in the data.

    examples:
      monai-fairfl doctor
      monai-fairfl doctor hospitals        # and the data of your sites
      monai-fairfl doctor hospitals/alder  # and the data of one hospital
      monai-fairfl doctor kit              # and local/fairfl.json of a hospital's startup kit
      monai-fairfl doctor /data/site       # and fairfl.json of a hospital's folder for Flower
      monai-fairfl doctor hospitals --write-lists datalists   # and write datalists/SITE.json
      monai-fairfl doctor hospitals/alder --folds 4 --fold 0 --write-lists alder.json
      monai-fairfl doctor --flare-policy              # the entry of class_allow_list
      monai-fairfl doctor alder --flare-policy --add  # add it to alder/local/resources.json
    """
    if args.flare_policy:
        return _flare_policy(args)
    if args.write_lists is not None:
        return _write_lists(args)
    findings = [*environment(), *extras(), *machine(Path.cwd())]
    found: dict[str, Any] = {}
    text = ""
    if args.folder:
        folder = Path(args.folder).absolute()
        if _has_own_settings(folder):
            findings.append(own_settings(folder))
        else:
            of_data, found, text = _data(folder, args)
            findings += of_data
    counts = {status: sum(one.status == status for one in findings) for status in (OK, NOTE, WRONG)}
    lines = [one.line for one in findings if args.verbose or one.status != OK]
    others = [f"{counts[status]} {words}" for status, words in COUNTED.items() if counts[status]]
    lines.append(", ".join([f"{counts[OK]} fine", *others]))
    data = {"checks": [asdict(finding) for finding in findings], **found}
    return Answer(data, "\n".join([*filter(None, [text]), *lines]), NOT_RIGHT * bool(counts[WRONG]))


# --- environment


def environment() -> Iterator[Finding]:
    """Python, the system, and each library that this package needs, against what it supports."""
    from packaging.specifiers import SpecifierSet

    yield Finding(PACKAGE, OK, build_of())
    python = platform.python_version()
    if python in SpecifierSet(OLDEST_PYTHON):
        yield Finding("Python", OK, python)
    else:
        fix = f"make an environment with Python {OLDEST_PYTHON}"
        yield Finding("Python", WRONG, python, fix)
    system = platform.system()
    if system in ("Linux", "Darwin"):
        yield Finding("system", OK, f"{system} {platform.release()}")
    else:
        fix = "use Linux or macOS: a run's folder is locked with a Unix call"
        yield Finding("system", WRONG, system, fix)
    for name, specifier in _requirements(None):
        yield library(name, specifier)


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
    from monai_fairfl.transports.engines.site import SITE_FILE

    return _is_kit(folder) or (folder / SITE_FILE).is_file()


def _is_kit(folder: Path) -> bool:
    """Whether a folder is a startup kit of NVIDIA FLARE."""
    return (folder / "startup").is_dir() and (folder / "local").is_dir()


def own_settings(root: Path) -> Finding:
    """The settings in a startup kit, or in a folder for Flower, read as a job's site reads them."""
    from monai_fairfl.errors import FairFLError
    from monai_fairfl.transports.engines.site import SITE_FILE, Site

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


def _data(root: Path, args: argparse.Namespace) -> tuple[list[Finding], dict[str, Any], str]:
    """The sites of a folder, or one hospital's own: every file is read once.

    Returns:
        What was found; ``sites``, ``warnings`` and ``problems`` for JSON; and these as a table.
    """
    from monai_fairfl.cli.choosing import STRUCTURES, bundle_for
    from monai_fairfl.data.checks import overview
    from monai_fairfl.data.sites import sites_at
    from monai_fairfl.errors import FairFLError

    what = f"data {root.name}"
    split = _split_settings(args)
    findings = []
    bundle = ""
    try:
        with warnings_as_notes() as notes:
            folders = sites_at(root)
    except FairFLError as error:
        return [Finding(what, WRONG, str(error))], {}, ""
    try:
        bundle = bundle_for(folders)
    except FairFLError as error:
        findings.append(Finding(what, WRONG, str(error)))
    structures: Sequence[str] = args.structures or STRUCTURES.get(bundle, ())
    stereo = STEREO[args.stereo]
    found, text = overview(folders, structures, stereo, notes, _reading(args), root, **split)
    findings += [Finding(what, WRONG, problem) for problem in found["problems"]]
    is_one_hospital = root in folders.values()
    if len(folders) < 2 and not is_one_hospital:
        fix = "a federation needs two: give the folder above"
        findings.append(Finding(what, WRONG, "one site alone", fix))
    if not findings:
        about = f"{len(folders)} sites ({', '.join(folders)})"
        if is_one_hospital:
            about = "one hospital"
        findings = [Finding(what, OK, f"{about}, for the bundle {bundle}")]
    return findings, found, text


def _split_settings(args: argparse.Namespace) -> dict[str, int]:
    """The arguments of ``split_cases`` that the user chose."""
    if args.folds is None:
        if args.fold is not None:
            raise ConfigError(f"--fold {args.fold} needs --folds, the number of folds")
        return {"seed": args.seed}
    return {"seed": args.seed, "folds": args.folds, "fold": args.fold or 0}


def _reading(args: argparse.Namespace) -> Callable[[str], None]:
    """What shows that the files of a site are read, which may take minutes."""
    return lambda site: print(f"Reading {site} ...", file=progress_stream(args), flush=True)


def _write_lists(args: argparse.Namespace) -> Answer:
    """Check all sites, and then write the split of each into cases."""
    from monai_fairfl.bundle.checks import check_sites
    from monai_fairfl.cli.choosing import STRUCTURES, bundle_for
    from monai_fairfl.data import check_cases, site_datalist
    from monai_fairfl.data.sites import sites_at

    if args.folder is None:
        raise ConfigError("--write-lists needs DATA, the folder of a hospital or of all")
    out = Path(args.write_lists)
    split = _split_settings(args)
    with warnings_as_notes() as notes:
        root = Path(args.folder).absolute()
        folders = sites_at(root)
        structures: Sequence[str] = args.structures or ()
        if not structures:
            # Images of a bundle of one's own have none.
            with suppress(DataError):
                structures = STRUCTURES.get(bundle_for(folders), ())
        files = {site: out / f"{site}.json" for site in folders}
        if root in folders.values():
            files = dict.fromkeys(folders, out)
        there = [str(file) for file in files.values() if file.exists()]

        names = {str(folder): site for site, folder in folders.items()}
        reading = _reading(args)
        sites: dict[str, dict[str, Any]] = {}

        def check(folder: str) -> None:
            reading(names[folder])
            sites[names[folder]] = check_cases(folder, structures, stereo=STEREO[args.stereo])

        check_sites({site: str(folder) for site, folder in folders.items()}, check)
        for site, found in sites.items():
            values = found.get("values")
            parts = site_datalist(folders[site], files[site], structures, values, **split)
            found.update({part: len(cases) for part, cases in parts.items()})
            found["file"] = str(files[site])
    lines = [LINE_OF_SITE.format(**site) for site in sites.values()]
    lines += [f"note: {note}" for note in notes]
    if there:
        lines.append(f"kept as they are, and read: {', '.join(there)}")
    if len(there) < len(files):
        lines.append(f"written: {out}")
    return Answer({"sites": sites, "warnings": notes}, "\n".join(lines))


# --- the policy of NVIDIA FLARE


def _flare_policy(args: argparse.Namespace) -> Answer:
    """Show, check or add what NVIDIA FLARE must allow for jobs that bring no code."""
    from monai_fairfl.transports.flare.policy import ENTRY, allow, allowed

    kit = args.folder
    if kit is None:
        if args.add:
            raise ConfigError("--add needs a startup kit, of the server or of a site")
        text = (
            f'add "{ENTRY}" to class_allow_list in local/resources.json of the server and of every '
            "site;\nmonai-fairfl doctor KIT --flare-policy --add does it"
        )
        return Answer({"class_allow_list": ENTRY}, text)
    entries = " and ".join(f'"{entry}"' for entry in [ENTRY, *args.also])
    if args.add:
        file = allow(kit, args.also)
        text = f"{file}: allowed is now {entries}; restart what runs from it"
        return Answer({"file": str(file), "allowed": True}, text)
    if allowed(kit, args.also):
        return Answer({"allowed": True}, f"{kit}: allowed is {entries}")
    also = f" --also {' '.join(args.also)}" if args.also else ""
    text = (
        f"{kit} does not allow {entries}: a job without custom code ends with "
        f'"is not in allow_list".\nmonai-fairfl doctor {kit} --flare-policy --add{also} adds it'
    )
    return Answer({"allowed": False}, text, NOT_RIGHT)
