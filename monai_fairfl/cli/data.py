# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about data and bundles."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import Add, Answer, positive, whole
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.terminal import noted

_STEREO = {"auto": None, "yes": True, "no": False}
SIZES = {  # of --kind and --hospitals, where the user gives none
    ("prostate", "six"): [96, 96, 16],
    ("prostate", "demo"): [96, 96, 12],
    ("fundus", "six"): [256],
}
SMALLEST = {"prostate": 12, "fundus": 32}  # pixels a side, from which on structures are seen


def try_(args: argparse.Namespace) -> Answer:
    """Check a folder of hospitals, compare Standalone, FedAvg and FedCE on it at a small size, and
    report.
    """
    from monai_fairfl.cli.trying import try_sites

    root = Path(args.folder).absolute()
    out = Path(args.out).absolute() if args.out else Path.cwd() / f"try-{root.name}"
    found = try_sites(
        root, out, args.rounds, _STEREO[args.stereo], sys.stderr if args.json else None
    )
    words = (
        f"To go on: a full run; or other settings, in its command or in {found['bundle']}/configs"
    )
    if found["full_run"]:
        words += f"\nA full run: {found['full_run']}"
    return Answer(found, words)


def demo_data(args: argparse.Namespace) -> Answer:
    """Write synthetic hospitals: six of prostate MRI or fundus photographs, or those of make demo."""
    from monai_fairfl.data import write_clinics, write_demo, write_sites

    size = _demo_size(args)
    workers = os.cpu_count() or 1
    if args.kind == "fundus":
        sites = write_clinics(args.out, seed=args.seed, size=size[0], workers=workers)
    else:
        write = write_demo if args.hospitals == "demo" else write_sites
        sites = write(args.out, seed=args.seed, size=(size[0], size[1], size[2]), workers=workers)
    return Answer(
        {"folder": args.out, "sites": sites},
        f"{args.out}: {len(sites)} hospitals, {', '.join(sites)}",
    )


def _demo_size(args: argparse.Namespace) -> list[int]:
    """The size given by the user, checked, or that of these hospitals."""
    if args.kind == "fundus" and args.hospitals == "demo":
        raise ConfigError(
            "--hospitals demo are of prostate MRI: leave out --kind fundus, or give --hospitals six"
        )
    if args.size is None:
        return SIZES[args.kind, args.hospitals]
    size: list[int] = args.size
    if len(size) != len(SIZES[args.kind, args.hospitals]):
        numbers = "X Y Z" if args.kind == "prostate" else "one number"
        raise ConfigError(f"--size of {args.kind} is {numbers}, got {size}")
    least = SMALLEST[args.kind]
    if min(size[:2]) < least:
        raise ConfigError(
            f"--size of {args.kind} is at least {least} in plane, got {size}: less shows no structure"
        )
    return size


def datalist(args: argparse.Namespace) -> Answer:
    """Check a site's files, or every site's, and split them by case."""
    from monai_fairfl.bundle.preflight import check_sites
    from monai_fairfl.data import check_cases, site_datalist
    from monai_fairfl.data.layouts import sites_at
    from monai_fairfl.data.overview import overview

    with noted() as noticed:
        folders = sites_at(Path(args.folder).absolute())
    stereo = _STEREO[args.stereo]
    if args.fold is not None and args.folds is None:
        raise ConfigError(f"--fold {args.fold} needs --folds, the number of folds")
    split = {"seed": args.seed}
    if args.folds is not None:
        split |= {"folds": args.folds, "fold": args.fold or 0}
    if args.check:
        data, text = overview(folders, args.structures, stereo, noticed, **split)
        return Answer(data, text, 2 if data["problems"] else 0)
    one = Path(args.folder).absolute() in folders.values()
    names = {str(path): name for name, path in folders.items()}
    sites: dict[str, dict[str, Any]] = {}

    def check(site: str) -> None:
        sites[names[site]] = check_cases(site, args.structures, stereo=stereo)

    with noted() as notes:
        check_sites({name: str(path) for name, path in folders.items()}, check)
        for name, path in folders.items():
            file = (
                None
                if args.out is None
                else Path(args.out) if one else Path(args.out) / f"{name}.json"
            )
            parts = site_datalist(path, file, args.structures, sites[name].get("values"), **split)
            sites[name] |= {part: len(cases) for part, cases in parts.items()} | {
                "file": file and str(file)
            }
    notes = noticed + notes
    lines = [
        "{site}: {num_cases} cases, {training} training, {validation} validation, {testing} testing; "
        "labels {labels}, {gland_slices} labelled slices".format(**site)
        for site in sites.values()
    ]
    written = [f"written: {args.out}"] if args.out else []
    return Answer(
        {"sites": sites, "warnings": notes},
        "\n".join(lines + [f"note: {note}" for note in notes] + written),
    )


