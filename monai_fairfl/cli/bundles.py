# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about what there is: ``bundle``, which also adopts one of others, and ``strategies``."""

from __future__ import annotations

import argparse
import inspect
import shutil
import tempfile
import textwrap
from pathlib import Path

from monai_fairfl.bundle.adoption import adopt_bundle
from monai_fairfl.bundle.configuration import FEDERATE
from monai_fairfl.bundle.shipped import bundle_names, copy_bundle, find_bundle
from monai_fairfl.cli.answers import LOG, Answer, say
from monai_fairfl.cli.running import run_line
from monai_fairfl.data.layouts import folders_in
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import Strategy
from monai_fairfl.strategies.registry import find, shipped
from monai_fairfl.utils.named_classes import arguments_of

ONE_STEP = {"train#trainer#epoch_length": 1, "validate#evaluator#epoch_length": 1}
TRIAL = {"overrides": ONE_STEP, "rounds": 2, "local_epochs": 1, "report": False, "jobs": 1}
"""Keys of the federation that tries a bundle; an engine ends after one batch."""


def bundle(args: argparse.Namespace) -> Answer:
    """Carry out ``bundle``."""
    if args.action == "list":
        return Answer({"bundles": list(bundle_names())}, "\n".join(bundle_names()))
    if args.name is None or (args.action == "copy" and args.out is None):
        raise ConfigError(f"bundle {args.action} needs the name of a bundle; copy also needs --out")
    if args.action == "adopt":
        return _adopt(args)
    copy_bundle(find_bundle(args.name), args.out)
    text = f"{args.out}: copied; its docs/README.md says how to run it"
    return Answer({"bundle_root": str(args.out)}, text)


def _adopt(args: argparse.Namespace) -> Answer:
    """Prepare a bundle, and try two rounds of one step with two sites."""
    root = Path(args.data or "").absolute()
    sites = [folder.name for folder in folders_in(root)] if args.data else []
    adoption = adopt_bundle(Path(args.name), args.out)
    bundle = Path(adoption["bundle"])
    say(f"{bundle}: wrote {', '.join(adoption['written'])}")
    say(f"- changed (docs/adopt.md says why): {', '.join(adoption['changed'])}")
    data = adoption | {"tried": bool(sites)}
    if not sites:
        return Answer(data, "Not tried: --data DATA, with one folder per hospital, tries it.")
    # After an error the log stays.
    folder = Path(tempfile.mkdtemp(prefix="adopt-"))
    say(f"Trying it, log in {folder / LOG}")
    places = {"bundle_root": bundle, "sites_root": root, "run_dir": folder / "run"}
    run_line([str(bundle / FEDERATE)], {**places, "site_names": sites[:2], **TRIAL}, folder / LOG)
    shutil.rmtree(folder)
    return Answer(data, f"Tried. Train: monai-fairfl train {args.data} --bundle {bundle}")


# --- strategies


def strategies(args: argparse.Namespace) -> Answer:
    """Carry out ``strategies``."""
    described = {}
    lines = []
    for name, kind in ({args.name: find(args.name)} if args.name else shipped()).items():
        own = arguments_of(kind, Strategy if issubclass(kind, Strategy) else object).values()
        arguments = [str(argument.replace(annotation=argument.empty)) for argument in own]
        call = f"{name}({', '.join(arguments)})"
        text = inspect.getdoc(kind) or ""
        described[name] = {"call": call, "docstring": text}
        shown = text if args.name else text.partition("\n\n")[0]
        lines += [call, textwrap.indent(shown, "    "), ""]
    return Answer({"strategies": described}, "\n".join(lines))
