# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every command line that a message, a page or a report proposes is one that the program takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.proposed_fixes import texts_of

from monai_fairfl.cli import COMMANDS, parsed

PLACES = (
    "monai_fairfl",
    "docs",
    "bundles",
    "benchmarks",
    "experiments",
    ".github",
)
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "Dockerfile")
ENDINGS = (".py", ".md", ".jinja", ".json", ".yml", ".sh")

LINE = re.compile(r"monai-fairfl +([a-z][^`\n;|]*)")
"""What follows the program's name, to the end of the code or the line."""


def texts_in(file: Path) -> Iterator[str]:
    """The texts of a file; of Python those in which a value stands for each expression."""
    content = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        # A line of a shell may go on.
        yield re.sub(r"\$\(\w+\)", "1", re.sub(r"\\\n\s*", " ", content))
        return
    for _, text in texts_of(content):
        # What follows a word without a space is an end that may be empty.
        yield re.sub(r"(?<=\w)(\{\})+", "", text).replace("{}", "X")


def takes(line: str) -> bool:
    """Whether the program takes the beginning of a line that has all its options."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    # Words of a sentence, or of a synopsis.
    words = [word.strip("[]().,:\"'") or "X" for word in words]
    if not any(word.startswith("-") for word in words):
        # Prose names a command, and no line.
        return words[0] in COMMANDS
    last = max((at for at, word in enumerate(words) if word.startswith("-")))
    for end in range(len(words), last, -1):
        try:
            parsed(words[:end])
        except SystemExit as ended:
            # Help is an end without an error.
            if ended.code:
                continue
        return True
    return False


def test_every_proposed_line_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    files = [CHECKOUT / name for name in FILES]
    for place in PLACES:
        files += [one for one in (CHECKOUT / place).rglob("*") if one.suffix in ENDINGS]
    found = {}
    for file in files:
        for text in texts_in(file):
            found |= dict.fromkeys(LINE.findall(text), file)
    assert len(found) > 100
    assert {line: file for line, file in found.items() if not takes(line)} == {}
