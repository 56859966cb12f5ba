# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The fixes that the messages of a room propose."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from helpers.checkout import CHECKOUT


def texts_of(code: str) -> Iterator[tuple[ast.AST, str]]:
    """The texts of Python code, each with the node around it; ``{}`` in place of values."""
    for parent in ast.walk(ast.parse(code)):
        if isinstance(parent, ast.JoinedStr):
            continue
        for node in ast.iter_child_nodes(parent):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            if isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str):
                yield parent, "".join(
                    str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
                    for part in parts
                )


def without_a_row(room: str, rows: Collection[str], others: str) -> list[str]:
    """The clauses of a room's messages, after the first, that neither a row nor ``others`` names.

    Args:
        room: its folder in the package.
        rows: words of the fixes that a test follows.
        others: how other clauses begin, parted by ``|``.
    """
    proposed = set()
    for file in (CHECKOUT / "monai_fairfl" / room).glob("*.py"):
        for node, text in texts_of(file.read_text()):
            # Not docstrings.
            if not isinstance(node, ast.Expr):
                proposed.update(re.split(r"; |\. (?=[A-Z])", text)[1:])
    missing = []
    for clause in sorted(proposed):
        first = clause.partition("{}")[0].strip(" .")
        if first and not any(first in fix or fix in first for fix in rows):
            missing.append(clause)
    return [clause for clause in missing if not clause.startswith(tuple(others.split("|")))]
