# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``doctor``: what this machine has, what is wrong, and how to mend it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import monai_fairfl
from monai_fairfl.cli.options import STEREO, Answer, add, number, say
from monai_fairfl.errors import ConfigError, DataError, FairFLError
from monai_fairfl.utils.terminal import warnings_as_notes

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "monai-fairfl"

NEEDS = {
    "report": "the page report.html",
    "nvflare": "NVIDIA FLARE",
    "flower": "Flower",
    "dicom": "DICOM series and DICOM-SEG",
    "onnx": "export to ONNX",
    "tracking": "curves in TensorBoard",
}
"""Extra for users -> what it is for."""

GIB = 2**30
LEAST_DISK = 2 * GIB
"""A run stores three checkpoints, with a model for each client, and a state for each site."""

LEAST_MEMORY = GIB
"""Of a training with a process of its own: libraries, network and images of small sites."""

OK, NOTE, WRONG = "ok", "note", "WRONG"
NOT_RIGHT = 2

LINE_OF_SITE = (
    "{site}: {num_cases} cases, {training} training, {validation} validation, "
    "{testing} testing; labels {labels}, {gland_slices} labelled slices"
)
"""What is said of a site whose split is written."""


class Finding(NamedTuple):
    """One line of the answer: what was looked at, what was found, and what to do, if anything.

    The status is ``ok``, ``note`` where something optional is missing, or ``WRONG``.
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
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.status:<6} {self.what}: {self.found.rstrip('.')}{fix}"


def doctor_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``doctor``."""
    command.add_argument(
        "folder",
        metavar="DATA",
        nargs="?",
        help="one folder per hospital, one hospital's own folder or data list, its startup kit, or "
        "its folder for Flower",
    )
    command.add_argument("--verbose", action="store_true", help="also show what is fine")
    lists = command.add_argument_group("split of the data into cases")
    lists.add_argument(
        "--write-lists",
        metavar="PATH",
        help="write the split: a file for one hospital; for several a folder, which gets a file "
        "SITE.json for each; lists that are there are kept",
    )
    lists.add_argument(
        "--structures",
        nargs="+",
        metavar="NAME",
        help="nested structures, the outermost first (default: those of the images' bundle)",
    )
    lists.add_argument(
        "--folds",
        type=number("[1, inf)"),
        metavar="K",
        help="split into K folds for cross-validation, in place of 0.5/0.25/0.25",
    )
    lists.add_argument(
        "--fold",
        type=number("[0, inf)"),
        metavar="F",
        help="which fold of --folds to test, counted from 0 (default: 0)",
    )
    lists.add_argument(
        "--seed", type=number("[0, inf)"), default=0, help="of the shuffle before the split"
    )
    add(lists, "--stereo")
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
        help="your own classes that a job may name; for the server's kit only",
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
    findings = [*_environment(), *_machine(Path.cwd())]
    found: dict[str, Any] = {}
    lines = []
    if args.folder:
        from monai_fairfl.transports.engines.site import SITE_FILE

        folder = Path(args.folder).absolute()
        if (folder / SITE_FILE).is_file() or _is_kit(folder):
            findings.append(_own_settings(folder))
        else:
            of_data, found, text = _data(folder, args)
            findings += of_data
            lines += [text] if text else []
    lines += [one.line for one in findings if args.verbose or one.status != OK]
    counts = {status: sum(one.status == status for one in findings) for status in (OK, NOTE, WRONG)}
    words = {OK: "fine", NOTE: "to note", WRONG: "wrong"}
    counted = [f"{n} {words[status]}" for status, n in counts.items() if n or status == OK]
    data = {"checks": [one._asdict() for one in findings], **found}
    return Answer(data, "\n".join([*lines, ", ".join(counted)]), NOT_RIGHT * bool(counts[WRONG]))


# --- environment and machine


