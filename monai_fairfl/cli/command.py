# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every command is made of: its arguments, and its answer as text and as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a command found: plain JSON, the same as text, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = 0


Command = Callable[[argparse.Namespace], Answer]
"""The function of a command, whose docstring is its help."""

Add = Callable[[str, Command, str], argparse.ArgumentParser]
"""Adds a command to the program: its name, its function, and examples, one a line."""


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
