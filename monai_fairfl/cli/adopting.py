# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``adopt``: makes a MONAI bundle of others federate, and tries it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import Add, Answer, plain_mapping, progress_stream
from monai_fairfl.errors import ConfigError, FairFLError

if TYPE_CHECKING:
    from monai_fairfl.bundle.adoption import Adoption

CHECK: Mapping[str, Any] = {"rounds": 2, "local_epochs": 1, "report": False, "jobs": 1}
"""Keys of the federation that tries a bundle."""

ONE_STEP = {"epoch_length": 1, "validation_length": 1}
"""Overrides with which an engine ends after one batch, where the overlay has them."""

SITES = 2
"""Sites that try a bundle."""

WITHOUT_DATA = "Not tried: --data DATA, with one folder per hospital, tries two rounds of one step."


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "adopt",
        adopt,
        "adopt spleen_ct_segmentation --data hospitals\n"
        "adopt spleen_ct_segmentation --data hospitals --out spleen_federated",
    )
    command.add_argument("bundle", metavar="BUNDLE", help="folder of a MONAI bundle")
    command.add_argument(
        "--data",
        metavar="DATA",
        help=(
            "one folder per hospital, each laid out as the bundle expects it; with "
            "it, adopt makes a trial run"
        ),
    )
    command.add_argument(
        "--out",
        metavar="DIR",
        help="leave the bundle as it is, and adopt a copy in this new folder",
    )
    command.add_argument(
        "--data-key",
        metavar="KEY",
        help=(
            "the bundle's key for the folder of its images (default: dataset_dir, or "
            "a similar name)"
        ),
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="values that make the trial run smaller, such as a smaller batch or image",
    )
    command.add_argument(
        "--replace", action="store_true", help="replace the files of an earlier adoption"
    )


def adopt(args: argparse.Namespace) -> Answer:
    """Prepare somebody else's MONAI bundle for a federation, and make a trial run.

    The bundle must train with ignite, from configs/train.json or train.yaml. Its own files stay as
    they are. The command writes federate.json and overlays, and prints what it changed, and what
    it could not change.
    """
    from monai_fairfl.bundle.adoption import adopt_bundle

    out = None
    if args.out is not None:
        out = Path(args.out)
    root = None
    first_site = None
    if args.data is not None:
        root = Path(args.data).absolute()
        sites = _sites(root)
        first_site = sites[0]
    adoption = adopt_bundle(Path(args.bundle), out, first_site, args.data_key, args.replace)
    print(_words(adoption), file=progress_stream(args), flush=True)
    line = None
    if root is not None:
        names = [site.name for site in sites[:SITES]]
        line = _try(adoption.bundle, root, names, args.overrides)
    data = {
        "bundle": str(adoption.bundle),
        "written": adoption.written,
        "changed": adoption.changed,
        "left": adoption.left,
        "tried": line,
    }
    if root is None:
        return Answer(data, WITHOUT_DATA)
    text = (
        f"Tried: two rounds of one step with {SITES} sites.\n"
        f"Train: monai-fairfl train {args.data} --bundle {adoption.bundle}"
    )
    return Answer(data, text)


def _sites(root: Path) -> list[Path]:
    """The folders of the sites, at least two."""
    from monai_fairfl.bundle.preflight import data_folders
    from monai_fairfl.cli.choosing import require_two_sites

    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: --data names the folder of all hospitals")
    folders = data_folders(root, any_folder=True)
    require_two_sites(root, folders)
    return list(folders.values())


def _words(adoption: Adoption) -> str:
    """What was written, changed and left, one a line."""
    lines = [f"{adoption.bundle}: wrote {', '.join(adoption.written)}", "", "Changed"]
    lines += [f"- {sentence}" for sentence in adoption.changed]
    if adoption.left:
        lines += ["", "Not changed"]
        lines += [f"- {sentence}" for sentence in adoption.left]
    return "\n".join([*lines, ""])


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
    from monai_fairfl.cli.federation_line import federation_line
    from monai_fairfl.cli.running import require_end

    folder = Path(tempfile.mkdtemp(prefix="adopt-"))
    overrides = {**_known_overrides(bundle), **given}
    line = federation_line(
        bundle, root, folder / "run", ["FedAvg"], overrides=overrides, site_names=sites, **CHECK
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


def _known_overrides(bundle: Path) -> dict[str, Any]:
    """The overrides of :data:`ONE_STEP` that the overlay has."""
    from monai_fairfl.bundle.adoption.adopt import OVERLAY
    from monai_fairfl.utils.plain_values import object_of_json

    overlay = object_of_json((bundle / OVERLAY).read_bytes())
    return {name: value for name, value in ONE_STEP.items() if name in overlay}
