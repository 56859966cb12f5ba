# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about data and bundles: ``try``, ``demo-data``, ``datalist`` and ``bundle``.

Of each command the arguments come first, then the function that it calls.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import (
    Add,
    Answer,
    add_verbose,
    out_folder,
    positive,
    progress_stream,
    whole,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.terminal import warnings_as_notes

STEREO = {"auto": None, "yes": True, "no": False}

DEFAULT_SIZES = {  # by --kind and --hospitals
    ("prostate", "six"): [96, 96, 16],
    ("prostate", "demo"): [96, 96, 12],
    ("fundus", "six"): [256],
}
SMALLEST_SIDE = {"prostate": 12, "fundus": 32}  # pixels, from which on structures are visible


def add_commands(add: Add) -> None:
    """Add the commands of this module to the program."""
    _add_try(add)
    _add_demo_data(add)
    _add_datalist(add)
    _add_bundle(add)


def _add_stereo(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stereo",
        choices=STEREO,
        default="auto",
        help=(
            "whether photographs are pairs of views side by side (default: those at "
            "least 1.8 times as wide as high are)"
        ),
    )


# --- try


def _add_try(add: Add) -> None:
    command = add(
        "try",
        try_,
        "try hospitals                # volumes or photographs, in any layout of docs/data.md\n"
        "try hospitals --rounds 30 --out runs/try --jobs 2",
    )
    command.add_argument("folder", metavar="DIR", help="one folder per hospital")
    command.add_argument(
        "--rounds",
        type=positive,
        help="train each strategy for this many rounds (default: 20, as in a first look)",
    )
    _add_stereo(command)
    command.add_argument(
        "--out",
        metavar="DIR",
        help=(
            "folder for the bundle and the run; a run in it is continued (default: "
            "try-NAME here)"
        ),
    )
    command.add_argument(
        "--jobs",
        type=positive,
        help=(
            "how many strategies, or hospitals of one strategy, to train at a time, "
            "each in its own process (default: as many as cores and memory allow)"
        ),
    )
    add_verbose(command)


def try_(args: argparse.Namespace) -> Answer:
    """Compare Standalone, FedAvg and FedCE on your hospitals at a small size, and report.

    Every file is checked first.
    """
    from monai_fairfl.cli.trying import try_sites

    root = Path(args.folder).absolute()
    out = out_folder(args.out, f"try-{root.name}")
    output = None
    if args.json:
        output = sys.stderr  # standard output is for the JSON object alone
    found = try_sites(root, out, args.rounds, STEREO[args.stereo], output, args.jobs, args.verbose)
    text = (
        "To go on: monai-fairfl train, without --quick; or other settings, in the printed command "
        f"or in {found['bundle']}/configs"
    )
    return Answer(found, text)


# --- demo-data


def _add_demo_data(add: Add) -> None:
    command = add(
        "demo-data",
        demo_data,
        "demo-data --out hospitals\n"
        "demo-data --out demo/hospitals --hospitals demo\n"
        "demo-data --out small --size 48 48 8 --seed 1\n"
        "demo-data --out clinics --kind fundus",
    )
    command.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder for the hospitals; complete cases in it are kept",
    )
    command.add_argument(
        "--kind",
        choices=("prostate", "fundus"),
        default="prostate",
        help="kind of images: prostate MRI or fundus photographs (default: prostate)",
    )
    command.add_argument(
        "--hospitals",
        choices=("six", "demo"),
        default="six",
        help="six hospitals that differ in many ways, or the four of make demo (default: six)",
    )
    command.add_argument(
        "--seed", type=whole, default=0, help="seed that decides every image (default: 0)"
    )
    command.add_argument(
        "--size",
        type=positive,
        nargs="+",
        metavar="N",
        help=(
            "size of a volume in voxels X Y Z (default: 96 96 16; with --hospitals "
            "demo 96 96 12), or of a photograph in pixels (default: 256)"
        ),
    )


