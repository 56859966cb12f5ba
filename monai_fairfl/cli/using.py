# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that use a model: ``infer`` and ``evaluate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from monai_fairfl.cli.command import (
    Answer,
    add_device,
    add_model,
    add_out,
    add_verbose,
    out_folder,
    progress_stream,
)


def infer_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``infer``."""
    add_model(command)
    command.add_argument(
        "images", metavar="IMAGES", help="folder of NIfTI volumes, DICOM series or photographs"
    )
    add_out(command, "folder for masks, pictures and tables (default: infer-NAME here)")
    command.add_argument(
        "--no-pictures", action="store_true", help="write no picture of each case's outline"
    )
    add_device(command)
    add_verbose(command)


def infer(args: argparse.Namespace) -> Answer:
    """Segment a folder of images, and say what was found and what to look at.

    The table of cases is also in volumes.csv or ratios.csv, next to the masks. Exit code 3: some
    cases could not be segmented, or lack an output. Exit code 2: no case could be segmented.

    examples:
      monai-fairfl infer runs/fedce scans       # its global model
      monai-fairfl infer runs/fedce/models/elm.pt scans --out masks --no-pictures
    """
    from monai_fairfl.cli.inference import Inference, answer_of

    images = Path(args.images).absolute()
    out = out_folder(args.out, f"infer-{images.name}")
    run = Inference.of(args.model, args.bundle, images, out, not args.no_pictures, args.device)
    print(f"Into the folder {out}", file=progress_stream(args), flush=True)
    code = run.carry_out(progress_stream(args), args.verbose)
    table, text = answer_of(out)
    data = {"folder": str(out), "command": run.line.text, **table}
    return Answer(data, text, code)


# --- evaluate


def evaluate_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``evaluate``."""
    add_model(command)
    command.add_argument(
        "folder",
        metavar="DATA",
        help="one folder per hospital, or one hospital's folder, with labels",
    )
    add_out(command, "folder for each hospital's tables (default: evaluate-NAME here)")
    add_device(command)
    add_verbose(command)


def evaluate(args: argparse.Namespace) -> Answer:
    """Score a model on the test cases of hospitals, by Dice and surface distance.

    If the model is in its run's folder, the run's own test cases are scored. Otherwise all cases
    are scored, and the output says so.

    examples:
      monai-fairfl evaluate runs/fedce hospitals        # the test cases of the run's own splits
      monai-fairfl evaluate model.pt hospitals/elm --out scores
    """
    from monai_fairfl.cli.evaluations import Evaluation

    data = Path(args.folder).absolute()
    out = out_folder(args.out, f"evaluate-{data.name}")
    run = Evaluation.of(args.model, args.bundle, data, out, args.device)
    print(f"Into the folder {out}", file=progress_stream(args), flush=True)
    found, text = run.carry_out(progress_stream(args), args.verbose)
    return Answer({"folder": str(out), **found}, text)