def build_of() -> str:
    """The version, with the git commit where the package runs from a checkout.

    >>> build_of().startswith(monai_fairfl.__version__)
    True
    """
    version: str = monai_fairfl.__version__
    checkout = Path(monai_fairfl.__file__).resolve().parent.parent
    # An environment may lie inside the repository of something else.
    if not (checkout / ".git").exists() or not (checkout / "setup.py").is_file():
        return version
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        # There is no git, or the checkout belongs to another account.
        return f"{version} (a checkout, commit unknown)"
    return f"{version} (commit {done.stdout.strip().replace('-dirty', ', changed since')})"


def _environment() -> Iterator[Finding]:
    """Python, the system and each library that is needed; and a line for each extra."""
    from packaging.requirements import Requirement

    yield Finding(PACKAGE, OK, build_of())
    yield Finding("Python", OK, platform.python_version())
    system = platform.system()
    fix = "" if system in ("Linux", "Darwin") else "use Linux or macOS: a run's folder is locked"
    yield Finding("system", WRONG if fix else OK, f"{system} {platform.release()}", fix)

    needed: list[Requirement] = []
    # A checkout on PYTHONPATH is not installed.
    with suppress(importlib.metadata.PackageNotFoundError):
        needed = [Requirement(text) for text in importlib.metadata.requires(PACKAGE) or []]
    for one in needed:
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            is_fine, found = _library(one)
            fix = "" if is_fine else f"pip install '{one.name}{one.specifier}'"
            yield Finding(one.name, OK if is_fine else WRONG, found, fix)
    for extra, what in NEEDS.items():
        libraries = []
        for one in needed:
            if one.marker and one.marker.evaluate({"extra": extra}) and "extra" in str(one.marker):
                libraries.append(_library(one))
        faults = [found for is_fine, found in libraries if not is_fine]
        fix = f"pip install '{PACKAGE}[{extra}]' for {what}" if faults else ""
        # Server and sites need the same version of some, such as nvflare.
        found = ", ".join(faults or [found for _, found in libraries])
        yield Finding(f"extra {extra}", NOTE if faults else OK, found, fix)


def _library(requirement: Requirement) -> tuple[bool, str]:
    """Whether a library is installed in a version that is supported; and in words."""
    name, supported = requirement.name, requirement.specifier
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False, f"{name} is not installed"
    if supported.contains(version, prereleases=True):
        return True, f"{name} {version}"
    return False, f"{name} {version}, supported is {supported}"


def _machine(folder: Path) -> Iterator[Finding]:
    """Cores, GPU, precision, free memory, and free disk of the folder in which runs are written."""
    from monai_fairfl.utils.machine import free_memory, usable_cores

    yield Finding("cores", OK, f"{usable_cores()} usable")
    try:
        import torch

        from monai_fairfl.utils.devices import has_bfloat16
    except Exception as error:  # whatever an installation that is broken raises
        fault = f"torch cannot be imported: {error}"
        yield Finding("GPU", WRONG, fault, "install torch again")
    else:
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        shown = [f"{gpu} {torch.cuda.get_device_properties(gpu).name}" for gpu in gpus]
        fix = (
            "" if gpus else "trainings use processors; a GPU needs torch's CUDA build and a driver"
        )
        yield Finding("GPU", OK if gpus else NOTE, "; ".join(shown) or "none for torch", fix)
        kinds = [
            f"{one} {'bfloat16' if has_bfloat16(one) else 'float32'}" for one in ("cpu", *gpus)
        ]
        yield Finding("training precision", OK, "; ".join(kinds))
    less = "end other programs, or train with --jobs 1 and small images (--quick)"
    elsewhere = f"make space, or work in a folder elsewhere than {folder}"
    disk = shutil.disk_usage(folder).free
    for what, free, least, fix in (
        ("free memory", free_memory(), LEAST_MEMORY, less),
        ("free disk", disk, LEAST_DISK, elsewhere),
    ):
        found = f"{free / GIB:.1f} GiB"
        if free >= least:
            yield Finding(what, OK, found)
        else:
            yield Finding(what, WRONG, f"{found}, a training needs {least / GIB:.1f} GiB", fix)


