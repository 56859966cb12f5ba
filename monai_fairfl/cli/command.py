# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every command is made of: its arguments, and its answer as text and as JSON."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.plain_values import written_value


class Answer(NamedTuple):
    """What a command found: plain JSON, the same as text, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = 0


def out_folder(given: str | None, default: str) -> Path:
    """Return the absolute folder that a command writes into, which need not exist.

    Args:
        given: what ``--out`` names.
        default: name of the folder here, where it names none.

    Raises:
        ConfigError: when nothing can be written there.
    """
    folder = Path(given).absolute() if given else Path.cwd() / default
    require_writable(folder, "--out")
    return folder


def require_writable(folder: Path, option: str) -> None:
    """Refuse a folder in which this process cannot write, or that it cannot make.

    Nothing is made: the system is asked about the folder, or the first one above it that exists.

    Args:
        folder: absolute.
        option: that names another one.

    Raises:
        ConfigError: naming the folder and the option.

    >>> require_writable(Path("/dev/null/runs"), "--out")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: /dev/null/runs cannot be made: /dev/null is a file; name \
another folder with --out
    """
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    what = "written to" if existing == folder else "made"
    if not existing.is_dir():
        why = f"{existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        why = f"{existing} is read-only for this account, or its file system is"
    else:
        return
    raise ConfigError(f"{folder} cannot be {what}: {why}; name another folder with {option}")


def progress_stream(args: argparse.Namespace) -> TextIO:
    """Return where a command writes what it does: beside the JSON object of ``--json``, if any."""
    return sys.stderr if args.json else sys.stdout


def add_verbose(command: argparse.ArgumentParser) -> None:
    """Add the option that shows what a command writes into its log."""
    command.add_argument(
        "--verbose",
        action="store_true",
        help=(
            "also show the output of MONAI and other libraries, which is otherwise "
            "only in log.txt"
        ),
    )


def add_model(command: argparse.ArgumentParser) -> None:
    """Add the argument MODEL, and the option with its bundle."""
    command.add_argument(
        "model",
        metavar="MODEL",
        help="model file, or the folder of a run, whose models/global.pt is used",
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="bundle to use (default: the shipped one that trained the model)",
    )


def add_device(command: argparse.ArgumentParser) -> None:
    """Add the option with the device of a single model."""
    command.add_argument(
        "--device",
        metavar="DEVICE",
        help="device to use, such as cuda:0 (default: a GPU if there is one)",
    )


def add_out(command: argparse.ArgumentParser, what: str) -> None:
    """Add the option with the place of everything that a command writes."""
    command.add_argument("--out", metavar="PATH", help=what)


def add_recipe(command: argparse._ActionsContainer) -> None:
    """Add the options that choose how long a bundle trains."""
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
    training.add_argument(
        "--recipe",
        metavar="NAME",
        help=(
            "another recipe of the bundle, such as light: less training, and worse masks "
            "(default: that of its federate.json)"
        ),
    )


def add_settings(command: argparse._ActionsContainer) -> None:
    """Add the option with a file of settings."""
    command.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help=(
            "JSON file with other keys of a federation (docs/keys.md), read after the bundle's own"
        ),
    )


STEREO = {"auto": None, "yes": True, "no": False}
"""What ``--stereo`` says -> whether photographs are pairs of views."""


def add_stereo(command: argparse._ActionsContainer) -> None:
    """Add the option that says whether photographs are pairs of views."""
    command.add_argument(
        "--stereo",
        choices=STEREO,
        default="auto",
        help=(
            "whether photographs are pairs of views side by side (default: those at "
            "least 1.8 times as wide as high are)"
        ),
    )


def whole(text: str) -> int:
    """Parse a whole number from 0, for ``type=`` of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def positive(text: str) -> int:
    """Parse a whole number above 0, for ``type=`` of an argument."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def plain_mapping(text: str) -> Mapping[str, Any]:
    """Parse plain values by name, as JSON or as Python writes them, for ``type=`` of an argument.

    >>> plain_mapping("{'size': [64, 64]}") == plain_mapping('{"size": [64, 64]}')
    True
    """
    found = None
    with suppress(ValueError):
        found = written_value(text)
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not values by name, such as \"{{'size': [128, 128]}}\""
        )
    return found
