# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every command is made of: its arguments, and its answer in words and as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a command found: plain JSON, and the same in words."""

    data: dict[str, Any]
    text: str
    code: int = 0


Add = Callable[[str, Callable[[argparse.Namespace], Answer], str], argparse.ArgumentParser]
"""Adds a command: its name, the function, whose docstring is its help, and examples."""


def whole(text: str) -> int:
    """A whole number from 0, for ``type=`` of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def positive(text: str) -> int:
    """A whole number above 0, for ``type=`` of an argument."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