def demo_data(args: argparse.Namespace) -> Answer:
    """Write six synthetic hospitals, of prostate MRI or fundus photographs, or make demo's four."""
    from monai_fairfl.data import write_clinics, write_demo, write_sites

    size = _demo_size(args.kind, args.hospitals, args.size)
    workers = os.cpu_count() or 1
    if args.kind == "fundus":
        sites = write_clinics(args.out, seed=args.seed, size=size[0], workers=workers)
    elif args.hospitals == "demo":
        sites = write_demo(args.out, seed=args.seed, size=_three(size), workers=workers)
    else:
        sites = write_sites(args.out, seed=args.seed, size=_three(size), workers=workers)
    text = f"{args.out}: {len(sites)} hospitals, {', '.join(sites)}"
    return Answer({"folder": args.out, "sites": sites}, text)


def _demo_size(kind: str, hospitals: str, size: list[int] | None) -> list[int]:
    """Return the size given by the user, checked, or the default of these hospitals."""
    if kind == "fundus" and hospitals == "demo":
        raise ConfigError(
            "--hospitals demo are of prostate MRI: leave out --kind fundus, or give --hospitals six"
        )
    default = DEFAULT_SIZES[kind, hospitals]
    if size is None:
        return default
    if len(size) != len(default):
        expected = "one number"
        if kind == "prostate":
            expected = "X Y Z"
        raise ConfigError(f"--size of {kind} is {expected}, got {size}")
    smallest = SMALLEST_SIDE[kind]
    if min(size[:2]) < smallest:
        raise ConfigError(
            f"--size of {kind} is at least {smallest} in plane, got {size}: less shows no structure"
        )
    return size


def _three(size: list[int]) -> tuple[int, int, int]:
    x, y, z = size
    return x, y, z


# --- datalist


def _add_datalist(add: Add) -> None:
    command = add(
        "datalist",
        datalist,
        "datalist hospitals                            # check every site, show the split\n"
        "datalist hospitals --check                    # all sites in a table, with notes and "
        "problems\n"
        "datalist clinics --structures disc cup --out datalists\n"
        "datalist hospitals --out datalists            # and write datalists/SITE.json\n"
        "datalist hospitals/alder --folds 4 --fold 0 --out alder.json",
    )
    command.add_argument(
        "folder",
        metavar="SITE_DIR|ROOT",
        help="a site's folder (or data list), or the folder of all sites",
    )
    command.add_argument(
        "--structures",
        nargs="+",
        default=(),
        metavar="NAME",
        help=(
            "nested structures, the outermost first; the list then records which "
            "pixel values of the masks belong to each"
        ),
    )
    command.add_argument(
        "--folds",
        type=positive,
        metavar="K",
        help="split into K folds for cross-validation, in place of 0.5/0.25/0.25",
    )
    command.add_argument(
        "--fold",
        type=whole,
        metavar="F",
        help="which fold of --folds to test, counted from 0 (default: 0)",
    )
    command.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="S",
        help="seed of the shuffle before the split (default: 0)",
    )
    _add_stereo(command)
    check_or_write = command.add_mutually_exclusive_group()
    check_or_write.add_argument(
        "--check", action="store_true", help="show all sites in a table, and write nothing"
    )
    check_or_write.add_argument(
        "--out",
        metavar="FILE",
        help="file for the list; for ROOT a folder, which gets a file SITE.json for each site",
    )


