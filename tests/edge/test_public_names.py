# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tests of numbers, the edge and the client, and their helpers, use public names only."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "monai_fairfl"
MODULES = {f"monai_fairfl.{name}" for name in ("errors", "inferers", "losses")}
WITHOUT_A_FACE = {"monai_fairfl.statistics"}
"""Rooms whose modules are imported, since they have no face."""

HELPERS = (
    "attacked_federation",
    "client_requests",
    "clipping",
    "driving",
    "faulty_transports",
    "fixed_sites",
    "given_strategy",
    "guarded_rounds",
    "linear_run",
    "odd_federation",
    "toy_client",
    "updates",
)


def names_of(face: Path) -> set[str]:
    """The names that a face promises."""
    nodes = [node for node in ast.parse(face.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes for alias in node.names}


def public(module: str, names: Sequence[str]) -> bool:
    """Whether these names of a module of the package are public."""
    room = PACKAGE.joinpath(*module.split(".")[1:])
    if module in MODULES or module.rpartition(".")[0] in WITHOUT_A_FACE:
        return True
    face = room / "__init__.pyi"
    if not face.exists():
        return False
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.pyi")}
    return set(names) <= names_of(face) | (rooms if room == PACKAGE else set())


def below_a_face(file: Path) -> list[str]:
    """What a file imports that is no public name."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported = [(alias.name, [""]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [(node.module or "", [alias.name for alias in node.names])]
        else:
            continue
        for module, names in imported:
            if module.partition(".")[0] == "monai_fairfl" and not public(module, names):
                found.append(f"{file.name}: {names} of {module}")
    return found


def test_nothing_below_a_face_is_imported() -> None:
    files: list[Path] = []
    for room in ("numbers", "edge", "client"):
        files += (TESTS / room).glob("*.py")
    files += [TESTS / "helpers" / f"{name}.py" for name in HELPERS]
    assert len(files) > 30
    assert [words for file in files for words in below_a_face(file)] == []
