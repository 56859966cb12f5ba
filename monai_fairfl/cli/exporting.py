# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``export``: a trained model for other programs, or a federation for an engine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from monai_fairfl.cli.command import Answer, add_out
from monai_fairfl.cli.engines import ENGINES, export_job, job_options
from monai_fairfl.errors import ConfigError


def export_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    command.add_argument(
        "what",
        metavar="MODEL|BUNDLE",
        help=(
            "model file, or the folder of a run; with --engine the name or folder of the bundle "
            "that the federation trains"
        ),
    )
    add_out(
        command,
        "new file that ends in .ts or .onnx, or a new folder for a bundle with the model; with "
        "--engine a new folder for the job (default: show how the model was trained)",
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="bundle of the model (default: the shipped one that trained it)",
    )
    command.add_argument(
        "--engine", choices=ENGINES, help="write a federation as a job for this engine"
    )
    job_options(command.add_argument_group("with --engine"))


def export(args: argparse.Namespace) -> Answer:
    """Write a model as TorchScript, ONNX or a bundle, or a federation as a job for an engine.

    A model goes with the recipe of its training: the values that inference takes from it. Without
    --out the command shows this recipe. A job holds the seeded initial model.

    examples:
      monai-fairfl export runs/fedce                      # how its model was trained
      monai-fairfl export runs/fedce --out prostate.ts
      monai-fairfl export prostate_mri_segmentation --engine flare --strategy FedCE --out job
      monai-fairfl export my_bundle --engine flower --strategy CGSV --local-epochs 2 --out app
    """
    if args.engine is not None:
        return export_job(args)
    from monai_fairfl.cli.named_models import bundle_of_model, model_file
    from monai_fairfl.model_files.recipe import read_recipe
    from monai_fairfl.workflow.export import export_model

    model = model_file(args.what)
    if args.out is None:
        recipe = read_recipe(model)
        if recipe is None:
            raise ConfigError(
                f"{args.what} has no recipe: another program wrote it. Give its values by hand "
                "(docs/use_model.md)"
            )
        plain = recipe.state_dict()
        return Answer({"recipe": plain}, json.dumps(plain, indent=4, ensure_ascii=False))
    found = export_model(model, args.out, bundle_of_model(model, args.bundle))
    values = ", ".join(f"{key} {value}" for key, value in found.values.items())
    data = {"file": str(Path(args.out)), "recipe": found.state_dict()}
    return Answer(data, f"{args.out}: trained with {values}")
