# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Options that ``train`` and ``compare`` share, and the lines that they make."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import add_recipe, add_settings, add_verbose, plain_mapping, positive

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine


def add_training_options(command: argparse.ArgumentParser, at_a_time: str) -> None:
    """Add the folder of hospitals and the options of every training.

    Args:
        command: gets them.
        at_a_time: what ``--jobs`` counts, for its help.
    """
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    add_recipe(command)
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help=(
            "name of a shipped bundle, or a bundle's folder (default: the shipped one "
            "that fits the images)"
        ),
    )
    command.add_argument(
        "--rounds",
        type=positive,
        metavar="N",
        help="number of rounds (default: of the bundle's federate.json)",
    )
    command.add_argument(
        "--local-epochs",
        type=positive,
        metavar="N",
        help="local epochs in each round (default: of the bundle's federate.json)",
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="values for the bundle's configuration, such as \"{'size': [128, 128]}\"",
    )
    add_settings(command)
    command.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help=(
            f"{at_a_time}; the results are the same for any number (default: as many "
            "as cores and memory allow; 1: one after the other)"
        ),
    )
    command.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help=(
            "devices for these processes in turn, such as cuda:0 cuda:1 (default: a "
            "GPU if there is one)"
        ),
    )
    add_verbose(command)


def line_of_options(
    args: argparse.Namespace, root: Path, run_dir: Path, strategies: Sequence[str], **keys: Any
) -> MonaiLine:
    """The line of MONAI that the options stand for.

    Args:
        args: of a command with the options of :func:`add_training_options`.
        root: one folder per hospital.
        run_dir: gets the run.
        strategies: each as on a command line, such as ``FedCE`` or ``CGSV(gamma=None)``.
        keys: others of ``federate.json``; ``None``: as the bundle has it.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or an argument cannot be used.
    """
    from monai_fairfl.cli.choosing import chosen_bundle
    from monai_fairfl.cli.federation_line import federation_line

    return federation_line(
        chosen_bundle(root, args.bundle),
        root,
        run_dir,
        strategies,
        quick=args.quick,
        recipe=args.recipe,
        config=args.settings,
        overrides=args.overrides,
        rounds=args.rounds,
        local_epochs=args.local_epochs,
        jobs=args.jobs,
        devices=args.devices,
        **keys,
    )
