# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``bundle``: lists and copies those of this package, and adopts one of others."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.cli.command import Answer, plain_mapping, progress_stream
from monai_fairfl.errors import ConfigError, FairFLError

CHECK: Mapping[str, Any] = {"rounds": 2, "local_epochs": 1, "report": False, "jobs": 1}
"""Keys of the federation that tries a bundle."""

ONE_STEP = {"epoch_length": 1, "validation_length": 1}
"""Overrides with which an engine ends after one batch, where the overlay has them."""

SITES = 2
"""Sites that try a bundle."""


def bundle_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``bundle``."""
    command.add_argument(
        "action",
        nargs="?",
        choices=("list", "copy", "adopt"),
        default="list",
        metavar="list|copy|adopt",
        help="what to do (default: list)",
    )
    command.add_argument(
        "name", metavar="BUNDLE", nargs="?", help="copy: its name; adopt: its folder"
    )
    command.add_argument(
        "--out", metavar="DIR", help="new folder for the copy; without it, adopt changes the bundle"
    )
    adopting = command.add_argument_group("adopt")
    adopting.add_argument(
        "--data",
        metavar="DATA",
        help=(
            "one folder per hospital, each laid out as the bundle expects it; with "
            "it, adopt makes a trial run"
        ),
    )
    adopting.add_argument(
        "--data-key",
        metavar="KEY",
        help=(
            "the bundle's key for the folder of its images (default: dataset_dir, or "
            "a similar name)"
        ),
    )
    adopting.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="values that make the trial run smaller, such as a smaller batch or image",
    )
    adopting.add_argument(
        "--replace", action="store_true", help="replace the files of an earlier adoption"
    )


def bundle(args: argparse.Namespace) -> Answer:
    """List the shipped bundles, copy one, or prepare somebody else's MONAI bundle for a federation.

    A bundle to adopt must train with ignite, from configs/train.json or train.yaml. Its own files
    stay as they are. The command writes federate.json and overlays, prints what it changed and what
    it could not change, and makes a trial run where it has data.

    examples:
      monai-fairfl bundle
      monai-fairfl bundle copy prostate_mri_segmentation --out prostate
      monai-fairfl bundle adopt spleen_ct_segmentation --data hospitals
      monai-fairfl bundle adopt spleen_ct_segmentation --data hospitals --out spleen_federated
    """
    from monai_fairfl.bundle.shipped import bundle_names, copy_bundle

    if args.action == "list":
        names = bundle_names()
        return Answer({"bundles": list(names)}, "\n".join(names))
    if args.name is None:
        raise ConfigError(f"bundle {args.action} needs the name of a bundle")
    if args.action == "adopt":
        return _adopt(args)
    if args.out is None:
        raise ConfigError("bundle copy needs --out, a new folder for the copy")
    root = copy_bundle(args.name, args.out)
    readme = root / "docs" / "README.md"
    return Answer({"bundle_root": str(root)}, f"{root}: copied; {readme} describes how to run it")


def _adopt(args: argparse.Namespace) -> Answer:
    """Prepare a bundle, and try it."""
    from monai_fairfl.bundle.adoption import adopt_bundle

    out = None if args.out is None else Path(args.out)
    root = None
    first_site = None
    if args.data is not None:
        root = Path(args.data).absolute()
        sites = _sites(root)
        first_site = sites[0]
    adoption = adopt_bundle(Path(args.name), out, first_site, args.data_key, args.replace)
    lines = [f"{adoption.bundle}: wrote {', '.join(adoption.written)}", "", "Changed"]
    lines += [f"- {sentence}" for sentence in adoption.changed]
    if adoption.left:
        lines += ["", "Not changed", *[f"- {sentence}" for sentence in adoption.left]]
    print("\n".join(lines), end="\n\n", file=progress_stream(args), flush=True)
    tried = None
    text = "Not tried: --data DATA, with one folder per hospital, tries two rounds of one step."
    if root is not None:
        names = [site.name for site in sites[:SITES]]
        tried = _try(adoption.bundle, root, names, args.overrides)
        text = (
            f"Tried: two rounds of one step with {SITES} sites.\n"
            f"Train: monai-fairfl train {args.data} --bundle {adoption.bundle}"
        )
    data = {
        "bundle": str(adoption.bundle),
        "written": adoption.written,
        "changed": adoption.changed,
        "left": adoption.left,
        "tried": tried,
    }
    return Answer(data, text)


def _sites(root: Path) -> list[Path]:
    """The folders of the sites, at least two."""
    from monai_fairfl.bundle.sites import data_folders
    from monai_fairfl.cli.choosing import require_two_sites

    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: --data names the folder of all hospitals")
    folders = data_folders(root, any_folder=True)
    require_two_sites(root, folders)
    return list(folders.values())


def _try(bundle: Path, root: Path, sites: Sequence[str], given: Mapping[str, Any]) -> str:
    """Run two rounds of one step.

    Args:
        bundle: the adopted bundle.
        root: of all sites.
        sites: names of those that try it.
        given: overrides by the user.

    Returns:
        The line that did it.

    Raises:
        FairFLError: why it failed. The run and its log stay.
    """
    from monai_fairfl.bundle.adoption import OVERLAY
    from monai_fairfl.cli.options import federation_line
    from monai_fairfl.cli.running import require_end
    from monai_fairfl.utils.plain_values import object_of_json

    folder = Path(tempfile.mkdtemp(prefix="adopt-"))
    overlay = object_of_json((bundle / OVERLAY).read_bytes())
    overrides = {name: value for name, value in ONE_STEP.items() if name in overlay}
    overrides.update(given)
    line = federation_line(
        bundle, root, folder / "run", overrides=overrides, site_names=sites, **CHECK
    )
    try:
        line.run(folder / "log.txt")
        require_end(folder / "run")
    except FairFLError as error:
        raise ConfigError(
            f"the files are written, but two rounds of one step failed: {error}. The log is "
            f"{folder / 'log.txt'}; after a change of the overlay try it with {line.text}"
        ) from error
    shutil.rmtree(folder)
    return line.text
