# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about what there is: ``bundle``, which also adopts one of others, and ``strategies``."""

from __future__ import annotations

import argparse
import inspect
import shutil
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.cli.options import Answer, say, value_of
from monai_fairfl.errors import ConfigError, FairFLError

CHECK: Mapping[str, Any] = {"rounds": 2, "local_epochs": 1, "report": False, "jobs": 1}
"""Keys of the federation that tries a bundle."""

ONE_STEP = {"train#trainer#epoch_length": 1, "validate#evaluator#epoch_length": 1}
"""Overrides with which an engine ends after one batch."""

SITES = 2
"""Sites that try a bundle."""


def bundle_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``bundle``."""
    actions = ("list", "copy", "adopt")
    command.add_argument("action", nargs="?", choices=actions, default="list")
    command.add_argument("name", metavar="BUNDLE", nargs="?", help="its name; to adopt, its folder")
    command.add_argument(
        "--out", metavar="DIR", help="new folder; without it, adopt changes BUNDLE"
    )
    adopting = command.add_argument_group("adopt")
    what = "one folder per hospital, for a trial run of two of them"
    adopting.add_argument("--data", metavar="DATA", help=what)
    what = "the bundle's key for the folder of its images"
    adopting.add_argument("--data-key", metavar="KEY", help=what)
    parse = partial(value_of, "Mapping", None)
    what = "values that make the trial run smaller, such as a smaller batch or image"
    adopting.add_argument("--overrides", type=parse, default={}, metavar="{...}", help=what)
    what = "replace the files of an earlier adoption"
    adopting.add_argument("--replace", action="store_true", help=what)


def bundle(args: argparse.Namespace) -> Answer:
    """List the shipped bundles, copy one, or prepare somebody else's MONAI bundle for a federation.

    A bundle to adopt must train with ignite, from configs/train.json or train.yaml. Its own files
    stay as they are. The command writes federate.json and overlays, prints the keys that it
    changed, and makes a trial run where it has data.

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
    from monai_fairfl.bundle.sites import data_folders
    from monai_fairfl.cli.choosing import require_two_sites

    sites: dict[str, Path] = {}
    if args.data is not None:
        root = Path(args.data).absolute()
        sites = data_folders(root, any_folder=True)
        require_two_sites(root, sites)
    out = None if args.out is None else Path(args.out)
    first = next(iter(sites.values()), None)
    adoption = adopt_bundle(Path(args.name), out, first, args.data_key, args.replace)
    say(f"{adoption.bundle}: wrote {', '.join(adoption.written)}")
    say(f"- changed (docs/adopt.md says why): {', '.join(adoption.changed)}")
    data = asdict(adoption) | {"bundle": str(adoption.bundle), "tried": None}
    if not sites:
        text = "Not tried: --data DATA, with one folder per hospital, tries two rounds of one step."
        return Answer(data, text)
    data["tried"] = _try(adoption.bundle, root, [*sites][:SITES], args.overrides)
    train = f"Train: monai-fairfl train {args.data} --bundle {adoption.bundle}"
    return Answer(data, f"Tried: two rounds of one step with {SITES} sites.\n{train}")


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
    from monai_fairfl.cli.running import federation_line

    folder = Path(tempfile.mkdtemp(prefix="adopt-"))
    overrides = {**ONE_STEP, **given}
    line = federation_line(
        bundle, root, folder / "run", overrides=overrides, site_names=sites, **CHECK
    )
    log = folder / "log.txt"
    try:
        line.run(log)
    except FairFLError as error:
        raise ConfigError(
            f"the files are written, but two rounds of one step failed: {error}. The log is {log}; "
            f"after a change of the overlay try it with {line.text}"
        ) from error
    shutil.rmtree(folder)
    return line.text


# --- strategies


def strategies_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``strategies``."""
    command.add_argument(
        "name", metavar="NAME|PATH", nargs="?", help="one, or a part such as Krum, or your own"
    )


def strategies(args: argparse.Namespace) -> Answer:
    """List the strategies that a federation can be run with, or show one in full.

    It can be one of your own. Every strategy also takes the parts of docs/methods/composition.md.

    examples:
      monai-fairfl strategies
      monai-fairfl strategies FedCE
      monai-fairfl strategies my_methods.MyStrategy
    """
    from monai_fairfl.strategies.base import Strategy
    from monai_fairfl.strategies.registry import find, shipped
    from monai_fairfl.utils.named_classes import arguments_of

    # As a federation is given it, its arguments do not matter here.
    asked = (args.name or "").partition("(")[0].strip()
    described = {}
    lines = []
    for name, kind in ({asked: find(asked)} if asked else shipped()).items():
        is_strategy = issubclass(kind, Strategy)
        own = arguments_of(kind, Strategy if is_strategy else object)
        arguments = [one.replace(annotation=one.empty) for one in own.values()]
        if is_strategy:
            arguments.append(inspect.Parameter("parts", inspect.Parameter.VAR_KEYWORD))
        call = f"{name}{inspect.Signature(arguments)}"
        text = inspect.getdoc(kind) or ""
        described[name] = {"call": call, "docstring": text}
        shown = text if args.name else text.partition("\n\n")[0]
        lines += [call, textwrap.indent(shown, "    "), ""]
    return Answer({"strategies": described}, "\n".join(lines))
