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
from monai_fairfl.errors import ConfigError, FairFLError
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
    what = "one folder per hospital, or one hospital's own folder, list, startup kit or app folder"
    command.add_argument("folder", metavar="DATA", nargs="?", help=what)
    command.add_argument("--verbose", action="store_true", help="also show what is fine")
    lists = command.add_argument_group("split of the data into cases")
    what = "write SITE.json of each hospital into this folder, or of a single one this file"
    lists.add_argument("--write-lists", metavar="PATH", help=f"{what}; what is there is kept")
    what = "nested structures, the outermost first (default: those of the images' bundle)"
    lists.add_argument("--structures", nargs="+", metavar="NAME", help=what)
    what = "split into K folds for cross-validation, in place of 0.5/0.25/0.25"
    lists.add_argument("--folds", type=number("[1, inf)"), metavar="K", help=what)
    lists.add_argument("--fold", type=number("[0, inf)"), help="which of them to test (default: 0)")
    lists.add_argument("--seed", type=number("[0, inf)"), default=0, help="of the shuffle before")
    add(lists, "--stereo")
    policy = command.add_argument_group("what NVIDIA FLARE must allow for jobs that bring no code")
    what = "show it, or check it in the startup kit DATA; exit code 2 if it is missing there"
    policy.add_argument("--flare-policy", action="store_true", help=what)
    policy.add_argument("--add", action="store_true", help="add it to the kit")
    what = "your own classes that a job may name; for the server's kit only"
    policy.add_argument("--also", nargs="+", default=[], metavar="CLASS", help=what)


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
    if args.write_lists is not None and args.folder is None:
        raise ConfigError("--write-lists needs DATA, the folder of a hospital or of all")
    findings = [] if args.write_lists else [*_environment(), *_machine(Path.cwd())]
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
    shows_all = args.verbose or args.write_lists
    lines += [one.line for one in findings if shows_all or one.status != OK]
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
    from monai_fairfl.utils.devices import free_memory, usable_cores

    yield Finding("cores", OK, f"{usable_cores()} usable")
    try:
        import torch

        from monai_fairfl.utils.devices import has_bfloat16
    except Exception as error:  # whatever an installation that is broken raises
        yield Finding("GPU", WRONG, f"torch cannot be imported: {error}", "install torch again")
    else:
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        shown = [f"{gpu} {torch.cuda.get_device_properties(gpu).name}" for gpu in gpus]
        fix = "" if gpus else "for a GPU install the CUDA build of torch, and a driver"
        yield Finding("GPU", OK if gpus else NOTE, "; ".join(shown) or "none for torch", fix)
        names = {True: "bfloat16", False: "float32"}
        kinds = [f"{one} {names[has_bfloat16(one)]}" for one in ("cpu", *gpus)]
        yield Finding("training precision", OK, "; ".join(kinds))
    less = "end other programs, or train with --jobs 1 and small images (--quick)"
    elsewhere = f"make space, or work in a folder elsewhere than {folder}"
    for what, free, least, fix in (
        ("free memory", free_memory(), LEAST_MEMORY, less),
        ("free disk", shutil.disk_usage(folder).free, LEAST_DISK, elsewhere),
    ):
        found = f"{free / GIB:.1f} GiB, a training needs {least / GIB:.1f} GiB"
        yield Finding(what, OK if free >= least else WRONG, found, "" if free >= least else fix)


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

    Where nothing is wrong, the lists of ``--write-lists`` are written.

    Returns:
        What was found; ``sites``, ``warnings`` and ``problems`` for JSON; and these as a table.
    """
    from monai_fairfl.cli.choosing import STRUCTURES, bundle_for
    from monai_fairfl.data import site_datalist
    from monai_fairfl.data.checks import overview
    from monai_fairfl.data.layouts import sites_at

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
        # Images of a bundle of one's own may have lists.
        if not args.write_lists:
            wrong.append(Finding(what, WRONG, str(error)))
    structures: Sequence[str] = args.structures or STRUCTURES.get(bundle, ())

    def reading(site: str) -> None:
        say(f"Reading {site} ...")

    found, text = overview(folders, structures, STEREO[args.stereo], notes, reading, root, **split)
    wrong += [Finding(what, WRONG, problem) for problem in found["problems"]]
    is_one = root in folders.values()
    about = "one hospital" if is_one else f"sites {', '.join(folders)}"
    if len(folders) < 2 and not is_one and not args.write_lists:
        fix = "a federation needs two: give the folder above"
        wrong.append(Finding(what, WRONG, "one site alone", fix))
    if wrong or not args.write_lists:
        return wrong or [Finding(what, OK, f"{about}, for the bundle {bundle}")], found, text
    findings = []
    for site, summary in found["sites"].items():
        file = Path(args.write_lists) / ("" if is_one else f"{site}.json")
        done = "kept as it is" if file.exists() else "written"
        parts = site_datalist(folders[site], file, structures, summary.get("values"), **split)
        summary |= {part: len(cases) for part, cases in parts.items()} | {"file": str(file)}
        sizes = ", ".join(f"{len(cases)} {part}" for part, cases in parts.items())
        findings.append(Finding(f"list of {site}", OK, f"{file} is {done}: {sizes}"))
    return findings, found, text


def _split_settings(args: argparse.Namespace) -> dict[str, int]:
    """The arguments of ``split_cases`` that the user chose."""
    if args.folds is not None:
        return {"seed": args.seed, "folds": args.folds, "fold": args.fold or 0}
    if args.fold is not None:
        raise ConfigError(f"--fold {args.fold} needs --folds, the number of folds")
    return {"seed": args.seed}


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
            "site: monai-fairfl doctor KIT --flare-policy --add does it"
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
    text = f"{kit} does not allow {entries}: monai-fairfl doctor {kit} --flare-policy --add{also}"
    return Answer({"allowed": False}, text, NOT_RIGHT)