def bundle(args: argparse.Namespace) -> Answer:
    """Copy a shipped bundle."""
    from monai_fairfl.bundle.shipped import copy_bundle

    root = copy_bundle(args.name, args.folder)
    return Answer(
        {"bundle_root": str(root)},
        f"{root}: copied; {root / 'docs' / 'README.md'} says how to run it",
    )


def _add_stereo(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--stereo",
        choices=_STEREO,
        default="auto",
        help="whether photographs are pairs of views side by side (default: those at least 1.8 times as wide as high)",
    )


def add_commands(add: Add) -> None:
    """``try``, ``demo-data``, ``datalist``, ``bundle``."""
    sub = add(
        "try",
        try_,
        "try hospitals                # volumes or photographs, in any layout of docs/data.md\n"
        "try hospitals --rounds 30 --out runs/try",
    )
    sub.add_argument("folder", metavar="DIR", help="one folder per hospital")
    sub.add_argument("--rounds", type=positive, default=10, help="of each strategy (default: 10)")
    _add_stereo(sub)
    sub.add_argument(
        "--out",
        metavar="DIR",
        help="gets bundle/ and run/ (default: try-NAME here); goes on with what it holds",
    )

    sub = add(
        "demo-data",
        demo_data,
        "demo-data --out hospitals\n"
        "demo-data --out demo/hospitals --hospitals demo\n"
        "demo-data --out small --size 48 48 8 --seed 1\n"
        "demo-data --out clinics --kind fundus",
    )
    sub.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder for the hospitals; whole cases in it are kept",
    )
    sub.add_argument(
        "--kind",
        choices=("prostate", "fundus"),
        default="prostate",
        help="of images (default: prostate, MRI)",
    )
    sub.add_argument(
        "--hospitals",
        choices=("six", "demo"),
        default="six",
        help="six that differ in many ways, or the four of make demo (default: six)",
    )
    sub.add_argument("--seed", type=whole, default=0, help="decides every image (default: 0)")
    sub.add_argument(
        "--size",
        type=positive,
        nargs="+",
        metavar="N",
        help="voxels X Y Z (default: 96 96 16, of --hospitals demo 96 96 12), "
        "or pixels of a photograph (default: 256)",
    )

    sub = add(
        "datalist",
        datalist,
        "datalist hospitals                            # check every site, show the split\n"
        "datalist hospitals --check                    # all sites in a table, with notes and problems\n"
        "datalist clinics --structures disc cup --out datalists\n"
        "datalist hospitals --out datalists            # and write datalists/SITE.json\n"
        "datalist hospitals/alder --folds 4 --fold 0 --out alder.json",
    )
    sub.add_argument(
        "folder",
        metavar="SITE_DIR|ROOT",
        help="a site's folder (or data list), or the folder of all sites",
    )
    sub.add_argument(
        "--structures",
        nargs="+",
        default=(),
        metavar="NAME",
        help="nested structures, the outermost first: the list then says which values of a mask are which",
    )
    sub.add_argument(
        "--folds",
        type=positive,
        metavar="K",
        help="cross-validation in K folds instead of 0.5/0.25/0.25",
    )
    sub.add_argument(
        "--fold",
        type=whole,
        metavar="F",
        help="the fold of --folds that is tested, from 0 (default: 0)",
    )
    sub.add_argument(
        "--seed", type=whole, default=0, metavar="S", help="of the shuffle (default: 0)"
    )
    _add_stereo(sub)
    only = sub.add_mutually_exclusive_group()
    only.add_argument(
        "--check", action="store_true", help="read everything and tell in a table; write nothing"
    )
    only.add_argument(
        "--out", metavar="FILE", help="write the list there; for ROOT a folder that gets SITE.json"
    )

    sub = add("bundle", bundle, "bundle prostate_mri_segmentation prostate")
    sub.add_argument(
        "name", metavar="NAME", help="name of the bundle; a wrong one is answered with the list"
    )
    sub.add_argument(
        "folder", metavar="DIR", help="becomes the bundle's root; must be new or empty"
    )
