# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What every command is made of: its arguments, and its answer in words and as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Add", "Answer", "positive", "whole"]


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