# --- a hospital's own settings, and data


def _is_kit(folder: Path) -> bool:
    """Whether a folder is a startup kit of NVIDIA FLARE."""
    return (folder / "startup").is_dir() and (folder / "local").is_dir()


def _own_settings(root: Path) -> Finding:
    """The settings in a startup kit, or in a folder for Flower, read as a job's site reads them."""
    from monai_fairfl.transports.engines.site import SITE_FILE, Site

    is_kit = _is_kit(root)
    what = f"{'kit' if is_kit else 'site'} {root.name}"
    if is_kit and not (root / "startup" / "fed_client.json").exists():
        fix = "give a hospital's kit, or a folder of data"
        return Finding(what, WRONG, "no kit of a hospital: no startup/fed_client.json", fix)
    try:
        site = Site(root.name, root, job={})
        settings = site.settings()
        images = site.images(settings, site.bundle_root(settings) if settings.bundle else root)
    except (FairFLError, TypeError, ValueError) as error:
        return Finding(what, WRONG, f"{SITE_FILE}: {error}")
    if not images.exists():
        fix = f"mend dataset_dir in {root / SITE_FILE}"
        return Finding(what, WRONG, f"the images {images} do not exist", fix)
    found = f"{SITE_FILE} can be read; images in {images}"
    datalist = str(settings.overrides.get("datalist_file", "$"))
    if not datalist.startswith("$") and not Path(datalist).exists():
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

    what = f"data {root.name}"
    split = _split_settings(args)
    wrong = []
    bundle = ""
    try:
        with warnings_as_notes() as notes:
            folders = sites_at(root)
    except FairFLError as error:
        return [Finding(what, WRONG, str(error))], {}, ""
    try:
        bundle = bundle_for(folders)
    except FairFLError as error:
        wrong.append(Finding(what, WRONG, str(error)))
    structures: Sequence[str] = args.structures or STRUCTURES.get(bundle, ())
    stereo = STEREO[args.stereo]
    found, text = overview(folders, structures, stereo, notes, _reading, root, **split)
    wrong += [Finding(what, WRONG, problem) for problem in found["problems"]]
    about = "one hospital" if root in folders.values() else f"sites {', '.join(folders)}"
    if len(folders) < 2 and root not in folders.values():
        fix = "a federation needs two: give the folder above"
        wrong.append(Finding(what, WRONG, "one site alone", fix))
    return wrong or [Finding(what, OK, f"{about}, for the bundle {bundle}")], found, text


def _split_settings(args: argparse.Namespace) -> dict[str, int]:
    """The arguments of ``split_cases`` that the user chose."""
    if args.folds is not None:
        return {"seed": args.seed, "folds": args.folds, "fold": args.fold or 0}
    if args.fold is not None:
        raise ConfigError(f"--fold {args.fold} needs --folds, the number of folds")
    return {"seed": args.seed}


def _reading(site: str) -> None:
    """Show that the files of a site are read, which may take minutes."""
    say(f"Reading {site} ...")


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
        # Images of a bundle of one's own have none.
        with suppress(DataError):
            structures = structures or STRUCTURES.get(bundle_for(folders), ())
        is_one = root in folders.values()
        files = {site: out if is_one else out / f"{site}.json" for site in folders}
        there = [str(file) for file in files.values() if file.exists()]
        sites: dict[str, dict[str, Any]] = {}

        def check(site: str, folder: Path) -> None:
            _reading(site)
            sites[site] = check_cases(folder, structures, stereo=STEREO[args.stereo])

        check_sites(folders, check)
        for site, found in sites.items():
            values = found.get("values")
            parts = site_datalist(folders[site], files[site], structures, values, **split)
            found |= {part: len(cases) for part, cases in parts.items()}
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
    from monai_fairfl.transports.flare.policy import ENTRY, OWN_POLICY, allowed

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
        allowed(kit, args.also, add=True)
        file = Path(kit) / "local" / OWN_POLICY
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
