# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Options that ``train`` and ``compare`` share, and the lines that they make."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import add_verbose, plain_mapping, positive

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine


def add_training_options(command: argparse.ArgumentParser, at_a_time: str) -> None:
    """Add the folder of hospitals and the options of every training.

    Args:
        command: gets them.
        at_a_time: what ``--jobs`` counts, for its help.
    """
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    command.add_argument(
        "--quick",
        action="store_true",
        help="a first look, as monai-fairfl try: few rounds, small images and a small network "
        "where nothing else is given; minutes, and no result to publish",
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="a bundle (default: the shipped one that fits the images)",
    )
    command.add_argument("--rounds", type=positive, metavar="N", help="in all (default: measured)")
    command.add_argument(
        "--local-epochs", type=positive, metavar="N", help="of every round (default: measured)"
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="plain values of the bundle's configuration, such as \"{'size': [128, 128]}\"",
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a file with other keys of a federation, which come after those of the bundle",
    )
    command.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help=f"{at_a_time}; changes no number (default: what cores and memory allow; 1: one after "
        "the other)",
    )
    command.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="of the processes, in turn, such as cuda:0 cuda:1 (default: a GPU if there is one)",
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
        strategies: each as on a command line, such as ``FedCE`` or ``CGSV(beta=2)``.
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
        config=args.config,
        overrides=args.overrides,
        rounds=args.rounds,
        local_epochs=args.local_epochs,
        jobs=args.jobs,
        devices=args.devices,
        **keys,
    )


def full_run_words(
    root: Path,
    run_dir: Path,
    strategies: Sequence[str],
    full_run: Any,
    options: Mapping[str, Any],
) -> list[str] | None:
    """The command that trains the bundle's full run on the same hospitals.

    Standalone is added where it is not among the strategies: a verdict compares with it.

    Args:
        root: one folder per hospital.
        run_dir: of the shorter run; the full one gets a folder beside it.
        strategies: of the shorter run, each as on a command line.
        full_run: key of the bundle's ``federate.json``; ``None``: it names none.
        options: others of ``monai-fairfl train``, such as ``seed``; ``None`` or empty: not given.

    Returns:
        The words; ``None`` where the bundle names no full run.

    Raises:
        ConfigError: naming what is wrong in ``full_run``.

    >>> full = {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}
    >>> words = full_run_words(Path("data"), Path("a"), ["FedCE"], full, {"seed": 1, "adapt": None})
    >>> " ".join(words[:6]), " ".join(words[6:])
    ('monai-fairfl train data --strategies Standalone FedCE', \
'--rounds 60 --local-epochs 4 --seed 1 --out a-full')
    """
    from monai_fairfl.run_folder.full_run import FullRun
    from monai_fairfl.strategies import Standalone
    from monai_fairfl.strategies.resolver import strategy_of

    full = FullRun.read(full_run)
    if full is None:
        return None
    trained = list(strategies)
    if not any(isinstance(strategy_of(text), Standalone) for text in trained):
        trained.insert(0, "Standalone")

    given = {
        "rounds": full.rounds,
        "local-epochs": full.local_epochs,
        **options,
        "out": f"{run_dir}-full",
    }
    words = ["monai-fairfl", "train", str(root), "--strategies", *trained]
    for name, value in given.items():
        if value is None or value == {}:
            continue
        words.append(f"--{name}")
        if isinstance(value, (list, tuple)):
            words += [str(item) for item in value]
        elif isinstance(value, Mapping):
            words.append(json.dumps(value))
        else:
            words.append(str(value))
    return words
