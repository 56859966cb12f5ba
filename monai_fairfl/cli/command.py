# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every command is made of: its arguments, and its answer as text and as JSON."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO


class Answer(NamedTuple):
    """What a command found: plain JSON, the same as text, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = 0


Command = Callable[[argparse.Namespace], Answer]
"""The function of a command, whose docstring is its help."""

Add = Callable[[str, Command, str], argparse.ArgumentParser]
"""Adds a command to the program: its name, its function, and examples, one a line."""


def out_folder(given: str | None, default: str) -> Path:
    """Return the absolute folder that a command writes into.

    Args:
        given: what ``--out`` names.
        default: name of the folder here, where it names none.
    """
    if given:
        return Path(given).absolute()
    return Path.cwd() / default


def progress_stream(args: argparse.Namespace) -> TextIO:
    """Return where a command writes what it does: beside the JSON object of ``--json``, if any."""
    return sys.stderr if args.json else sys.stdout


def add_verbose(command: argparse.ArgumentParser) -> None:
    """Add the option that shows what a command writes into its log."""
    command.add_argument(
        "--verbose",
        action="store_true",
        help="show what MONAI and other libraries print, which goes into log.txt otherwise",
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
    try:
        found = json.loads(text)
    except ValueError:
        found = _literal(text)
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not values by name, such as \"{{'size': [128, 128]}}\""
        )
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
