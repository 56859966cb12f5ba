# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands about model files: ``recipe`` and ``export-model``.

Of each command the arguments come first, then the function that it calls.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from monai_fairfl.cli.command import Add, Answer


def add_commands(add: Add) -> None:
    """Add the commands of this module to the program."""
    _add_recipe(add)
    _add_export_model(add)


# --- recipe


def _add_recipe(add: Add) -> None:
    command = add("recipe", recipe, "recipe runs/fedce/models/global.pt")
    command.add_argument(
        "model",
        metavar="MODEL",
        help="model file of a training or a federation (.pt or .ts), or the folder of a run",
    )


def recipe(args: argparse.Namespace) -> Answer:
    """Show how a model was trained: the values that inference takes from it."""
    from monai_fairfl.cli.named_models import model_file
    from monai_fairfl.errors import ConfigError
    from monai_fairfl.model_files.recipe import read_recipe

    found = read_recipe(model_file(args.model))
    if found is None:
        raise ConfigError(
            f"{args.model} has no recipe: another program wrote it. Give its values by hand "
            "(docs/use_model.md)"
        )
    plain = found.state_dict()
    return Answer({"recipe": plain}, json.dumps(plain, indent=4, ensure_ascii=False))


# --- export-model


def _add_export_model(add: Add) -> None:
    command = add(
        "export-model",
        export_model,
        "export-model runs/fedce --out prostate.ts",
    )
    command.add_argument(
        "model", metavar="MODEL", help="model file of a training or a federation, or a run's folder"
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="bundle of the model (default: the shipped one that trained it)",
    )
    command.add_argument(
        "--out",
        required=True,
        metavar="PATH",
        help="new file that ends in .ts or .onnx, or a new folder for a bundle with the model",
    )


def export_model(args: argparse.Namespace) -> Answer:
    """Write a trained model as TorchScript (.ts), ONNX (.onnx) or a whole bundle (a folder).

    Each holds the recipe of its training.
    """
    from monai_fairfl.cli.named_models import bundle_of_model, model_file
    from monai_fairfl.workflow.export import export_model as export

    model = model_file(args.model)
    found = export(model, args.out, bundle_of_model(model, args.bundle))
    values = ", ".join(f"{key} {value}" for key, value in found.values.items())
    data = {"file": str(Path(args.out)), "recipe": found.state_dict()}
    return Answer(data, f"{args.out}: trained with {values}")
