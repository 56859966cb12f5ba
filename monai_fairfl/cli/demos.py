# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``demo``: synthetic hospitals, and a federation of them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import (
    Answer,
    add_out,
    add_verbose,
    out_folder,
    positive,
    whole,
)
from monai_fairfl.errors import ConfigError

SIZES = {"demo": [96, 96, 12], "prostate": [96, 96, 16], "fundus": [256]}
"""Kind of hospitals -> the size of an image."""

SMALLEST_SIDE = {"demo": 12, "prostate": 12, "fundus": 32}
"""Pixels in plane, from which on structures are visible."""

DEMO: dict[str, Any] = {
    "rounds": 30,
    "adapt_epochs": 10,
    # For `monai-fairfl value demo/run`.
    "record_updates": True,
    # The demo's first look is its own full run: docs/demo.md has what came out on six seeds.
    "full_run": {"rounds": 30, "local_epochs": 4, "mean_dice": 0.5},
}
"""Keys of the demo's federation, beside those of the bundle's first look."""

DEMO_STRATEGIES = ["Standalone", "FedAvg", "FedCE('sum')"]


def demo_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    command.add_argument(
        "--data-only",
        action="store_true",
        help="write the images of the hospitals into DIR, and train nothing",
    )
    command.add_argument(
        "--kind",
        choices=SIZES,
        default="demo",
        help=(
            "the demo's four hospitals, six of prostate MRI that differ in many ways, or six with "
            "fundus photographs; others than the demo's are for --data-only (default: demo)"
        ),
    )
    command.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="S",
        help="seed of every image and of the training (default: 0)",
    )
    command.add_argument(
        "--size",
        type=positive,
        nargs="+",
        metavar="N",
        help=(
            "size of a volume in voxels X Y Z (default: 96 96 12 for the demo, 96 96 16 for "
            "prostate), or of a photograph in pixels (default: 256)"
        ),
    )
    add_out(command, "folder for hospitals and run; complete cases in it are kept (default: demo)")
    add_verbose(command)


def demo(args: argparse.Namespace) -> Answer:
    """Train a federation of four synthetic hospitals, and report; or only write their images.

    It takes about two minutes on two cores. One hospital has few and unusual images: FedAvg fails
    it, and FedCE's sum does not.

    examples:
      monai-fairfl demo
      monai-fairfl demo --data-only --out hospitals --kind prostate
      monai-fairfl demo --data-only --out small --kind prostate --size 48 48 8 --seed 1
      monai-fairfl demo --data-only --out clinics --kind fundus
    """
    out = out_folder(args.out, "demo")
    if args.data_only:
        sites = _write_hospitals(args, out)
        text = f"{out}: {len(sites)} hospitals, {', '.join(sites)}"
        return Answer({"folder": str(out), "sites": sites}, text)
    if args.kind != "demo":
        raise ConfigError(f"--kind {args.kind} is for --data-only: then train what it has written")

    from monai_fairfl.bundle.first_look import quick_file
    from monai_fairfl.bundle.shipped import find_bundle
    from monai_fairfl.cli.choosing import PROSTATE
    from monai_fairfl.cli.options import federation_line
    from monai_fairfl.cli.training import carry_out

    _write_hospitals(args, out / "hospitals")
    bundle = find_bundle(PROSTATE)
    files = [quick_file(bundle)]
    keys = {**DEMO, "seed": args.seed}
    return carry_out(
        federation_line(bundle, out / "hospitals", out / "run", files, DEMO_STRATEGIES, **keys),
        args,
    )


def _write_hospitals(args: argparse.Namespace, folder: Path) -> list[str]:
    """Write the images of the hospitals that are not there yet; returns the hospitals' names."""
    from monai_fairfl.data import write_clinics, write_demo, write_sites

    size = args.size or SIZES[args.kind]
    if len(size) != len(SIZES[args.kind]):
        expected = "one number" if args.kind == "fundus" else "X Y Z"
        raise ConfigError(f"--size of {args.kind} is {expected}, got {size}")
    if min(size[:2]) < SMALLEST_SIDE[args.kind]:
        raise ConfigError(
            f"--size of {args.kind} is at least {SMALLEST_SIDE[args.kind]} in plane, got {size}: "
            "less shows no structure"
        )
    settings: dict[str, Any] = {"seed": args.seed, "workers": os.cpu_count() or 1}
    if args.kind == "fundus":
        return write_clinics(folder, size=size[0], **settings)
    write = write_demo if args.kind == "demo" else write_sites
    return write(folder, size=tuple(size), **settings)
