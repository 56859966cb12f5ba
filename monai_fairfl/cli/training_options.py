# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Options that ``train`` and ``compare`` share, and the lines that they make."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import add_verbose, plain_mapping, positive

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine
    from monai_fairfl.run_folder.full_run import FullRun


def add_recipe(command: argparse._ActionsContainer) -> None:
    """Add the option ``--recipe``."""
    command.add_argument(
        "--recipe",
        metavar="NAME",
        help=(
            "another recipe of the bundle, such as strong: better masks for more training "
            "(default: that of its federate.json)"
        ),
    )


def add_training_options(command: argparse.ArgumentParser, at_a_time: str) -> None:
    """Add the folder of hospitals and the options of every training.

    Args:
        command: gets them.
        at_a_time: what ``--jobs`` counts, for its help.
    """
    command.add_argument("folder", metavar="DATA", help="one folder per hospital")
    training = command.add_mutually_exclusive_group()
    training.add_argument(
        "--quick",
        action="store_true",
        help=(
            "a first look, as with monai-fairfl try: few rounds, small images and a "
            "small network unless you give others; takes minutes, and gives no result "
            "to publish"
        ),
    )
    add_recipe(training)
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
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="JSON file with other keys of a federation, read after the bundle's own",
    )
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
        config=args.config,
        overrides=args.overrides,
        rounds=args.rounds,
        local_epochs=args.local_epochs,
        jobs=args.jobs,
        devices=args.devices,
        **keys,
    )


FOLDS = 4
"""Folds of the command that is printed where the cases are few."""

NOT_OF_COMPARE = ("adapt", "seed")


def full_run_words(
    line: MonaiLine, strategies: Sequence[str], options: Mapping[str, Any]
) -> tuple[list[str] | None, list[str] | None]:
    """The commands that train the bundle's full run on the same hospitals: as split, and in folds.

    Standalone is added where it is not among the strategies: a verdict compares with it. An
    override that contradicts the full run is left out. One that a file of the user sets so is set
    back.

    Args:
        line: of the shorter run; the full one gets a folder beside its own.
        strategies: of the shorter run, each as on a command line.
        options: others of ``monai-fairfl train``, such as ``seed``; ``None`` or empty: not given.

    Returns:
        The words of ``monai-fairfl train``, and those of ``monai-fairfl compare --folds``, ``None``
        where the run has valuations; both ``None`` where the bundle names no full run.

    Raises:
        ConfigError: naming what is wrong in ``full_run``.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> from monai_fairfl.cli.federation_line import federation_line
    >>> bundle = find_bundle("prostate_mri_segmentation")
    >>> line = federation_line(bundle, Path("data"), Path("a"), ["FedCE"])
    >>> options = {"seed": 1, "adapt": None, "overrides": {"size": [32, 32]}}
    >>> train, compare = full_run_words(line, ["FedCE"], options)
    >>> " ".join(train[:6]), " ".join(train[6:])
    ('monai-fairfl train data --strategies Standalone FedCE', \
'--rounds 60 --local-epochs 4 --seed 1 --out a-full')
    >>> " ".join(compare[6:])
    '--folds 4 --seeds 1 --rounds 60 --local-epochs 4 --out a-folds'
    """
    from monai_fairfl.run_folder.full_run import FullRun
    from monai_fairfl.strategies import Standalone
    from monai_fairfl.strategies.resolver import strategy_of

    configuration = line.configuration()
    full = FullRun.read(configuration.get("full_run"))
    if full is None:
        return None, None
    trained = list(strategies)
    if not any(isinstance(strategy_of(text), Standalone) for text in trained):
        trained.insert(0, "Standalone")

    root = str(line.arguments["sites_root"])
    run_dir = line.arguments["run_dir"]
    length = {"rounds": full.rounds, "local-epochs": full.local_epochs}
    options = {**options, "overrides": _of_full_run(line, full, options.get("overrides") or {})}
    train = {**length, **options, "out": f"{run_dir}-full"}
    train_words = ["monai-fairfl", "train", root, "--strategies", *trained, *_words_of(train)]
    if configuration.get("valuations"):
        # Valuations are of one training: a comparison refuses them.
        return train_words, None

    compare = {"folds": FOLDS, "seeds": options.get("seed"), **length}
    for name, value in options.items():
        if name not in NOT_OF_COMPARE:
            compare[name] = value
    compare["out"] = f"{run_dir}-folds"
    compare_words = ["monai-fairfl", "compare", root, "--strategies", *trained, *_words_of(compare)]
    return train_words, compare_words


def _of_full_run(line: MonaiLine, full: FullRun, given: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that were given, without those that contradict the full run.

    An override of a file that contradicts it is set back to the value of the full run.
    """
    from monai_fairfl.bundle.configuration import measured_settings
    from monai_fairfl.bundle.first_look import QUICK

    remaining = {}
    for name, value in given.items():
        if name not in full.overrides or full.overrides[name] == value:
            remaining[name] = value

    files = [file for file in line.files if Path(file).name != QUICK]
    settings = replace(line, files=files, arguments={}).configuration()
    config = settings.get("config") or ["configs/train.json"]
    overrides = {**(settings.get("overrides") or {}), **remaining}
    bundle = Path(line.arguments["bundle_root"])
    used = measured_settings(bundle, overrides, config, {"overrides": full.overrides})
    for name, value in full.overrides.items():
        if used.get(name) != value:
            remaining[name] = value
    return remaining


def _words_of(given: Mapping[str, Any]) -> list[str]:
    """Options as words; ``None`` or empty: not given."""
    words = []
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
