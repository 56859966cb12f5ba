# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tests use public names only, so that walls may move."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "monai_fairfl"
MODULES = {
    f"monai_fairfl.{name}" for name in ("errors", "inferers", "losses", "messages", "replies")
}
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.pyi")}
IMPORTED = re.compile(r"^ *import (monai_fairfl[\w.]*)", re.M)
FROM = re.compile(r"^ *from (monai_fairfl[\w.]*) import (\([^)]*\)|.*)", re.M)
NAMED = re.compile(r"""["'](monai_fairfl(?:\.\w+)+)["']""")
ADAPTER = TESTS / "net" / "adapter.py"
"""The one place of the net that knows names and commands; it follows them."""


@cache
def names_of(face: Path) -> set[str]:
    """The names that a face promises."""
    found = set()
    for node in ast.parse(face.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def public(module: str, names: Sequence[str]) -> bool:
    """Whether these names of a module of the package are public."""
    room = PACKAGE.joinpath(*module.split(".")[1:])
    if module in MODULES:
        return True
    face = room / "__init__.pyi"
    if not face.exists():
        return False
    return set(names) <= names_of(face) | {""} | (ROOMS if room == PACKAGE else set())


def below_a_face(file: Path) -> list[str]:
    """What a file imports, or names in a string, that is no public name."""
    text = file.read_text()
    named = [(module, [""]) for module in IMPORTED.findall(text)]
    for module, names in FROM.findall(text):
        words = re.sub("#.*|[()]", "", names).split(",")
        named.append((module, [word.split()[0] for word in words if word.strip()]))
    for path in NAMED.findall(text):
        module, _, name = path.rpartition(".")
        # Some keys and files begin like a module; a name that is nowhere is misspelt.
        if PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py").exists():
            named.append((module, [name]))
    return [
        f"{file.name}: {names} of {module}" for module, names in named if not public(module, names)
    ]


def test_nothing_below_a_face_is_imported_or_named() -> None:
    files = [file for file in TESTS.rglob("*.py") if file != ADAPTER]
    assert len(files) > 100
    assert [words for file in files for words in below_a_face(file)] == []
