# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about model files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from monai_fairfl.cli.command import Add, Answer


def recipe(args: argparse.Namespace) -> Answer:
    """Show how a model was trained: the values that inference takes from it."""
    from monai_fairfl.errors import ConfigError
    from monai_fairfl.model_files.recipe import read_recipe

    found = read_recipe(args.model)
    if found is None:
        raise ConfigError(
            f"{args.model} has no recipe: it was not written by this package, or by an older version"
        )
    plain = found.state_dict()
    return Answer({"recipe": plain}, json.dumps(plain, indent=4, ensure_ascii=False))


def export_model(args: argparse.Namespace) -> Answer:
    """Write a trained model as TorchScript (.ts) or ONNX (.onnx), with its recipe inside."""
    from monai_fairfl.bundle.shipped import locate_bundle
    from monai_fairfl.workflow.export import export_model as export

    bundle = locate_bundle(args.bundle)
    found = export(args.model, args.out, bundle)
    values = ", ".join(f"{key} {value}" for key, value in found.values.items())
    return Answer(
        {"file": str(Path(args.out)), "recipe": found.state_dict()},
        f"{args.out}: trained with {values}",
    )


def add_commands(add: Add) -> None:
    """``recipe``, ``export-model``."""
    sub = add("recipe", recipe, "recipe runs/fedce/models/global.pt")
    sub.add_argument(
        "model", metavar="MODEL", help="a model file of a training or a federation, .pt or .ts"
    )

    example = "export-model runs/fedce/models/global.pt --bundle prostate_mri_segmentation --out prostate.ts"
    sub = add("export-model", export_model, example)
    sub.add_argument("model", metavar="MODEL", help="a model file of a training or a federation")
    sub.add_argument(
        "--bundle", required=True, help="name of a bundle of this package, or the path of one"
    )
    sub.add_argument(
        "--out", required=True, metavar="FILE", help="ends in .ts or .onnx; it must not exist"
    )