def datalist(args: argparse.Namespace) -> Answer:
    """Check a site's files, or every site's, and split them by case."""
    from monai_fairfl.data.layouts import sites_at
    from monai_fairfl.data.overview import overview

    with warnings_as_notes() as notes:
        folders = sites_at(Path(args.folder).absolute())
    stereo = STEREO[args.stereo]
    split = _split_settings(args)
    if args.check:
        data, text = overview(folders, args.structures, stereo, notes, _reading(args), **split)
        code = 0
        if data["problems"]:
            code = 2
        return Answer(data, text, code)

    files = _files_to_write(args, folders)
    there = [str(file) for file in files.values() if file is not None and file.exists()]
    with warnings_as_notes() as more_notes:
        sites = _split_sites(folders, files, args, split)
    notes = notes + more_notes
    lines = [_line_of_site(site) for site in sites.values()]
    for note in notes:
        lines.append(f"note: {note}")
    if there:
        lines.append(f"kept as they are, and read: {', '.join(there)}")
    if len(there) < sum(file is not None for file in files.values()):
        lines.append(f"written: {args.out}")
    return Answer({"sites": sites, "warnings": notes}, "\n".join(lines))


def _split_settings(args: argparse.Namespace) -> dict[str, int]:
    """Return the arguments of ``split_cases`` that the user chose."""
    if args.folds is None:
        if args.fold is not None:
            raise ConfigError(f"--fold {args.fold} needs --folds, the number of folds")
        return {"seed": args.seed}
    return {"seed": args.seed, "folds": args.folds, "fold": args.fold or 0}


def _files_to_write(
    args: argparse.Namespace, folders: Mapping[str, Path]
) -> dict[str, Path | None]:
    """Return the file of every site's data list; ``None`` where none is written."""
    if args.out is None:
        return dict.fromkeys(folders)
    out = Path(args.out)
    if Path(args.folder).absolute() in folders.values():
        return dict.fromkeys(folders, out)  # one site alone
    return {site: out / f"{site}.json" for site in folders}


def _split_sites(
    folders: Mapping[str, Path],
    files: Mapping[str, Path | None],
    args: argparse.Namespace,
    split: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Check all sites before any is split; return what each holds, and its cases in each part."""
    from monai_fairfl.bundle.preflight import check_sites
    from monai_fairfl.data import check_cases, site_datalist

    found_at: dict[str, dict[str, Any]] = {}

    names = {str(folder): site for site, folder in folders.items()}
    reading = _reading(args)

    def check(folder: str) -> None:
        reading(names[folder])
        found_at[folder] = check_cases(folder, args.structures, stereo=STEREO[args.stereo])

    check_sites({site: str(folder) for site, folder in folders.items()}, check)
    sites = {}
    for site, folder in folders.items():
        found = found_at[str(folder)]
        file = files[site]
        parts = site_datalist(folder, file, args.structures, found.get("values"), **split)
        for part, cases in parts.items():
            found[part] = len(cases)
        found["file"] = None
        if file is not None:
            found["file"] = str(file)
        sites[site] = found
    return sites


def _reading(args: argparse.Namespace) -> Callable[[str], None]:
    """Return what shows that the files of a site are read, which may take minutes."""

    def show(site: str) -> None:
        print(f"Reading {site} ...", file=progress_stream(args), flush=True)

    return show


def _line_of_site(site: Mapping[str, Any]) -> str:
    """Describe one site in a line."""
    return (
        "{site}: {num_cases} cases, {training} training, {validation} validation, "
        "{testing} testing; labels {labels}, {gland_slices} labelled slices".format(**site)
    )


# --- bundle


def _add_bundle(add: Add) -> None:
    command = add("bundle", bundle, "bundle prostate_mri_segmentation prostate")
    command.add_argument(
        "name",
        metavar="NAME",
        help="name of the bundle; an unknown name is answered with the list of names",
    )
    command.add_argument(
        "folder", metavar="DIR", help="new or empty folder, which becomes the bundle's root"
    )


def bundle(args: argparse.Namespace) -> Answer:
    """Copy a shipped bundle."""
    from monai_fairfl.bundle.shipped import copy_bundle

    root = copy_bundle(args.name, args.folder)
    readme = root / "docs" / "README.md"
    return Answer({"bundle_root": str(root)}, f"{root}: copied; {readme} describes how to run it")
